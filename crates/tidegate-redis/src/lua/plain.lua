-- Most calls are plain: one request at limits without bookings ahead, permits that were given back,
-- or a pause, which is granted or refused at once. bucket.lua decides a plain request at one bucket
-- before it creates its other functions, which takes longer than the decision. at_once.lua decides
-- the other ones before the files behind it create theirs. Those files would reply and write the
-- same.

local is_plain = not has_back and #ARGV[3] == 32 + 16 * #KEYS
local longest, mode, wants_state, n, most
if is_plain then
  local _
  _, longest, mode, wants_state, n, most = parse('>dddddd', ARGV[3])
  is_plain = mode < 2
end

-- Returns the first numbers of a value: `writes`, `booked` and `held`. Returns nothing if no plain
-- request can be decided by it.
local function begins(value)
  -- This first number is above every booking number of a state that was lost.
  if not value then return floor(now / 8), now, 0 end
  if #value < 40 then return end
  local writes, seen, booked, held = parse('>dddd', value)
  if writes >= 0 and writes < MAX_WRITES and writes % 1 == 0 and seen <= now and held <= now then
    return writes, booked, held
  end
end

-- Returns when a key expires, as an option of `SET` and its value. If the limit `lingers`, its key
-- may be kept for a refused request: it stays so long, whatever others change. A pause that ended
-- sooner makes that sooner as well, and so does a clock that was set back.
local function expiry(key, ends, lingers, sooner)
  if not is_real then
    return 'PX', ('%d'):format(floor((ends - now) / 1000) + 1 + 86400000)
  end
  -- The first whole millisecond after the limit's end.
  local millis = floor(ends / 1000) + 1
  if lingers then millis = max(millis, floor((now - (sooner or 0)) / 1000) + call('PTTL', key)) end
  return 'PXAT', ('%d'):format(millis)
end

local function write(key, value, option, time)
  call('SET', key, value, option, time)
end

-- Adds the state of the i-th limit to the reply to a plain request.
local function report(fields, i, available, full, next_at, there)
  local k = #KEYS + 5 * i
  fields[k], fields[k + 1] = available, full and full - now or -1
  fields[k + 2], fields[k + 3], fields[k + 4] = next_at and next_at - now or -1, 0, there
end
