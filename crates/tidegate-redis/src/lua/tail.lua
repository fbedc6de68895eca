-- Reads every limit, decides, and writes last.

local call = redis.call
local numbers = ARGV[3]

-- Reads a value into the numbers of a limit. `places` has two numbers of each free booking.
local function read(l, value)
  local places = {}
  l.places = places
  if value then
    l.writes, l.seen, l.booked, l.held, l.free = parse('>ddddd', value)
    -- A value of another program. No text begins with a number like this: the eight bytes of one
    -- are no whole number, or a larger one.
    local writes = l.writes
    if not (writes >= 0 and writes < MOST_WRITES and writes % 1 == 0) then error(FOREIGN, 0) end
    for i = 1, l.free do
      local due, n = parse('>dd', value, 25 + 16 * i)
      -- The others are lost.
      if due > now then places[#places + 1], places[#places + 2] = due, n end
    end
  else
    l.writes, l.seen, l.booked, l.held, l.free = 0, now, now, 0, 0
  end
  local kind, seen = l.kind, l.seen
  kind.read(l, value)
  if seen > now then
    local ahead = seen - now
    -- The length of a window is its second term.
    if ahead > (kind.span and kind.span(l) or l.terms[2]) then
      -- The clock was set back. It is written that it was: else it would count again.
      l.writes, l.changed, l.newer = l.writes + 1, true, true
      seen, l.seen, l.booked = now, now, l.booked - ahead
      for i = 1, #places, 2 do places[i] = places[i] - ahead end
      if l.held > 0 then l.held = l.held - ahead end
      if kind.move then kind.move(l, -ahead) end
    end
  end
  l.now = seen > now and seen or now
  l.at = max(l.now, l.booked, l.held)
end

local limits, count = {}, #KEYS
local terms, first = ARGV[2], 1
for i = 1, count do
  local number, longest = parse('>dd', terms, first)
  local kind, key = kinds[number], KEYS[i]
  local value = call('GET', key)
  local l = {
    kind = kind, key = key, value = value, longest = longest, n = 0, most = 0,
    terms = {parse(kind.terms, terms, first + 16)},
    writes = 0, seen = 0, booked = 0, held = 0, free = 0, places = false, now = 0, at = 0,
    changed = false, newer = false,
  }
  first = first + 8 + 8 * #kind.terms
  read(l, value)
  limits[i] = l
end

-- The value of a limit, with what this call changed.
local function value_of(l)
  if not l.newer then return l.value or '' end
  local places = l.places
  local value = pack('>ddddd', l.writes, l.seen, l.booked, l.held, #places / 2)
  if #places > 0 then value = value .. pack('>' .. ('d'):rep(#places), unpack(places)) end
  value = value .. l.kind.value(l)
  l.value, l.newer = value, false
  return value
end

-- A change of a limit, which is written at the end.
local function change(l)
  l.writes, l.seen, l.changed, l.newer = l.writes + 1, l.now, true, true
  l.at = max(l.now, l.booked, l.held)
end

local function write_changed()
  for i = 1, count do
    local l = limits[i]
    if l.changed then
      local value = value_of(l)
      -- The first whole millisecond behind its end, and one to come.
      local ends = max(now, l.kind.expires(l), l.booked, l.held)
      if is_real then
        call('SET', l.key, value, 'PXAT', ('%d'):format(floor(ends / 1000) + 1))
      else
        call('SET', l.key, value, 'PX', ('%d'):format(floor((ends - now) / 1000) + 1 + 86400000))
      end
    end
  end
end

-- The reply: an answer, the wait, the limit that makes it wait, and the instant; for each limit the
-- permits of this request; and if it tells the state, for each limit how many permits are
-- available; in which time it is full, and one permit is due; how long it is still paused; another
-- number. A time of -1 is never.
local function reply(answer, wait, tightest, due, tells, other)
  local told = {answer, wait, tightest, due, limits[1].n}
  for i = 2, count do told[4 + i] = limits[i].n end
  if not tells then return told end
  for i = 1, count do
    local l, k = limits[i], count + 5 * i
    local at = max(l.now, l.booked, l.held)
    local available, full = l.kind.left(l, at)
    local next_at = at
    if at > l.now or available == 0 then next_at = l.kind.due(l, at, 1) end
    told[k] = at > l.now and 0 or available
    told[k + 1] = full and max(0, full - now) or -1
    told[k + 2] = next_at and (next_at > l.now and next_at - now or 0) or -1
    told[k + 3] = max(0, l.held - now)
    told[k + 4] = other and other[i] or 0
  end
  return told
end

-- Where a limit has a free booking of an instant and of the size of its request.
local function place_of(l, due)
  local places = l.places
  for i = 1, #places, 2 do
    if places[i] == due and places[i + 1] == l.n and due >= l.held then return i end
  end
end

-- The earliest instant of which each limit has a free booking for its request.
local function free_booking()
  local first, earliest
  for i = 1, count do
    if limits[i].n > 0 then first = first or limits[i].places end
  end
  for k = 1, #first, 2 do
    local all = not earliest or first[k] < earliest
    for i = 1, count do
      local l = limits[i]
      all = all and (l.n == 0 or place_of(l, first[k]) ~= nil)
    end
    if all then earliest = first[k] end
  end
  return earliest
end

-- Decides about one request, as if it were alone in its call. `is_last`: no other one follows.
local function reserve(longest, shadow, tells, is_last)
  -- A request for up to a number takes what all limits have that it does not name.
  local there
  for i = 1, count do
    local l = limits[i]
    if l.most > l.n then
      local available = l.at > l.now and 0 or l.kind.left(l, l.at)
      there = min(there or l.most, max(l.n, available))
    end
  end
  if there then
    for i = 1, count do
      local l = limits[i]
      if l.most > l.n then l.n = there end
    end
  end
  local due, tightest, asks = now, 0, false
  for i = 1, count do
    local l = limits[i]
    if l.n > 0 then
      asks = true
      local one = l.kind.due(l, l.at, l.n)
      if not one then
        due, tightest = nil, i
        break
      end
      -- A limit whose clock stands still grants now.
      if one > l.now and one > due then due, tightest = one, i end
    end
  end
  if not asks then return reply(0, -1, 0, 0, true) end
  local free = due and due > now and free_booking()
  local wait = due and (free or due) - now
  local is_granted = due ~= nil
  if is_granted and wait > 0 then
    for i = 1, count do
      local l = limits[i]
      if l.n > 0 and wait > min(longest, l.longest) then is_granted = false end
    end
  end
  if not is_granted then return reply(shadow and 2 or 0, wait or -1, tightest, 0, true) end
  due = free or due
  local before
  if wait > 0 then
    before = {}
    for i = 1, count do
      local value = value_of(limits[i])
      before[i] = (is_last or #value <= MOST_BEFORE) and value or ''
    end
  end
  for i = 1, count do
    local l = limits[i]
    if l.n > 0 then
      if free then
        local place = place_of(l, free)
        table.remove(l.places, place)
        table.remove(l.places, place)
      else
        l.kind.take(l, due > l.at and due or l.at, l.n)
        l.shift = 0
      end
      change(l)
    end
  end
  local told = reply(1, wait, tightest, due, tells)
  if before then
    for i = 1, count do told[#told + 1] = before[i] end
  end
  return told
end

-- Gives back the bookings of the requests for `l.n` permits of each limit at one instant, if that
-- is still to come. `ARGV[first]` and those behind it have the value of each limit from before the
-- booking.
local function give_back(place, first)
  if now >= place then return false end
  for i = 1, count do
    local l, before = limits[i], ARGV[first + i - 1]
    if l.n > 0 and l.value then
      local writes = before ~= '' and parse('>d', before) or 0
      if writes + 1 == l.writes and l.booked == place then
        -- Nothing was written since the booking. The number of writes is that from before, too, so
        -- that the booking before this one can be given back likewise.
        read(l, before ~= '' and before or nil)
        l.writes = writes - 1
      elseif #l.places < 2 * MOST_FREE then
        local places = l.places
        places[#places + 1], places[#places + 2] = place, l.n
      end
      change(l)
    end
  end
  return true
end

if operation == 'reserve' then
  for first = 4, #ARGV, 1 + count do
    local given_back = ARGV[first]
    for i = 1, count do limits[i].n = parse('>d', given_back, 1 + 8 * i) end
    give_back(parse('>d', given_back), first + 1)
  end
  local told, size = {}, 24 + 16 * count
  for first = 9, #numbers, size do
    local longest, shadow, tells = parse('>ddd', numbers, first)
    for i = 1, count do
      local l = limits[i]
      l.n, l.most = parse('>dd', numbers, first + 8 + 16 * i)
    end
    told[#told + 1] = reserve(longest, shadow == 1, tells == 1, first + size > #numbers)
  end
  write_changed()
  return told
end

local span, flag, place = parse('>ddd', numbers, 9)
for i = 1, count do limits[i].n = parse('>d', numbers, 25 + 8 * i) end

if operation == 'back' then
  if not give_back(place, 4) then return reply(0, 0, 0, 0, true) end
elseif operation == 'debit' then
  for _, l in ipairs(limits) do
    if l.n > 0 then
      l.kind.take(l, l.at, l.n)
      change(l)
    end
  end
elseif operation == 'refund' then
  for _, l in ipairs(limits) do
    -- A state is told of no grant that is still to come, but after the clock was set back.
    local at = max(l.now, l.booked)
    if l.n > 0 and l.value and place <= at then
      l.kind.give(l, at, l.n, place)
      change(l)
    end
  end
elseif operation == 'keep' then
  local taken = {}
  for i, l in ipairs(limits) do
    taken[i] = l.at > l.now and 0 or max(0, l.kind.left(l, l.at) - l.n)
    if taken[i] > 0 then
      l.kind.take(l, l.at, taken[i])
      change(l)
    end
  end
  write_changed()
  return reply(1, 0, 0, 0, true, taken)
elseif operation == 'pause' then
  -- For a span; the stock stays where the flag says so.
  for _, l in ipairs(limits) do
    local till = max(l.held, now + span)
    if l.kind.hold then l.kind.hold(l, till, flag == 1) end
    l.held = till
    change(l)
  end
elseif operation == 'resume' then
  local held = {}
  for i, l in ipairs(limits) do
    local rest = l.held - l.now
    held[i] = rest > 0 and 1 or 0
    if rest > 0 then
      if l.kind.resume then l.kind.resume(l) end
      l.held = 0
      change(l)
    end
  end
  write_changed()
  return reply(1, 0, 0, 0, true, held)
elseif operation == 'reset' then
  call('DEL', unpack(KEYS))
  for _, l in ipairs(limits) do read(l, nil) end
  return reply(1, 0, 0, 0, true)
end

write_changed()
return reply(1, 0, 0, 0, true)
