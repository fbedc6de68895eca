-- Decides requests.

-- A request that may not wait asks again at the instant in its reply, or later. Then a place that
-- ends with its instant is gone, so the reply to such a request counts no such place. A status
-- counts all places.
local may_wait = true
local lend, is_open, free_at, take_places
if has_back then
  -- Grants permits before the last booking.
  function lend(l, at, n)
    if l.marks and l.kind ~= kinds[BUCKET] then marks.raise(l, -n) end
    local is_exact = l.kind.lend(l, at, n)
    -- Refunds that no booking follows are undone together with their lent permits.
    for _, back in ipairs(is_exact and l.refunds or NONE) do
      if back.number == l.writes and back.spare > 0 and n > 0 then
        local lent = min(back.spare, n)
        back.n, back.spare, back.lent, n = back.n - lent, back.spare - lent, back.lent + lent, n - lent
        back.lent_at = at
      end
    end
    -- A log has each permit, and none of its bookings is undone by a value from before it.
    if n > 0 and not l.kind.cut then note_refund(l, -n, at, is_exact and 0 or -1) end
  end

  -- Returns whether a request may take permits of a place at an instant.
  function is_open(l, place, at)
    -- When a request that may not wait asks again, a log no longer has a place up to its last
    -- booking.
    if not may_wait and l.kind.cut and at >= l.booked then return false end
    if place.due == at then return may_wait or lasts(l, at) > at end
    return place.due < at and lasts(l, place.due) > at
  end

  -- Returns how many permits of places a request may take at an instant.
  function free_at(l, at)
    local free = 0
    for _, place in ipairs(l.places) do
      if is_open(l, place, at) then free = free + place.free end
    end
    return free
  end

  -- Takes the permits of a request from the free places for an instant. Returns the value from
  -- before the booking if the request makes a booking of its size again, and an empty value for
  -- parts of bookings; and how many permits are missing.
  function take_places(l, at)
    local places, rest = l.places, l.n
    for i, place in ipairs(places) do
      if place.due == at and place.size == rest and place.free == rest then
        table.remove(places, i)
        if place.number >= 0 then return revive(l, place.number, at, rest), 0 end
        take_parts(l, at, rest)
        return '', 0
      end
    end
    local i = 1
    while places[i] do
      local place = places[i]
      local due = place.due
      local taken = is_open(l, place, at) and min(rest, place.free) or 0
      if taken > 0 then
        if place.free == place.size and place.number >= 0 then
          place.before = revive(l, place.number, due, place.size)
        elseif place.number < 0 then
          take_parts(l, due, taken)
        end
        place.free, rest = place.free - taken, rest - taken
        if due < at then
          -- They are permits of the later instant from now on.
          place.size, place.number, place.before = place.size - taken, -1, nil
          -- An earlier booking that is undone would take the limit back to before that instant.
          if at > l.now then l.kept_from = max(l.kept_from, l.writes) end
          if l.kind.shift then
            l.kind.shift(l, due, at, taken)
            l.marks = nil
          end
        elseif l.kind.cut then
          -- A log has the other permits of the instant.
          place.size = place.free
        end
      end
      if place.size == 0 then table.remove(places, i) else i = i + 1 end
    end
    return '', rest
  end
end

-- Returns the earliest instant, not before `from`, at which a request is due: by permits of places
-- only, by those and more behind the last booking, or by permits behind the last booking. Places
-- are in the order of their instants, in which they end.
local function earliest(l, from)
  local places, kind, n = l.places, l.kind, l.n
  local at = max(from, l.at)
  local due = kind.due(l, at, n)
  if not due or due <= from then return due end
  local lent = kind.lendable and kind.lendable(l) or 0
  if lent >= n or lent > 0 and lent + free_at(l, from) >= n then return from end
  if #places == 0 then return due end
  local lent_at = waits_for_loans and kind.lends_at and kind.lends_at(l, n)
  if lent_at then due = min(due, max(lent_at, from)) end
  -- When a request that may not wait asks again, the places of the last booking have come back to
  -- the limit, and what is owed takes their permits first.
  local first, free, owed = 1, 0, not may_wait and kind.owed and kind.owed(l) or 0
  for i, place in ipairs(places) do
    local instant = max(place.due, from, l.held)
    free = free + place.free
    while first <= i and not is_open(l, places[first], instant) do
      free, first = free - places[first].free, first + 1
    end
    if free >= n + (instant < l.booked and 0 or owed) then return instant end
  end
  -- If a log grants permits later, they also become available again later.
  for i = first, kind.cut and 0 or #places do
    if is_open(l, places[i], at) and lasts(l, places[i].due) > at then
      local joint = kind.due(l, at, max(0, n - free))
      if joint and is_open(l, places[i], joint) then return joint end
    end
    free = free - places[i].free
  end
  return due
