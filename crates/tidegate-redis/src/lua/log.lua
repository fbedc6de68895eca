-- Sliding log: the instants of the last permits. Exact in any span.
--
--   | term | name   | unit    | meaning                                                         |
--   |------|--------|---------|-----------------------------------------------------------------|
--   | 1    | limit  | permits | of any window                                                   |
--   | 2    | length | us      | of the window                                                   |
--   | 3    | room   | permits | the limit or more, at most 4,096: this many permits that no      |
--   |      |        |         | longer count are kept, and at most this many are owed           |
--
--   | state | name    | unit    | meaning                                                        |
--   |-------|---------|---------|----------------------------------------------------------------|
--   | 1     | base    | us      | is added to each instant                                       |
--   | 2     | till    | us      | until then permits that were forgotten may count: no request    |
--   |       |         |         | is due before                                                  |
--   | 3     | start   | permits | the sum before the first record, modulo 2^32                   |
--   | 4..   | instants| us      | of the records: all instants that have permits, 56 bits each    |
--   | ..    | sums    | permits | for each record all permits up to it, modulo 2^32; 32 bits each |
--
-- Sums rise, so the record that decides about n permits is found by bisection: a request is due
-- when the permit `limit - n` before the last one is a window old. If each request had one permit,
-- each permit has a record, which is found at once.
--
-- Giving back. The records have each booking, so the permits of a booking are taken out, and no
-- window counts more than before. A place stays in the records until it passes, is one of too many,
-- or is behind all bookings: `booked` is the last instant that has a booking. So records are kept
-- as long as they count now, even those that do not count at `booked`, which may go back.
--
-- Exactness. Instants are compared, and sums are subtracted modulo 2^32. All records together have
-- fewer than 2^27 permits.
do
  local TURN = 2^32
  -- More than count at once, permits owed included: a storm of as many bookings.
  local MAX_RECORDS = 16384

  local function instant(l, i)
    return l.base + parse('>I7', l.instants, 7 * i - 6)
  end

  -- Returns the instant from which the i-th record no longer counts.
  local function over(l, i)
    return instant(l, i) + l.terms[2]
  end

  -- Returns how many permits the first i records have.
  local function sum(l, i)
    return i > 0 and (parse('>I4', l.sums, 4 * i - 3) - l.start) % TURN or 0
  end

  -- Returns how many of the oldest records no longer count at an instant.
  local function gone(l, at)
    local low, high = 0, #l.sums / 4
    while low < high do
      local middle = math.ceil((low + high) / 2)
      if over(l, middle) <= at then low = middle else high = middle - 1 end
    end
    return low
  end

  -- Returns the first record up to which there are `permits` permits. Each record has at least one.
  local function with(l, permits)
    local last = #l.sums / 4
    local total = sum(l, last)
    if permits > total then return last + 1 end
    local low, high = max(1, last - (total - permits)), min(last, permits)
    while low < high do
      local middle = floor((low + high) / 2)
      if sum(l, middle) >= permits then high = middle else low = middle + 1 end
    end
    return low
  end

  -- Adds a number to each of the sums.
  local function shift(sums, by)
    local texts = {}
    for first = 1, #sums, 400 do
      local count = min(100, (#sums + 1 - first) / 4)
      local format = '>' .. ('I4'):rep(count)
      local numbers = {parse(format, sums, first)}
      for i = 1, count do numbers[i] = (numbers[i] + by) % TURN end
      texts[#texts + 1] = pack(format, unpack(numbers, 1, count))
    end
    return table.concat(texts)
  end

  -- Takes `n` permits out of the records from the i-th one on.
  local function cut(l, i, n)
    local instants, sums, before, last = l.instants, l.sums, sum(l, i - 1), #l.sums / 4
    n = min(n, sum(l, last) - before)
    local kept = with(l, before + n + 1)
    local head, rest = sums:sub(1, 4 * i - 4), sums:sub(4 * kept - 3)
    if #head < #rest then
      head, l.start = shift(head, n), (l.start + n) % TURN
    else
      rest = shift(rest, -n)
    end
    l.sums = head .. rest
    if i < kept then l.instants = instants:sub(1, 7 * i - 7) .. instants:sub(7 * kept - 6) end
  end

  -- Returns the record of an instant, and how many permits it has.
  local function find(l, at)
    local i = gone(l, at + l.terms[2])
    if i == 0 or instant(l, i) ~= at then return 0, 0 end
    return i, sum(l, i) - sum(l, i - 1)
  end

  -- Forgets the oldest records. `room` permits stay, and those that count now.
  local function forget(l, room)
    local last = #l.sums / 4
    local old = with(l, sum(l, last) - room + 1) - 1
    if old > 0 and over(l, old) > l.now then old = gone(l, l.now) end
    if last - old > MAX_RECORDS then
      old = last - MAX_RECORDS
      l.till = max(l.till, over(l, old))
    end
    if old > 0 then
      l.start = parse('>I4', l.sums, 4 * old - 3)
      l.instants, l.sums = l.instants:sub(7 * old + 1), l.sums:sub(4 * old + 1)
    end
  end

  kinds[LOG] = {
    terms = '>ddd',

    read = function(l, value)
      if value then
        local first = l.first
        l.base, l.till, l.start = parse('>ddd', value, first)
        local sums = first + 24 + (#value - first - 23) / 11 * 7
        l.instants, l.sums = value:sub(first + 24, sums - 1), value:sub(sums)
      else
        l.base, l.till, l.start, l.instants, l.sums = 0, 0, 0, '', ''
      end
    end,

    due = function(l, at, n)
      local t = l.terms
      if n > t[1] then return nil end
      local i = sum(l, #l.sums / 4) - (t[1] - n)
      at = max(at, l.till)
      return i < 1 and at or max(at, over(l, with(l, i)))
    end,

    take = function(l, at, n)
      local sums, room = l.sums, l.terms[3]
      local last, added = #sums / 4, min(n, room)
      local total = sum(l, last) + added
      if last > 0 and instant(l, last) == at then
        sums = sums:sub(1, -5)
      else
        l.instants = l.instants .. pack('>I7', at - l.base)
      end
      l.sums = sums .. pack('>I4', (l.start + total) % TURN)
      if total > room then forget(l, room) end
      if total > 2 * room then
        local open = gone(l, at)
        local owed = sum(l, #l.sums / 4) - sum(l, open) - 2 * room
        -- Other requests may have permits there, by terms with more room.
        if owed > 0 then cut(l, open + 1, min(owed, added)) end
      end
      l.booked = at
    end,

    move = function(l, by)
      l.base, l.till = l.base + by, l.till + by
    end,

    left = function(l, at)
      local last = #l.sums / 4
      local gone = gone(l, at)
      local full = max(l.till, last > gone and over(l, last) or at)
      if at < l.till then return 0, full end
      return max(0, l.terms[1] - (sum(l, last) - sum(l, gone))), full
    end,

    expires = function(l)
      return max(l.till, l.sums ~= '' and over(l, #l.sums / 4) or l.booked)
    end,

    value = function(l)
      return pack('>ddd', l.base, l.till, l.start) .. l.instants .. l.sums
    end,
  }

  -- Takes the permits of a place out of the records.
  kinds[LOG].cut = function(l, due, n)
    local i, permits = find(l, due)
    if i > 0 then cut(l, i, min(n, permits)) end
  end

  if has_back then
    kinds[LOG].give = function(l, at, n, due, of_any)
      -- The oldest permits go, as in one process, which forgets these first. No later window has
      -- one of them without the grant. Permits that still count at the last booking make room for
      -- the next booking, but those of any grants may be the oldest that count now.
      local counts = due + l.terms[2]
      local first = gone(l, counts > at and not of_any and at or l.now)
      -- Later bookings keep theirs.
      n = min(n, sum(l, gone(l, counts)) - sum(l, first))
      if counts > l.now and n > 0 then cut(l, first + 1, n) end
    end

    -- While the last booking is less than a window behind a place, each window that ends at a
    -- booking and has a later instant also has the instant of the place.
    kinds[LOG].lasts = function(l, due)
      local counts = due + l.terms[2]
      return l.booked < counts and counts or due
    end

    -- Moves permits of one instant to a later one. Refunds may have taken some out of the records.
    kinds[LOG].shift = function(l, from, to, n)
      local i, permits = find(l, from)
      local moved, last, own = min(n, permits), gone(l, to + l.terms[2]), ''
      local kept = last
      if last > 0 and instant(l, last) == to then
        kept = last - 1
      else
        own = pack('>I4', (l.start + sum(l, last) + n - moved) % TURN)
        l.instants = l.instants:sub(1, 7 * last) .. pack('>I7', to - l.base) .. l.instants:sub(7 * last + 1)
      end
      if moved == 0 then i = kept + 1 end
      local head, rest = l.sums:sub(1, 4 * i - 4), l.sums:sub(4 * kept + 1)
      if moved < n then rest = shift(rest, n - moved) end
      local first = i
      if moved > 0 and moved == permits then
        first = i + 1
        l.instants = l.instants:sub(1, 7 * i - 7) .. l.instants:sub(7 * i + 1)
      end
      l.sums = head .. shift(l.sums:sub(4 * first - 3, 4 * kept), -moved) .. own .. rest
    end

    -- Adds permits of an instant before the last booking.
    kinds[LOG].lend = function(l, at, n)
      kinds[LOG].shift(l, -MOST, at, n)
    end

    -- Frees permits of an instant while bookings lie ahead, and undoes the free permits behind all
    -- of these. An instant has one place. Returns how many permits were freed.
    kinds[LOG].drop = function(l, due, n)
      local _, permits = find(l, due)
      local place = remove_place(l, due)
      -- An instant without permits belongs to a state that was lost, or to another clock.
      if not place and permits == 0 then return 0 end
      place = place or {due = due, free = 0, number = -1}
      local before = place.free
      place.free = min(permits, before + n)
      place.size = place.free
      add_place(l, place)
      local last, latest = #l.sums / 4, last_place(l)
      while last > 0 and latest do
        local at = instant(l, last)
        local is_gone = at < latest.due
        if at > latest.due or not is_gone and sum(l, last) - sum(l, last - 1) > latest.free then break end
        remove_last(l)
        if not is_gone then
          last = last - 1
          l.instants, l.sums = l.instants:sub(1, 7 * last), l.sums:sub(1, 4 * last)
        end
        latest = last_place(l)
      end
      l.booked = last > 0 and instant(l, last) or l.now
      return max(0, place.free - before)
    end
  end
end
