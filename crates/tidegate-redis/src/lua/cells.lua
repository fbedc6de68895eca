-- Sliding window of cells: the sum of the current cell and the cells before it.
--
--   | term | name   | unit    | meaning                                                         |
--   |------|--------|---------|-----------------------------------------------------------------|
--   | 1    | limit  | permits | of as many cells in a row                                       |
--   | 2    | length | us      | of a cell                                                       |
--   | 3    | offset | us      | of the cells, after those of Unix time                          |
--   | 4    | cells  | 1       | at most 128                                                     |
--
--   | state  | name   | unit    | meaning                                                       |
--   |--------|--------|---------|---------------------------------------------------------------|
--   | 1      | length | us      | of a cell                                                     |
--   | 2..    | counts | permits | of each cell, the oldest first, the last one that of `booked`; |
--   |        |        |         | 32 bits each                                                  |
--
-- Exactness. Only sums and remainders of integers below 2^53.
kinds.cells = {
  read = function(l, value)
    local t = l.terms
    l.counts, l.span = {}, t[2] * t[4]
    for i = 1, t[4] do l.counts[i] = 0 end
    if value then
      local cells = (#value - 48 - 16 * l.free) / 4
      local counts = {struct.unpack('>' .. ('I4'):rep(cells), value, 49 + 16 * l.free)}
      -- The last number is where the unpacking ended.
      counts[cells + 1] = nil
      if struct.unpack('>d', value, 41 + 16 * l.free) == t[2] and cells == t[4] then
        l.counts = counts
      else
        -- Other cells: what was counted counts as of the newest one.
        local sum = 0
        for i = 1, cells do sum = sum + counts[i] end
        l.counts[t[4]] = math.min(2^32 - 1, sum)
      end
    end
  end,

  number = function(l, at)
    return math.floor((at - l.terms[3]) / l.terms[2])
  end,

  -- How many of the oldest cells have dropped out at an instant, and the sum of the others.
  open = function(l, at)
    local cells = l.terms[4]
    local gone = math.min(cells, kinds.cells.number(l, at) - kinds.cells.number(l, l.booked))
    local sum = 0
    for i = gone + 1, cells do sum = sum + l.counts[i] end
    return gone, sum
  end,

  -- When the i-th cell drops out.
  ends = function(l, i)
    return (kinds.cells.number(l, l.booked) + i) * l.terms[2] + l.terms[3]
  end,

  due = function(l, at, n)
    local limit = l.terms[1]
    if n > limit then return nil end
    local gone, sum = kinds.cells.open(l, at)
    local due = at
    while sum + n > limit do
      gone = gone + 1
      sum = sum - l.counts[gone]
      due = kinds.cells.ends(l, gone)
    end
    return due
  end,

  take = function(l, at, n)
    local cells = l.terms[4]
    local gone = kinds.cells.open(l, at)
    if gone > 0 then
      for i = 1, cells do l.counts[i] = l.counts[i + gone] or 0 end
    end
    l.counts[cells] = math.min(2^32 - 1, l.counts[cells] + n)
    l.booked = at
  end,

  give = function(l, at, n, due)
    if kinds.cells.number(l, at) - kinds.cells.number(l, due) >= l.terms[4] then return end
    kinds.cells.take(l, at, 0)
    -- Off the oldest cells, as in one process: they are forgotten first.
    for i = 1, l.terms[4] do
      local given = math.min(n, l.counts[i])
      l.counts[i] = l.counts[i] - given
      n = n - given
    end
  end,

  left = function(l, at)
    local gone, sum = kinds.cells.open(l, at)
    local full = at
    for i = gone + 1, l.terms[4] do
      if l.counts[i] > 0 then full = kinds.cells.ends(l, i) end
    end
    return math.max(0, l.terms[1] - sum), full
  end,

  expires = function(l)
    return kinds.cells.ends(l, l.terms[4])
  end,

  value = function(l)
    return struct.pack('>d' .. ('I4'):rep(l.terms[4]), l.terms[2], unpack(l.counts))
  end,
}