end

-- Returns the earliest instant at which all limits have a request's permits, `nil` if a limit never
-- has them; and the limit that has them last.
local function earliest_of_all()
  local due, tightest = now, 0
  for i = 1, count do
    local l = limits[i]
    if l.n > 0 then
      local one = earliest(l, l.now)
      if not one then return nil, i end
      -- A limit whose clock stands still grants now.
      if one > l.now and one > due then due, tightest = one, i end
    end
  end
  -- Places that were open at the instant of one limit may have ended at the instant of another
  -- limit.
  local last = count > 1 and now
  while last and last < due do
    last = due
    for i = 1, count do
      local l = limits[i]
      local one = l.n > 0 and #l.places > 0 and earliest(l, max(due, l.now)) or due
      if one > l.now and one > due then due, tightest = one, i end
    end
  end
  return due, tightest
end

-- Returns how many permits, out of those that were given back, a request gets now if it would
-- otherwise be behind the last booking: permits that may be lent, and permits of places.
local function spare(l)
  if not has_back or l.held > l.now then return 0 end
  return free_at(l, l.now) + (l.kind.lendable and l.kind.lendable(l) or 0)
end

-- Returns the reply: a decision (0 refused, 1 granted, 2 granted in shadow mode, 3 predicted, 4 not
-- decided, because no pause delays it), the wait, the limit that makes the request wait, and the
-- instant; for each limit the permits of this request. If the reply has the state, for each limit
-- there follow: how many permits are available; the time until the limit is full; the time until
-- one permit is due; how much longer it is paused; and another number. That number is, for a grant
-- ahead, how many permits are available at its instant unless bookings are behind it; for `keep`,
-- how many permits were taken; for `resume`, whether there was a pause. A time of -1 is never. A
-- grant that waits ends with the value of each limit from before its booking, which is empty if it
-- has none.
local function reply(answer, wait, tightest, due, wants_state, other)
  local fields = {answer, wait, tightest, due, limits[1].n}
  for i = 2, count do fields[4 + i] = limits[i].n end
  if not wants_state then return fields end
  for i = 1, count do
    local l, k = limits[i], count + 5 * i
    local at = l.at
    local available, full = l.kind.left(l, at)
    local there, next_at = at == due and available or 0, at
    if at > l.now then
      l.n, available = 1, spare(l)
      next_at = earliest(l, l.now)
    else
      -- A limit whose clock stands still may have places of which permits are granted now.
      for _, place in ipairs(l.kind.cut and NONE or l.places) do
        if place.due <= at and lasts(l, place.due) > at then available = available + place.free end
      end
      if available == 0 then next_at = l.kind.due(l, at, 1) end
    end
    fields[k] = available
    fields[k + 1] = full and max(0, full - now) or -1
    fields[k + 2] = next_at and (next_at > l.now and next_at - now or 0) or -1
    -- A pause that is over for the limit, whose clock stands still, is not reported.
    fields[k + 3] = l.held > l.now and l.held - now or 0
    fields[k + 4] = other and other[i] or there
  end
  return fields
end

-- Returns whether a request is granted before the bookings ahead: one limit has enough permits for
-- it that were given back, and the others have room.
local overtakes
if has_back and count > 1 then
  function overtakes()
    local is_back = false
    for i = 1, count do
      local l = limits[i]
      if l.n > 0 and earliest(l, l.now) == l.now then
        is_back = is_back or l.at > l.now
      elseif l.n > 0 then
        if marks.room(l) + free_at(l, l.now) < l.n then return false end
      end
    end
    return is_back
  end
