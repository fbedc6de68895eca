-- Sliding window of cells: the sum of the current cell and the cells before it.
--
--   | term | name   | unit    | meaning                                                         |
--   |------|--------|---------|-----------------------------------------------------------------|
--   | 1    | limit  | permits | of `cells` cells in a row                                       |
--   | 2    | length | us      | of a cell                                                       |
--   | 3    | offset | us      | of the cells, relative to those of Unix time                    |
--   | 4    | cells  | 1       | at most 128                                                     |
--
--   | state  | name   | unit    | meaning                                                       |
--   |--------|--------|---------|---------------------------------------------------------------|
--   | 1..    | counts | permits | of each cell, the oldest first, the last one that of `booked`; |
--   |        |        |         | 32 bits each                                                  |
--
-- Exactness. Only sums and remainders of integers below 2^53.
do
  local function number(t, at)
    return floor((at - t[3]) / t[2])
  end

  -- Returns how many of the oldest cells have dropped out at an instant, and the sum of the others.
  local function open(l, at)
    local t, counts = l.terms, l.counts
    local gone, sum = min(t[4], number(t, at) - number(t, l.booked)), 0
    for i = gone + 1, t[4] do sum = sum + counts[i] end
    return gone, sum
  end

  -- Returns the instant at which the i-th cell drops out.
  local function ends(l, i)
    local t = l.terms
    return (number(t, l.booked) + i) * t[2] + t[3]
  end

  local function take(l, at, n)
    local cells, counts = l.terms[4], l.counts
    local gone = min(cells, number(l.terms, at) - number(l.terms, l.booked))
    if gone > 0 then
      for i = 1, cells do counts[i] = counts[i + gone] or 0 end
    end
    counts[cells] = min(2^32 - 1, counts[cells] + n)
    l.booked = at
  end

  kinds[CELLS] = {
    terms = '>dddd',

    read = function(l, value)
      local t = l.terms
      if value then
        -- A limit with other cells has a key of another name.
        l.counts = {parse('>' .. ('I4'):rep(t[4]), value, l.first)}
        -- The last number is the position at which the parsing ended.
        l.counts[t[4] + 1] = nil
      else
        l.counts = {}
        for i = 1, t[4] do l.counts[i] = 0 end
      end
    end,

    span = function(l)
      return l.terms[2] * l.terms[4]
    end,

    due = function(l, at, n)
      local limit = l.terms[1]
      if n > limit then return nil end
      local gone, sum = open(l, at)
      local due = at
      while sum + n > limit do
        gone = gone + 1
        sum = sum - l.counts[gone]
        due = ends(l, gone)
      end
      return due
    end,

    take = take,

    left = function(l, at)
      local gone, sum = open(l, at)
      local full = at
      for i = l.terms[4], gone + 1, -1 do
        if l.counts[i] > 0 then
          full = ends(l, i)
          break
        end
      end
      return max(0, l.terms[1] - sum), full
    end,

    expires = function(l)
      return ends(l, l.terms[4])
    end,

    value = function(l)
      return pack('>' .. ('I4'):rep(l.terms[4]), unpack(l.counts))
    end,
  }

  if has_back then
    -- Until the end of its cell.
    kinds[CELLS].lasts = function(l, due)
      local t = l.terms
      return due + t[2] - (due - t[3]) % t[2]
    end

    kinds[CELLS].owed = function(l)
      local _, sum = open(l, l.booked)
      return max(0, sum - l.terms[1])
    end

    kinds[CELLS].lend = function(l, at, n)
      if at >= l.booked then return take(l, at, n) end
      local i = l.terms[4] - (number(l.terms, l.booked) - number(l.terms, at))
      if i > 0 then l.counts[i] = min(2^32 - 1, l.counts[i] + n) end
      return true
    end

    kinds[CELLS].give = function(l, at, n, due)
      local t = l.terms
      if number(t, at) - number(t, due) >= t[4] then return end
      take(l, at, 0)
      -- The permits are taken off the oldest cells, as in one process, which forgets these first.
      for i = 1, t[4] do
        local given = min(n, l.counts[i])
        l.counts[i] = l.counts[i] - given
        n = n - given
      end
    end
  end
end
