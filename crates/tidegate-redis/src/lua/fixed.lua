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
do
  -- The window that is open at an instant: its beginning, and how many permits of it are used.
  local function open(l, at)
    local t = l.terms
    if t[3] < 0 then
      if l.used == 0 or at >= l.began + t[2] then return at, 0 end
      return l.began, l.used
    end
    local began = at - (at - t[3]) % t[2]
    return began, l.booked >= began and l.used or 0
  end

  kinds[FIXED] = {
    terms = '>ddd',

    read = function(l, value)
      if value then
        l.began, l.used = parse('>dd', value, l.first)
      else
        l.began, l.used = l.booked, 0
      end
    end,

    due = function(l, at, n)
      local t = l.terms
      if n > t[1] then return nil end
      local began, used = open(l, at)
      return used + n <= t[1] and at or began + t[2]
    end,

    take = function(l, at, n)
      l.began, l.used = open(l, at)
      l.used = min(MOST, l.used + n)
      l.booked = at
    end,

    move = function(l, by)
      l.began = l.began + by
    end,

    left = function(l, at)
      local t = l.terms
      -- A limit of no permits is never full.
      if t[1] == 0 then return 0, nil end
      local began, used = open(l, at)
      return max(0, t[1] - used), used == 0 and at or began + t[2]
    end,

    expires = function(l)
      return l.began + l.terms[2]
    end,

    value = function(l)
      return pack('>dd', l.began, l.used)
    end,
  }

  -- Until the end of its window.
  kinds[FIXED].lasts = function(l, due)
    local t = l.terms
    local offset = t[3] < 0 and l.began or t[3]
    return due + t[2] - (due - offset) % t[2]
  end

  if has_back then
    kinds[FIXED].lend = function(l, at, n)
      if at >= l.booked then return kinds[FIXED].take(l, at, n) end
      if at >= l.began then l.used = min(MOST, l.used + n) end
      return true
    end
  end

  kinds[FIXED].give = function(l, at, n, due)
    local began = open(l, at)
    if due >= max(began, l.began) then l.used = max(0, l.used - n) end
  end
end
