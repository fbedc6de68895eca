-- What a limit has at least at each instant up to its last booking. A request may be granted before
-- bookings ahead if permits were given back, as far as the limit has room at all of these instants.
-- So while bookings lie ahead a limit has at most four marks, of these numbers:
--
--   | number | name    | unit    | meaning                                                       |
--   |--------|---------|---------|---------------------------------------------------------------|
--   | 1      | instant | us      | of a booking, or of the call that made the first one          |
--   | 2      | least   | units   | a bucket has no lower level from the mark before to the        |
--   |        |         |         | instant, and from then on it fills                             |
--   |        |         | permits | a window counts at most -least permits, from then on as well  |
--
-- The bookings between two marks belong to the second one. If there are too many marks, the two
-- nearest become one. The last booking is no mark: the state is as of its instant. Permits that are
-- given back only raise what a limit has. Windows have marks only if calls decide several limits.

-- Most calls need none of this, and each function takes time to create.
local marks
local function need_marks()
  if marks then return end
  local MAX_MARKS = 4
  marks = {}

  -- Returns numbers of a value, and the position at which they end.
  function marks.read(value, first, n)
    local numbers = {parse('>' .. ('d'):rep(n), value, first)}
    return numbers, table.remove(numbers)
  end

  function marks.text(numbers)
    return pack('>' .. ('d'):rep(#numbers), unpack(numbers))
  end

  -- Adds a mark behind the others.
  function marks.note(l, instant, least)
    local list = l.marks
    -- A mark has passed when the next one has.
    while list[3] and list[3] <= l.now do
      table.remove(list, 1)
      table.remove(list, 1)
    end
    local last = #list + 2
    list[last - 1], list[last] = instant, least
    if last > 2 * MAX_MARKS then
      local nearest = 2
      for i = 4, last - 2, 2 do
        if math.abs(list[i + 2] - list[i]) < math.abs(list[nearest + 2] - list[nearest]) then nearest = i end
      end
      list[nearest + 2] = min(list[nearest], list[nearest + 2])
      table.remove(list, nearest)
      table.remove(list, nearest - 1)
    end
  end

  -- Returns the least of the marks from now on. `filled` returns the present level of a mark that
  -- has passed.
  function marks.least(l, filled)
    local list, found = l.marks, MOST
    for i = 1, #list, 2 do
      if list[i] >= l.now then
        found = min(found, list[i + 1])
      elseif (list[i + 2] or l.booked) > l.now then
        found = min(found, filled and filled(list[i], list[i + 1]) or list[i + 1])
      end
    end
    return found
  end

  -- Permits that were given back, or are granted before the last booking, change what a limit has.
  function marks.raise(l, by)
    local list = l.marks
    for i = 2, #list, 2 do list[i] = list[i] + by end
  end

  -- Returns how many permits a window counts at the instant of its last booking or later. For a
  -- full window this is unknown: it may owe permits.
  local function counted(l, at)
    local left = l.kind.left(l, at)
    return left > 0 and l.terms[1] - left or MOST
  end

  -- Takes permits behind the last booking, at an instant ahead.
  function marks.take(l, at, n)
    -- A bucket marks its bookings itself.
    if at > l.now and l.kind ~= kinds[BUCKET] then
      if l.booked <= l.now then
        l.marks = #KEYS > 1 and l.held <= l.now and {l.now, -counted(l, l.now)} or nil
      elseif l.marks and at > l.booked then
        marks.note(l, l.booked, -counted(l, l.booked))
      end
    end
    l.kind.take(l, at, n)
  end

  -- Returns how many permits may be granted now, before the bookings ahead.
  function marks.room(l)
    if l.booked <= l.now or l.held > l.now then return 0 end
    if l.kind.room then return l.kind.room(l) end
    return l.marks and max(0, l.terms[1] + min(marks.least(l), -counted(l, l.booked))) or 0
  end
end

if has_back then need_marks() end
