-- Sliding log: the instant of each of the last permits. Exact in any span.
--
--   | term | name   | unit    | meaning                                                         |
--   |------|--------|---------|-----------------------------------------------------------------|
--   | 1    | limit  | permits | of any window                                                   |
--   | 2    | length | us      | of the window                                                   |
--   | 3    | room   | permits | the limit or more, at most 4,096; as many instants are kept,     |
--   |      |        |         | and as many more of permits that are owed                        |
--
--   | state | name   | unit | meaning                                                           |
--   |-------|--------|------|-------------------------------------------------------------------|
--   | 1     | base   | us   | is added to each instant                                          |
--   | 2..   | times  | us   | the instant of each permit, the oldest first                      |
--
-- Exactness. Instants rise, so the one that decides about n permits is found at once: a request is
-- due when the permit `limit - n` before the last one is a window old.
kinds.log = {
  read = function(l, value)
    l.base, l.times = 0, ''
    if value then
      l.base = struct.unpack('>d', value, 41 + 16 * l.free)
      l.times = value:sub(49 + 16 * l.free)
    end
    l.span = l.terms[2]
  end,

  -- When the i-th permit counts no more.
  over = function(l, i)
    return l.base + struct.unpack('>d', l.times, 8 * i - 7) + l.terms[2]
  end,

  -- How many of the oldest permits count no more at an instant.
  gone = function(l, at)
    local low, high = 0, #l.times / 8
    while low < high do
      local middle = math.ceil((low + high) / 2)
      if kinds.log.over(l, middle) <= at then low = middle else high = middle - 1 end
    end
    return low
  end,

  due = function(l, at, n)
    local t = l.terms
    if n > t[1] then return nil end
    local i = #l.times / 8 - (t[1] - n)
    return i < 1 and at or math.max(at, kinds.log.over(l, i))
  end,

  take = function(l, at, n)
    local room = l.terms[3]
    local times = l.times .. struct.pack('>d', at - l.base):rep(math.min(n, room))
    local counts = #l.times / 8 - kinds.log.gone(l, at) + n
    l.times = times:sub(-8 * math.min(2 * room, math.max(room, counts)))
    l.booked = at
  end,

  give = function(l, at, n, due)
    if due + l.terms[2] <= at then return end
    -- The oldest ones, as in one process: they are forgotten first.
    local gone = kinds.log.gone(l, at)
    l.times = l.times:sub(8 * (gone + n) + 1)
    l.booked = at
  end,

  move = function(l, by)
    l.base = l.base + by
  end,

  left = function(l, at)
    local count = #l.times / 8
    local gone = kinds.log.gone(l, at)
    return math.max(0, l.terms[1] - (count - gone)), count > gone and kinds.log.over(l, count) or at
  end,

  expires = function(l)
    return #l.times > 0 and kinds.log.over(l, #l.times / 8) or l.booked
  end,

  value = function(l)
    return struct.pack('>d', l.base) .. l.times
  end,
}
