-- What a limit has at least at each instant up to its last booking. A request may be granted before
-- bookings ahead where permits came back: as far as the limit has room at all of these instants. So
-- while bookings lie ahead a limit has at most four marks, of these numbers:
--
--   | number | name    | unit    | meaning                                                       |
--   |--------|---------|---------|---------------------------------------------------------------|
--   | 1      | instant | us      | of a booking, or of the call that made the first one          |
--   | 2      | least   | units   | a bucket has no lower level from the mark before to the        |
--   |        |         |         | instant, and from then on it fills                             |
--   |        |         | permits | a window counts no more than -least, and from then on as well |
--
-- The bookings between two marks are those of the second one. Of too many marks, those two become
-- one that are nearest. The last booking is no mark: the state is as of its instant. What comes back
-- only raises what a limit has. Windows have marks where calls decide several limits.

local MOST_MARKS = 4

-- Adds a mark behind the others.
local function mark(l, instant, least)
  local marks = l.marks
  -- A mark has passed when the next one has.
  while marks[3] and marks[3] <= l.now do
    table.remove(marks, 1)
    table.remove(marks, 1)
  end
  local last = #marks + 2
  marks[last - 1], marks[last] = instant, least
  if last > 2 * MOST_MARKS then
    local nearest = 2
    for i = 4, last - 2, 2 do
      if math.abs(marks[i + 2] - marks[i]) < math.abs(marks[nearest + 2] - marks[nearest]) then nearest = i end
    end
    marks[nearest + 2] = min(marks[nearest], marks[nearest + 2])
    table.remove(marks, nearest)
    table.remove(marks, nearest - 1)
  end
end

-- The least of the marks from now on. `filled` tells what is there now of a mark that has passed.
local function least_mark(l, filled)
  local marks, found = l.marks, MOST
  for i = 1, #marks, 2 do
    if marks[i] >= l.now then
      found = min(found, marks[i + 1])
    elseif (marks[i + 2] or l.booked) > l.now then
      found = min(found, filled and filled(l, marks[i], marks[i + 1]) or marks[i + 1])
    end
  end
  return found
end

-- Permits that came back, or are granted before the last booking, change what there is.
local function raise_marks(l, by)
  local marks = l.marks
  for i = 2, #marks, 2 do marks[i] = marks[i] + by end
end

-- What a window counts at the instant of its last booking or later. Of one that is full it is not
-- known: it may owe permits.
local function counted(l, at)
  local left = l.kind.left(l, at)
  return left > 0 and l.terms[1] - left or MOST
end

-- Takes permits behind the last booking.
local function take(l, at, n)
  -- A bucket marks its bookings itself.
  if at > l.now and l.kind ~= kinds[BUCKET] then
    if l.booked <= l.now then
      l.marks = #KEYS > 1 and l.held <= l.now and {l.now, -counted(l, l.now)} or nil
    elseif l.marks and at > l.booked then
      mark(l, l.booked, -counted(l, l.booked))
    end
  end
  l.kind.take(l, at, n)
end

-- How many permits may be granted now, before the bookings ahead.
local function room(l)
  if l.booked <= l.now or l.held > l.now then return 0 end
  if l.kind.room then return l.kind.room(l) end
  return l.marks and max(0, l.terms[1] + min(least_mark(l), -counted(l, l.booked))) or 0
end
