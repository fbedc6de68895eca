-- Token bucket, leaky bucket and SmoothBursty: a level that rises with time, and never above a cap.
--
--   | term | name  | unit                | meaning                                              |
--   |------|-------|---------------------|------------------------------------------------------|
--   | 1    | refill| units per us or step| what comes in                                        |
--   | 2    | price | units               | of one permit                                        |
--   | 3    | cap   | units               | the level never rises above it                       |
--   | 4    | full  | units               | a limiter of this level is told as full               |
--   | 5    | start | units               | the level of a new state                             |
--   | 6    | most  | permits             | the most that can be available                       |
--   | 7    | mode  |                     | 0: a request of more than the cap is never due;      |
--   |      |       |                     | 1: it waits for its own price; 2: the next one pays  |
--   | 8    | step  | us                  | 0, or refill comes in once per step of Unix time      |
--   | 9    | offset| us                  | of the steps                                         |
--   | 10   | linger| us                  | how much longer a full state is kept                  |
--
--   | state | name  | unit  | meaning                                                           |
--   |-------|-------|-------|-------------------------------------------------------------------|
--   | 1     | level | units | at `booked`; negative is a debt, -2^53 a debt for ever            |
--   | 2     | unit  |       | the price (mode 2: the refill) by which the level counts          |
--   | 3     | spent | 1     | 1 if the stock is spent when the pause ends: until then the level |
--   |       |       |       | is the one from before, for a pause that is ended sooner          |
--   | 4     | shift | us    | how much later `booked` is than the last grant, by a pause         |
--   | 5..   | peaks |       | at most 8: of each its instant, which rises, and a level, which    |
--   |       |       |       | falls: no grant of this instant or later, up to the next peak,     |
--   |       |       |       | found more                                                        |
--
-- Refund. Without a grant each level since would be higher by its price, unless it met the cap. So
-- it gives back no more than the least room that any later grant found, or there is now. The
-- bookings ahead are such grants. Of more than 8 peaks the two that are nearest in level become one,
-- of the later instant and the higher level: it costs a refund an eighth of the cap at most.
--
-- Pause. Nothing comes in, so at its end the level is the one from before, as of an instant that is
-- as much later as the pause was long. `hold` moves `booked` to the instant for the end that is
-- foreseen, and an earlier end moves it back by the rest, but never behind a grant.
--
-- Exactness. A rate of p permits in q us, reduced, has a refill of p and a price of q: the level is
-- an integer, and time adds p for each us. Nothing is rounded but due instants, up to whole us. In
-- the us of its due instant a bucket may gain p - 1 units more than the request pays, and a small
-- bucket would overflow. So the client adds p - 1 units to the cap, less than a us brings.
local MOST_PEAKS = 8