end

-- Decides about one request, as if it were the only one of its call.
local function reserve(longest, is_shadow, is_behind, wants_state)
  -- A request for up to a number takes as many permits as all limits have whose number it leaves
  -- open.
  local there
  may_wait, waits_for_loans = longest > 0, longest == 0
  for i = 1, count do
    local l = limits[i]
    if l.most > l.n then
      local available = l.at > l.now and spare(l) or l.kind.left(l, l.at)
      there = min(there or l.most, max(l.n, available))
    end
  end
  if there then
    for i = 1, count do
      local l = limits[i]
      if l.most > l.n then l.n = there end
    end
  end
  local asks = false
  for i = 1, count do
    local l = limits[i]
    if l.n > 0 then
      asks = true
      if #l.places > 0 or #l.later > 0 then pass(l, l.n) end
    end
  end
  if not asks then return reply(0, -1, 0, 0, true) end
  local due, tightest = earliest_of_all()
  if overtakes and due and due > now and overtakes() then due = now end
  local wait = due and due - now
  local is_granted = due ~= nil
  if is_granted and wait > 0 then
    for i = 1, count do
      local l = limits[i]
      if l.n > 0 and wait > min(longest, l.longest) then is_granted = false end
    end
  end
  if not is_granted then
    if has_back and due and longest > 0 then
      -- When the request asks again, bookings have passed, and more may be left to others.
      may_wait, sets_apart = longest > TRIP, true
      due, tightest = earliest_of_all()
      wait, sets_apart = due - now, false
    end
    -- A limit that does not start full, or whose request pays for its own size, is kept until the
    -- request is due. Otherwise it would start anew in the meantime, and the next request would get
    -- the same wait again.
    for i = 1, due and count or 0 do
      local l = limits[i]
      local asks = l.n > 0 and (l.value or l.kind.due(l, l.at, l.n) > l.now)
      if asks and is_to_keep(l, l.key, l.value, due) then
        l.kept, l.changed = max(l.kept, min(due, now + DECADE) + LINGER), true
      end
    end
    return reply(is_shadow and 2 or 0, wait or -1, tightest, 0, true)
  end
  local is_predicted = false
  for i = 1, wait > 0 and count or 0 do
    is_predicted = is_predicted or limits[i].n > 0 and limits[i].held > limits[i].now
  end
  if is_behind and not is_predicted then return reply(4, wait, tightest, 0, true) end
  local before = {}
  for i = 1, count do
    local l = limits[i]
    before[i] = ''
    -- A limit that is not paused keeps nothing of a predicted booking.
    if l.n > 0 and (not is_predicted or l.held > l.now) then
      if is_predicted and l.real == '' then l.real = value_of(l) end
      local at, rest = max(due, l.now), l.n
      local free = has_back and free_at(l, at) or 0
      if free >= l.n or free > 0 and (at < l.at or l.kind.due(l, at, l.n) > at) then
        before[i], rest = take_places(l, at)
      elseif wait > 0 and not l.kind.cut and at >= l.at then
        -- A log needs no value from before.
        before[i] = pack('>dd', l.writes, l.booked) .. l.kind.value(l)
        if l.booked <= now and #l.places == 0 then
          l.origin, l.alive, l.first_due = before[i], 0, at
        end
      end
      if wait == 0 then
        l.origin = ''
      elseif l.origin ~= '' then
        l.alive, l.first_due = l.alive + l.n, min(l.first_due, at)
      end
      if rest > 0 and at < l.at then
        lend(l, at, rest)
      elseif rest > 0 or at > l.booked then
        if wait > 0 then
          need_marks()
          marks.take(l, max(at, l.at), rest)
        else
          l.kind.take(l, max(at, l.at), rest)
        end
        l.shift = 0
        l.writes = l.writes + 1
      end
      touch(l)
    end
  end
  local fields = reply(is_predicted and 3 or 1, wait, tightest, due, wants_state or is_predicted)
  if wait > 0 then
    for i = 1, count do fields[#fields + 1] = before[i] end
  end
  return fields
end
