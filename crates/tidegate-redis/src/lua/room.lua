-- How many permits a window counts while bookings lie ahead. A request of several limits may be
-- granted before these where permits came back to one of the limits: if all others have room for
-- it at each instant. So calls of several limits keep a bound of what their windows count, until no
-- booking lies ahead. A bucket has such a bound anyway, its `floor`.
--
--   | number | name  | unit    | meaning                                                         |
--   |--------|-------|---------|-----------------------------------------------------------------|
--   | 1      | high  | permits | no window counts more at an instant from now to `mark`          |
--   | 2      | mark  | us      | the instant of a booking                                        |
--   | 3      | rest  | permits | no window counts more at an instant from `mark` to `booked`     |
--
-- Without a grant a window never counts more than before. So the bound changes with bookings and
-- loans, and stays one when permits come back, and when bookings are undone.

-- What a window counts at the instant of its last booking or later. Of one that is full it is not
-- known: it may owe permits.
local function counted(l, at)
  local left = l.kind.left(l, at)
  return left > 0 and l.terms[1] - left or MOST
end

-- Takes permits behind the last booking.
local function take(l, at, n)
  if at <= l.now or #KEYS == 1 or l.held > l.now or l.kind == kinds[BUCKET] then
    return l.kind.take(l, at, n)
  end
  if l.booked <= l.now then
    l.high, l.mark, l.rest = counted(l, l.now), at, 0
  elseif l.high and l.now >= l.mark then
    -- The bookings up to `mark` have passed.
    l.high, l.mark, l.rest = l.rest, l.booked, counted(l, l.booked)
  end
  l.kind.take(l, at, n)
  if l.high then l.rest = max(l.rest, counted(l, at)) end
end

-- How many permits may be granted now, before the bookings ahead.
local function room(l)
  if l.held > l.now then return 0 end
  if l.kind.room then return l.kind.room(l) end
  if not l.high then return 0 end
  return max(0, l.terms[1] - max(l.rest, l.now < l.mark and l.high or 0))
end