kinds.bucket = {
  read = function(l, value)
    local t = l.terms
    local unit = t[7] == 2 and t[1] or t[2]
    l.spent, l.shift, l.peaks = 0, 0, {}
    if value then
      local level, old
      level, old, l.spent, l.shift = struct.unpack('>dddd', value, 41 + 16 * l.free)
      local first = 73 + 16 * l.free
      for i = first, #value - 15, 16 do l.peaks[#l.peaks + 1] = {struct.unpack('>dd', value, i)} end
      -- Other terms: a bucket keeps its permits, and SmoothBursty its times.
      if old ~= unit and old > 0 and unit > 0 and level > -MOST then
        local count = math.floor(level / old)
        local rest = (level - count * old) * unit
        rest = rest < MOST and whole(rest, old) or math.max(0, math.floor(rest / old) - 1)
        level = count * unit + rest
      end
      if old ~= unit then
        for _, peak in ipairs(l.peaks) do peak[2] = MOST end
      end
      l.level = level
    else
      l.level = t[5]
    end
    l.unit = unit
    l.span = t[1] == 0 and YEARS or whole_up(t[3] + t[2], t[1]) * math.max(1, t[8])
  end,

  -- The cap for a request of n permits.
  cap = function(l, n)
    return l.terms[7] == 1 and math.max(l.terms[3], n * l.terms[2]) or l.terms[3]
  end,

  -- The level at `booked`.
  base = function(l)
    local empty = l.terms[7] == 2 and -l.terms[2] or 0
    return l.spent == 1 and math.min(l.level, empty) or l.level
  end,

  -- Whether the level at an instant is to stay the one from before the pause.
  stands = function(l, at)
    return l.spent == 1 and l.now < l.held and at == l.booked
  end,

  -- The level at an instant.
  level_at = function(l, at, cap)
    local t = l.terms
    local base = kinds.bucket.base(l)
    if base <= -MOST then return base end
    local refills
    if t[8] > 0 then
      refills = math.floor((at - t[9]) / t[8]) - math.floor((l.booked - t[9]) / t[8])
    else
      refills = at - l.booked
    end
    -- So many refills pay any debt and fill the cap, and their product is exact.
    if t[1] > 0 then refills = math.min(refills, math.floor(2 * MOST / t[1])) end
    return math.min(cap, base + refills * t[1])
  end,

  due = function(l, at, n)
    local t = l.terms
    local cap = kinds.bucket.cap(l, n)
    local level = kinds.bucket.level_at(l, at, cap)
    local need = t[7] == 2 and 0 or n * t[2]
    if level <= -MOST or n * t[2] > MOST or level - n * t[2] <= -MOST or need > cap then return nil end
    if level >= need then return at end
    if t[1] == 0 then return nil end
    local refills = whole_up(need - level, t[1])
    if t[8] > 0 then
      return t[9] + (math.floor((at - t[9]) / t[8]) + refills) * t[8]
    end
    return at + refills
  end,

  -- Notes the level that a grant found.
  peak = function(l, at, level)
    local peaks = l.peaks
    while #peaks > 0 and (peaks[#peaks][1] >= at or peaks[#peaks][2] <= level) do
      level = math.max(level, peaks[#peaks][2])
      peaks[#peaks] = nil
    end
    peaks[#peaks + 1] = {at, level}
    if #peaks > MOST_PEAKS then
      local nearest = 1
      for i = 2, MOST_PEAKS do
        if peaks[i][2] - peaks[i + 1][2] < peaks[nearest][2] - peaks[nearest + 1][2] then nearest = i end
      end
      peaks[nearest + 1][2] = peaks[nearest][2]
      table.remove(peaks, nearest)
    end
  end,

  take = function(l, at, n)
    if not kinds.bucket.stands(l, at) then
      l.level, l.spent = kinds.bucket.level_at(l, at, kinds.bucket.cap(l, n)), 0
    end
    kinds.bucket.peak(l, at, l.level)
    l.level = l.level - n * l.terms[2]
    if l.level <= -MOST then l.level = -2 * MOST end
    l.booked = at
  end,

  give = function(l, at, n, due)
    -- Time that idled beyond the cap stays: a larger request of mode 1 may count it.
    local stands = kinds.bucket.stands(l, at)
    local level = stands and l.level or kinds.bucket.level_at(l, at, MOST)
    local room = l.terms[3] - level
    for _, peak in ipairs(l.peaks) do
      if peak[1] > due then room = math.min(room, l.terms[3] - peak[2]) end
    end
    if room <= 0 or level <= -MOST then return end
    local given = math.min(n * l.terms[2], room)
    l.level, l.booked, l.spent = level + given, at, stands and 1 or 0
    -- Later grants would have found as much more.
    local peaks = l.peaks
    l.peaks = {}
    for _, peak in ipairs(peaks) do
      kinds.bucket.peak(l, peak[1], peak[2] + (peak[1] > due and given or 0))
    end
  end,

  hold = function(l, till, keep)
    -- The level stands still until then.
    if not kinds.bucket.stands(l, l.at) then
      l.level, l.spent = kinds.bucket.level_at(l, l.at, kinds.bucket.cap(l, 1)), 0
    end
    if not keep then l.spent = 1 end
    local more = math.max(0, till - math.max(l.now, l.held))
    l.shift = (l.now < l.held and l.shift or 0) + more
    l.booked = l.at + more
  end,

  resume = function(l)
    l.booked, l.spent = l.booked - math.min(l.held - l.now, l.shift), 0
    l.shift = 0
  end,

  move = function(l, by)
    for _, peak in ipairs(l.peaks) do peak[1] = peak[1] + by end
  end,

  left = function(l, at)
    local t = l.terms
    local level = kinds.bucket.level_at(l, at, kinds.bucket.cap(l, 1))
    local available = 0
    if level >= 0 and (t[1] > 0 or t[7] ~= 2) then
      available = math.min(t[6], whole(level, t[2]) + (t[7] == 2 and 1 or 0))
    end
    if level >= t[4] then return available, at end
    if t[1] == 0 or level <= -MOST then return available, nil end
    local refills = whole_up(t[4] - level, t[1])
    if t[8] > 0 then
      return available, t[9] + (math.floor((at - t[9]) / t[8]) + refills) * t[8]
    end
    return available, at + refills
  end,

  -- Until it is as full as a new state, its cap included.
  expires = function(l)
    local t = l.terms
    local level = kinds.bucket.base(l)
    if t[1] == 0 or level <= -MOST then return l.booked + 10 * YEARS end
    return l.booked + (whole_up(math.max(0, t[3] - level), t[1]) + 1) * math.max(1, t[8]) + t[10]
  end,

  value = function(l)
    local value = struct.pack('>dddd', l.level, l.unit, l.spent, l.shift)
    for _, peak in ipairs(l.peaks) do value = value .. struct.pack('>dd', peak[1], peak[2]) end
    return value
  end,
}
