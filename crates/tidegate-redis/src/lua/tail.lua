-- Reads every limit, decides, and writes last.

local operation = ARGV[1]
local now, longest, flag, place = struct.unpack('>dddd', ARGV[2])
-- Keys expire by the server's clock. Under another time they are kept for a day more.
local kept = 86400000
if now < 0 then
  kept = 0
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Reads a value into the numbers of a limit.
local function read(l, value)
  l.places = {}
  if value then
    l.writes, l.seen, l.booked, l.held, l.free = struct.unpack('>ddddd', value)
    for i = 1, l.free do
      local due, n = struct.unpack('>dd', value, 25 + 16 * i)
      -- The others are lost.
      if due > now then l.places[#l.places + 1] = {due, n} end
    end
  else
    l.writes, l.seen, l.booked, l.held, l.free = 0, now, now, 0, 0
  end
  l.kind.read(l, value)
  local ahead = l.seen - now
  if ahead > l.span then
    -- The clock was set back. It is written that it was: else it would count again.
    l.writes, l.changed, l.newer = l.writes + 1, true, true
    l.seen, l.booked = now, l.booked - ahead
    for _, place in ipairs(l.places) do place[1] = place[1] - ahead end
    if l.held > 0 then l.held = l.held - ahead end
    if l.began then l.began = l.began - ahead end
    if l.kind.move then l.kind.move(l, -ahead) end
  end
  l.now = math.max(now, l.seen)
  l.at = math.max(l.now, l.booked, l.held)
end

-- The value of a limit, with what this call changed.
local function value_of(l)
  if not l.newer then return l.value or '' end
  local value = struct.pack('>ddddd', l.writes, l.seen, l.booked, l.held, #l.places)
  for _, place in ipairs(l.places) do value = value .. struct.pack('>dd', place[1], place[2]) end
  l.value, l.newer = value .. l.kind.value(l), false
  return l.value
end

-- A change of a limit, which is written at the end.
local function change(l)
  l.writes, l.seen, l.changed, l.newer = l.writes + 1, l.now, true, true
  l.at = math.max(l.now, l.booked, l.held)
end

local function write(l)
  local value = value_of(l)
  local expires = math.max(l.kind.expires(l), l.booked, l.held) - now
  local ttl = math.max(1, whole_up(math.max(0, expires), 1000)) + kept
  redis.call('SET', l.key, value, 'PX', ttl)
end

local limits = {}
for i = 1, #KEYS do
  local numbers, booking = ARGV[3 * i + 1], ARGV[3 * i + 2]
  local l = {key = KEYS[i], kind = kinds[ARGV[3 * i]], booking = booking}
  l.n, l.longest = struct.unpack('>dd', numbers)
  l.terms = {struct.unpack('>' .. ('d'):rep(#numbers / 8 - 2), numbers, 17)}
  l.value = redis.call('GET', l.key)
  read(l, l.value)
  limits[i] = l
end

local function write_changed()
  for _, l in ipairs(limits) do
    if l.changed then write(l) end
  end
end

-- The reply: an answer, and six numbers for each limit: how many permits are available; in which
-- time it is full, and one permit is due; how long it is still paused; the permits of this request;
-- another number. -1 is never.
local function reply(answer, wait, tightest, due, other)
  local told = {answer, wait, tightest, due}
  for i = 1, #limits do
    local l, k = limits[i], 6 * i
    local at = math.max(l.now, l.booked, l.held)
    local available, full = l.kind.left(l, at)
    local next_at = at
    if at > l.now or available == 0 then next_at = l.kind.due(l, at, 1) end
    told[k - 1] = at > l.now and 0 or available
    told[k] = full and math.max(0, full - now) or -1
    told[k + 1] = next_at and (next_at > l.now and next_at - now or 0) or -1
    told[k + 2] = math.max(0, l.held - now)
    told[k + 3] = l.n
    told[k + 4] = other and other[i] or 0
  end
  return told
end

-- Which free booking of a limit has an instant and the size of its request.
local function place_of(l, due)
  for i, free in ipairs(l.places) do
    if free[1] == due and free[2] == l.n and due >= l.held then return i end
  end
end

-- The earliest instant of which each limit has a free booking for its request.
local function free_booking()
  local earliest
  local first
  for _, l in ipairs(limits) do
    if l.n > 0 then first = first or l end
  end
  for _, free in ipairs(first.places) do
    local all = not earliest or free[1] < earliest
    for _, l in ipairs(limits) do
      all = all and (l.n == 0 or place_of(l, free[1]) ~= nil)
    end
    if all then earliest = free[1] end
  end
  return earliest
end

-- Decides about one request, as if it were alone in its call. `is_last`: no other one follows.
local function reserve(longest, shadow, is_last)
  local function refusal(wait, tightest)
    return reply(shadow and 2 or 0, wait, tightest, 0)
  end
  -- A request for up to a number takes what all limits have that it does not name.
  local there
  for _, l in ipairs(limits) do
    if l.most > l.n then
      local available = l.at > l.now and 0 or l.kind.left(l, l.at)
      there = math.min(there or l.most, math.max(l.n, available))
    end
  end
  for _, l in ipairs(limits) do
    if l.most > l.n then l.n = there end
  end
  local due, tightest, asks = now, 0, false
  for i, l in ipairs(limits) do
    if l.n > 0 then
      asks = true
      local one = l.kind.due(l, l.at, l.n)
      if not one then return refusal(-1, i) end
      -- A limit whose clock stands still grants now.
      if one > l.now and one > due then due, tightest = one, i end
    end
  end
  if not asks then return reply(0, -1, 0, 0) end
  local free = due > now and free_booking()
  if free then due = free end
  local wait = due - now
  for _, l in ipairs(limits) do
    if l.n > 0 and wait > math.min(longest, l.longest) then return refusal(wait, tightest) end
  end
  local before = {}
  for i, l in ipairs(limits) do
    if wait > 0 then
      local value = value_of(l)
      before[i] = (is_last or #value <= MOST_BEFORE) and value or ''
    end
    if l.n > 0 and free then
      table.remove(l.places, place_of(l, free))
    elseif l.n > 0 then
      l.kind.take(l, math.max(due, l.at), l.n)
      l.shift = 0
    end
    if l.n > 0 then change(l) end
  end
  local told = reply(1, wait, tightest, due)
  for _, value in ipairs(before) do told[#told + 1] = value end
  return told
end

-- Gives back the bookings of the requests for `l.n` permits of each limit at one instant, if that is
-- still to come. `before` has the value of each limit from before the booking.
local function give_back(place, before)
  if now >= place then return false end
  for i, l in ipairs(limits) do
    if l.n > 0 and l.value then
      local writes = before[i] ~= '' and struct.unpack('>d', before[i]) or 0
      if writes + 1 == l.writes and l.booked == place then
        -- Nothing was written since the booking. The number of writes is that from before, too, so
        -- that the booking before this one can be given back likewise.
        read(l, before[i] ~= '' and before[i] or nil)
        l.writes = writes - 1
      elseif #l.places < MOST_FREE then
        l.places[#l.places + 1] = {place, l.n}
      end
      change(l)
    end
  end
  return true
end

if operation == 'reserve' then
  local requests, told = ARGV[3 * #KEYS + 3], {}
  for first = 3 * #KEYS + 4, #ARGV, 1 + #KEYS do
    local before = {}
    for i, l in ipairs(limits) do
      l.n, before[i] = struct.unpack('>d', ARGV[first], 1 + 8 * i), ARGV[first + i]
    end
    give_back(struct.unpack('>d', ARGV[first]), before)
  end
  local size = 16 + 16 * #KEYS
  for first = 1, #requests, size do
    local longest, shadow = struct.unpack('>dd', requests, first)
    for i, l in ipairs(limits) do l.n, l.most = struct.unpack('>dd', requests, first + 16 * i) end
    told[#told + 1] = reserve(longest, shadow == 1, first + size > #requests)
  end
  write_changed()
  return told
end

if operation == 'back' then
  local before = {}
  for i, l in ipairs(limits) do before[i] = l.booking end
  if not give_back(place, before) then return reply(0, 0, 0, 0) end
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
    local at = math.max(l.now, l.booked)
    if l.n > 0 and l.value and place <= at then
      l.kind.give(l, at, l.n, place)
      change(l)
    end
  end
elseif operation == 'keep' then
  local taken = {}
  for i, l in ipairs(limits) do
    taken[i] = l.at > l.now and 0 or math.max(0, l.kind.left(l, l.at) - l.n)
    if taken[i] > 0 then
      l.kind.take(l, l.at, taken[i])
      change(l)
    end
  end
  write_changed()
  return reply(1, 0, 0, 0, taken)
elseif operation == 'pause' then
  -- For the longest wait; the stock stays where the flag says so.
  for _, l in ipairs(limits) do
    local till = math.max(l.held, now + longest)
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
  return reply(1, 0, 0, 0, held)
elseif operation == 'reset' then
  redis.call('DEL', unpack(KEYS))
  for _, l in ipairs(limits) do read(l, nil) end
  return reply(1, 0, 0, 0)
end

write_changed()
return reply(1, 0, 0, 0)
