-- Fixed window: so many permits in each window of time.
--
--   | term | name   | unit    | meaning                                                         |
--   |------|--------|---------|-----------------------------------------------------------------|
--   | 1    | limit  | permits | of one window                                                   |
--   | 2    | length | us      | of the window                                                   |
--   | 3    | offset | us      | of the windows, after those of Unix time; -1: a window begins   |
--   |      |        |         | with its first grant                                            |
--
--   | state | name  | unit    | meaning                                                         |
--   |-------|-------|---------|-----------------------------------------------------------------|
--   | 1     | began | us      | when the window of `booked` began                               |
--   | 2     | used  | permits | of that window; at most 2^52                                    |
--
-- Exactness. Only sums and remainders of integers below 2^53.
kinds.fixed = {
  read = function(l, value)
    l.began, l.used = l.booked, 0
    if value then l.began, l.used = struct.unpack('>dd', value, 41 + 16 * l.free) end
    l.span = l.terms[2]
  end,

  -- The window that is open at an instant: its beginning, and how many permits of it are used.
  open = function(l, at)
    local t = l.terms
    if t[3] < 0 then
      if l.used == 0 or at >= l.began + t[2] then return at, 0 end
      return l.began, l.used
    end
    local began = at - (at - t[3]) % t[2]
    return began, l.booked >= began and l.used or 0
  end,

  due = function(l, at, n)
    local t = l.terms
    if n > t[1] then return nil end
    local began, used = kinds.fixed.open(l, at)
    return used + n <= t[1] and at or began + t[2]
  end,

  take = function(l, at, n)
    l.began, l.used = kinds.fixed.open(l, at)
    l.used = math.min(MOST, l.used + n)
    l.booked = at
  end,

  give = function(l, at, n, due)
    local began = kinds.fixed.open(l, at)
    if due >= math.max(began, l.began) then l.used = math.max(0, l.used - n) end
  end,

  left = function(l, at)
    local t = l.terms
    -- A limit of no permits is never full.
    if t[1] == 0 then return 0, nil end
    local began, used = kinds.fixed.open(l, at)
    return math.max(0, t[1] - used), used == 0 and at or began + t[2]
  end,

  expires = function(l)
    return l.began + l.terms[2]
  end,

  value = function(l)
    return struct.pack('>dd', l.began, l.used)
  end,
}
