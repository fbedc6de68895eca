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
do
  -- When the i-th permit counts no more.
  local function over(l, i)
    return l.base + parse('>d', l.times, 8 * i - 7) + l.terms[2]
  end

  -- How many of the oldest permits count no more at an instant.
  local function gone(l, at)
    local low, high = 0, #l.times / 8
    while low < high do
      local middle = math.ceil((low + high) / 2)
      if over(l, middle) <= at then low = middle else high = middle - 1 end
    end
    return low
  end

  kinds[LOG] = {
    terms = '>ddd',

    read = function(l, value)
      if value then
        local first = l.first
        l.base, l.times = parse('>d', value, first), value:sub(first + 8)
      else
        l.base, l.times = 0, ''
      end
    end,

    due = function(l, at, n)
      local t = l.terms
      if n > t[1] then return nil end
      local i = #l.times / 8 - (t[1] - n)
      return i < 1 and at or max(at, over(l, i))
    end,

    take = function(l, at, n)
      local room = l.terms[3]
      local times = l.times .. pack('>d', at - l.base):rep(min(n, room))
      local counts = #l.times / 8 - gone(l, at) + n
      l.times = times:sub(-8 * min(2 * room, max(room, counts)))
      l.booked = at
    end,

    move = function(l, by)
      l.base = l.base + by
    end,

    left = function(l, at)
      local count = #l.times / 8
      local gone = gone(l, at)
      return max(0, l.terms[1] - (count - gone)), count > gone and over(l, count) or at
    end,

    expires = function(l)
      return #l.times > 0 and over(l, #l.times / 8) or l.booked
    end,

    value = function(l)
      return pack('>d', l.base) .. l.times
    end,
  }

  kinds[LOG].give = function(l, at, n, due)
    if due + l.terms[2] <= at then return end
    -- The oldest ones, as in one process: they are forgotten first.
    l.times = l.times:sub(8 * (gone(l, at) + n) + 1)
    l.booked = at
  end
end
