-- Most calls are a plain request: one request at one limit without bookings ahead, permits that
-- were given back, or a pause, which is granted or refused at once. bucket.lua and at_once.lua
-- decide it before other functions are created, which takes longer than the decision. The files
-- behind these would reply and write the same.

local writes, booked, held
local n, longest, mode, wants_state
local is_plain = false

if not has_back and #KEYS == 1 and #ARGV[3] == 48 then
  local value, seen, most, _ = values[1], now
  _, longest, mode, wants_state, n, most = parse('>dddddd', ARGV[3])
  if not value then
    -- This first number is above every booking number of a state that was lost.
    writes, booked, held = floor(now / 8), now, 0
  elseif #value >= 40 then
    writes, seen, booked, held = parse('>dddd', value)
  end
  is_plain = writes and writes >= 0 and writes < MAX_WRITES and writes % 1 == 0
  is_plain = is_plain and seen <= now and held <= now and mode < 2 and n > 0 and most <= n
end

-- Returns when a key expires, as an option of `SET` and its value. If the limit `lingers`, its key
-- may be kept for a refused request: it stays so long, whatever others change.
local function expiry(key, ends, lingers)
  if not is_real then
    return 'PX', ('%d'):format(floor((ends - now) / 1000) + 1 + 86400000)
  end
  -- The first whole millisecond after the limit's end.
  local millis = floor(ends / 1000) + 1
  if lingers then millis = max(millis, floor(now / 1000) + call('PTTL', key)) end
  return 'PXAT', ('%d'):format(millis)
end

local function write(key, value, option, time)
  call('SET', key, value, option, time)
end

local decide
if is_plain then
  -- Grants the plain request. `state` begins the numbers of the algorithm. Without a `state`,
  -- refuses the request, which is due at an instant. Returns the reply; or nothing if the request
  -- may wait, or if the key is to be kept for it, because it expires before `till`.
  function decide(state, ends, lingers, available, full, next_at, due, till)
    local fields
    if state then
      local value = pack('>ddddd', writes + 1, now, now, held, 0) .. state
      local key = KEYS[1]
      write(key, value, expiry(key, max(now, min(ends, now + CENTURY)), lingers and values[1]))
      fields = {1, 0, 0, now, n}
      if wants_state == 0 then return {fields} end
    else
      local wait, most = due - now, parse('>d', ARGV[2], 9)
      if wait <= min(longest, most) or not values[1] or ends < till then return end
      fields = {mode == 1 and 2 or 0, wait, 1, 0, n}
    end
    fields[6], fields[7], fields[8] = available, full - now, next_at - now
    fields[9], fields[10] = 0, state and available or 0
    return {fields}
  end
end
