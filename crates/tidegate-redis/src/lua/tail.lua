-- Reads every limit, decides, and writes last.

local call = redis.call
local numbers = ARGV[3]

-- Whether the call goes on with the state that is foreseen behind a pause, if there is one. A
-- booking from before the pause is given back to the state from before what is foreseen.
local foresees = operation == 'status' or operation == 'reserve'
for first = 4, operation == 'reserve' and #ARGV or 0, 1 + #KEYS do
  if parse('>d', ARGV[first]) > 0 then foresees = false end
end

-- Reads what a limit has for bookings that are given back. The runs stay a text, which most calls
-- copy.
local function read_back(l, value, bytes)
  local count_places, count_refunds, length, later, real, first
  count_places, count_refunds, l.kept_from, l.alive, l.first_due, length, later, real, first =
    parse('>dddddddd', value, 41)
  l.real = value:sub(first, first + real - 1)
  first = first + real
  l.origin = value:sub(first, first + length - 1)
  first = first + length
  local places, refunds = NONE, NONE
  if count_places > 0 then places = {} end
  if count_refunds > 0 then refunds = {} end
  for i = 1, count_places do
    local due, size, free, number, length
    due, size, free, number, length, first = parse('>ddddd', value, first)
    local before = value:sub(first, first + length - 1)
    places[i] = {due = due, size = size, free = free, number = number, before = before}
    first = first + length
  end
  if later > 0 then l.later = {} end
  for at = first, first + later - 1, 64 * RECORD do
    l.later[#l.later + 1] = value:sub(at, min(at + 64 * RECORD, first + later) - 1)
  end
  first = first + later
  for i = 1, count_refunds do
    refunds[i], first = read_refund(value, first)
  end
  l.first = 41 + bytes
  l.places, l.refunds, l.runs, l.run = places, refunds, nil, first
end

-- A run, with the text that it is stored as.
local function new_run(low, high, due, before)
  return {low = low, high = high, due = due, text = pack('>dddd', low, high, due, #before) .. before}
end

-- Whether the value from before a run is known.
local function is_known(run)
  return #run.text > 40
end

-- Parses the runs.
local function runs_of(l)
  if not l.runs then
    local runs, value, first = {}, l.value, l.run
    while first < l.ends do
      local low, high, due, length, before = parse('>dddd', value, first)
      -- The bookings below it are grants when its instant has passed.
      if due <= now then runs = {} end
      runs[#runs + 1] = {low = low, high = high, due = due, text = value:sub(first, before + length - 1)}
      first = before + length
    end
    l.runs = runs
  elseif l.runs == NONE then
    l.runs = {}
  end
  return l.runs
end

-- The lowest number of a booking that may be undone.
local function lowest_run(l)
  if l.runs then return l.runs[1] and l.runs[1].low or MOST end
  return l.run < l.ends and parse('>d', l.value, l.run) or MOST
end

-- Refunds the places that have ended, and forgets runs of which none lies ahead, and refunds that
-- every booking ahead has found.
local function pass(l)
  local places = l.places
  for i = #places, 1, -1 do
    if has_ended(l, places[i]) then refund(l, table.remove(places, i)) end
  end
  load(l, 1)
  if l.booked <= now then l.runs, l.refunds, l.kept_from = NONE, NONE, 0 end
  local refunds, lowest = l.refunds, #l.refunds > 0 and lowest_run(l)
  for i = #refunds, 1, -1 do
    local back = refunds[i]
    -- A run may be from before bookings that have passed.
    local is_needed = lowest < back.number and (back.n < 0 or back.lent > 0)
    if back.till <= now and not is_needed then table.remove(refunds, i) end
  end
  if min(l.booked, l.first_due) <= now then l.origin = '' end
end

-- Reads a value into the numbers of a limit.
local function read(l, value)
  l.first, l.places, l.refunds, l.runs, l.later, l.real = 41, NONE, NONE, NONE, NONE, ''
  if value then
    local bytes
    l.writes, l.seen, l.booked, l.held, bytes = parse('>ddddd', value)
    -- A value of another program. No text begins with a number like this: the eight bytes of one
    -- are no whole number, or a larger one.
    local writes = l.writes
    if not (writes >= 0 and writes < MOST_WRITES and writes % 1 == 0) then error(FOREIGN, 0) end
    if bytes > 0 then read_back(l, value, bytes) end
    if l.real ~= '' and not (foresees and now < l.held) then
      -- What was foreseen ends with the pause.
      l.value = l.real
      return read(l, l.real)
    end
    l.ends = l.first
  else
    -- No number is the one of a booking in a state that was lost.
    l.writes, l.seen, l.booked, l.held = floor(now / 8), now, now, 0
  end
  local kind, seen = l.kind, l.seen
  kind.read(l, value)
  if seen > now then
    local ahead = seen - now
    -- The length of a window is its second term.
    if ahead > (kind.span and kind.span(l) or l.terms[2]) then
      -- The clock was set back. It is written that it was: else it would count again.
      l.writes, l.changed = l.writes + 1, true
      seen, l.seen, l.booked = now, now, l.booked - ahead
      for _, place in ipairs(l.places) do place.due = place.due - ahead end
      -- Their permits are lost for the span.
      l.later = NONE
      l.runs, l.refunds, l.origin = NONE, NONE, ''
      if l.held > 0 then l.held = l.held - ahead end
      if kind.move then kind.move(l, -ahead) end
    end
  end
  l.now = seen > now and seen or now
  if l.first > 41 then pass(l) end
  l.at = max(l.now, l.booked, l.held)
end

local limits, count = {}, #KEYS
local terms, first = ARGV[2], 1
for i = 1, count do
  local number, longest = parse('>dd', terms, first)
  local kind, key = kinds[number], KEYS[i]
  local value = call('GET', key)
  local l = {
    kind = kind, key = key, value = value, longest = longest, n = 0, most = 0,
    terms = {parse(kind.terms, terms, first + 16)},
    writes = 0, seen = 0, booked = 0, held = 0, first = 0, now = 0, at = 0,
    places = NONE, later = NONE, refunded = 0, refunds = NONE, runs = NONE, run = 0, ends = 0, kept = 0,
    origin = '', kept_from = 0, alive = 0, first_due = 0, real = '',
    changed = false,
  }
  first = first + 8 + 8 * #kind.terms
  read(l, value)
  limits[i] = l
end

-- The value of a limit.
local function value_of(l)
  if #l.places > 0 then unload(l) end
  local places, refunds, runs, text = l.places, l.refunds, l.runs, ''
  if not runs then
    text = l.value:sub(l.run, l.ends - 1)
  elseif #runs > 0 then
    -- The lowest runs are the first whose instants pass.
    local texts, bytes, lowest = {}, 0, max(1, #runs + 1 - MOST_RUNS)
    for i = #runs, lowest, -1 do
      texts[i] = runs[i].text
      bytes = bytes + #texts[i]
      if bytes > MOST_RUN_BYTES then
        lowest = i + 1
        break
      end
    end
    text = table.concat(texts, '', lowest, #runs)
  end
  local origin, later = l.origin, l.later
  local real = l.real
  local is_kept = l.kept_from > 0 and l.booked > l.now
  if #places + #later + #refunds == 0 and text == '' and origin == '' and real == '' and not is_kept then
    return pack('>ddddd', l.writes, l.seen, l.booked, l.held, 0) .. l.kind.value(l)
  end
  local texts, bytes = {''}, 0
  for i, records in ipairs(later) do
    texts[i + 1], bytes = records, bytes + #records
  end
  if origin == '' then l.alive, l.first_due = 0, 0 end
  local first = pack('>dddd', #places, #refunds, l.kept_from, l.alive)
  first = first .. pack('>dddd', l.first_due, #origin, bytes, #real)
  first = first .. real .. origin
  for _, place in ipairs(places) do
    local before = place.before or ''
    first = first .. pack('>ddddd', place.due, place.size, place.free, place.number, #before) .. before
  end
  for _, back in ipairs(refunds) do
    texts[#texts + 1] = text_of_refund(back)
  end
  texts[#texts + 1] = text
  bytes = bytes + #first + 64 * #refunds + #text
  texts[1] = pack('>ddddd', l.writes, l.seen, l.booked, l.held, bytes) .. first
  texts[#texts + 1] = l.kind.value(l)
  return table.concat(texts)
end

-- A change of a limit, which is written at the end.
local function touch(l)
  l.seen, l.changed = l.now, true
  l.at = max(l.now, l.booked, l.held)
end

-- A change that is never undone: no booking from before it is.
local function change(l)
  l.writes, l.runs, l.refunds, l.origin = l.writes + 1, NONE, NONE, ''
  touch(l)
end

-- Grants what was refunded, before the last booking.
local function lend(l, at, n)
  local is_exact = l.kind.lend(l, at, n)
  -- Refunds behind which there is no booking are undone with what was lent of them.
  for _, back in ipairs(is_exact and l.refunds or NONE) do
    if back.number == l.writes and back.spare > 0 and n > 0 then
      local lent = min(back.spare, n)
      back.n, back.spare, back.lent, n = back.n - lent, back.spare - lent, back.lent + lent, n - lent
      back.lent_at = at
    end
  end
  if n > 0 then note_refund(l, -n, at, is_exact and 0 or -1) end
end

-- Refunds permits of a grant.
local function give(l, n, due)
  local kind = l.kind
  if kind.lasts and due <= now and l.booked > now and lasts(l, due) > now then
    -- Requests take them now, as those of a booking that was given back.
    if kind.drop then
      n = n - kind.drop(l, due, n)
    else
      add_place(l, {due = due, size = n, free = n, number = -1})
      n = 0
    end
    bound_places(l)
    touch(l)
    if n == 0 then return end
  end
  local spare = kind.give(l, max(l.now, l.booked), n, due)
  touch(l)
  if not kind.cut and l.booked > now then note_refund(l, n, due, spare or 0) end
end

local function write_changed()
  for i = 1, count do
    local l = limits[i]
    if l.changed then
      local value = value_of(l)
      -- The first whole millisecond behind its end, and one to come.
      local ends = max(now, l.kind.expires(l), l.booked, l.held, l.kept)
      if is_real then
        call('SET', l.key, value, 'PXAT', ('%d'):format(floor(ends / 1000) + 1))
      else
        call('SET', l.key, value, 'PX', ('%d'):format(floor((ends - now) / 1000) + 1 + 86400000))
      end
    end
  end
end

-- The reply: an answer (0 refused, 1 granted, 2 granted in shadow, 3 foreseen, 4 not decided, since
-- no pause holds it up), the wait, the limit that makes it wait, and the instant; for each limit the
-- permits of this request; and if it tells the state, for each limit how many permits are available;
-- in which time it is full, and one permit is due; how long it is still paused; another number. A
-- time of -1 is never.
local function reply(answer, wait, tightest, due, tells, other)
  local told = {answer, wait, tightest, due, limits[1].n}
  for i = 2, count do told[4 + i] = limits[i].n end
  if not tells then return told end
  for i = 1, count do
    local l, k = limits[i], count + 5 * i
    local at = max(l.now, l.booked, l.held)
    local available, full = l.kind.left(l, at)
    local next_at = at
    if at > l.now or available == 0 then next_at = l.kind.due(l, at, 1) end
    told[k] = at > l.now and 0 or available
    told[k + 1] = full and max(0, full - now) or -1
    told[k + 2] = next_at and (next_at > l.now and next_at - now or 0) or -1
    told[k + 3] = max(0, l.held - now)
    told[k + 4] = other and other[i] or 0
  end
  return told
end

-- Whether a request may take permits of a place at an instant.
local function is_open(l, place, at)
  return place.due == at or place.due < at and lasts(l, place.due) > at
end

-- The earliest instant, not before another one, at which a request is due: by permits of places
-- alone, by those and more behind the last booking, or behind it. Places are in the order of their
-- instants, in which they end.
local function earliest(l, from)
  local places, kind, n = l.places, l.kind, l.n
  local at = max(from, l.at)
  local due = kind.due(l, at, n)
  if not due or due <= from then return due end
  if kind.lends and kind.lends(l, n) then return from end
  if #places == 0 then return due end
  local first, free = 1, 0
  for i, place in ipairs(places) do
    local instant = max(place.due, from, l.held)
    free = free + place.free
    while first <= i and not is_open(l, places[first], instant) do
      free, first = free - places[first].free, first + 1
    end
    if free >= n then return instant end
  end
  -- Permits of a log that are granted later come back later.
  for i = first, kind.lasts and not kind.cut and #places or 0 do
    if is_open(l, places[i], at) then
      local joint = kind.due(l, at, max(0, n - free))
      if joint and is_open(l, places[i], joint) then return joint end
    end
    free = free - places[i].free
  end
  return due
end

-- The last run that begins with a number or below, 0 if there is none.
local function find_run(runs, number)
  local low, high = 0, #runs
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if runs[middle].low <= number then low = middle else high = middle - 1 end
  end
  return low
end

-- Takes the number of a booking out of the run that it is in. Returns the value from before it, as
-- far as it is known.
local function revive(l, number, due)
  local runs, known = runs_of(l), pack('>d', number)
  local i = find_run(runs, number)
  local run = runs[i]
  if not run or run.high < number then return known end
  local before = run.text:sub(33)
  table.remove(runs, i)
  if number < run.high then table.insert(runs, i, new_run(number + 1, run.high, run.due, '')) end
  if run.low < number then
    table.insert(runs, i, new_run(run.low, number - 1, due, before))
  elseif before ~= '' then
    known = before
  end
  return known
end

-- Takes the permits of a request from the free places for an instant. Returns the value from before
-- the booking if the request makes a booking of its size again, and none for parts of bookings;
-- and how many permits are not there.
local function take_places(l, at)
  local places, rest = l.places, l.n
  for i, place in ipairs(places) do
    if place.due == at and place.size == rest and place.free == rest then
      table.remove(places, i)
      return place.number >= 0 and revive(l, place.number, at) or '', 0
    end
  end
  local i = 1
  while places[i] do
    local place = places[i]
    local due = place.due
    local taken = is_open(l, place, at) and min(rest, place.free) or 0
    if taken > 0 then
      if place.free == place.size and place.number >= 0 then
        place.before = revive(l, place.number, due)
      end
      place.free, rest = place.free - taken, rest - taken
      if due < at then
        -- They are permits of the later instant from now on.
        place.size, place.number, place.before = place.size - taken, -1, nil
        if l.kind.shift then l.kind.shift(l, due, at, taken) end
      elseif l.kind.cut then
        -- A log has the other permits of the instant.
        place.size = place.free
      end
    end
    if place.size == 0 then table.remove(places, i) else i = i + 1 end
  end
  return '', rest
end

-- Has each limit that makes a request wait kept until the request is due. Otherwise a limit that
-- does not start full, or whose request pays for its own size, would begin anew meanwhile, and tell
-- the same wait again.
local function keep_till(due)
  for i = 1, count do
    local l = limits[i]
    if l.n > 0 and l.kind.due(l, l.at, l.n) > l.now and (not l.value or l.kind.expires(l) < due) then
      l.kept, l.changed = max(l.kept, min(due, now + YEARS) + LINGER), true
    end
  end
end

-- Decides about one request, as if it were alone in its call.
local function reserve(longest, is_shadow, is_behind, tells)
  -- A request for up to a number takes what all limits have that it does not name.
  local there
  for i = 1, count do
    local l = limits[i]
    if l.most > l.n then
      local available = l.at > l.now and 0 or l.kind.left(l, l.at)
      there = min(there or l.most, max(l.n, available))
    end
  end
  if there then
    for i = 1, count do
      local l = limits[i]
      if l.most > l.n then l.n = there end
    end
  end
  local due, tightest, asks = now, 0, false
  for i = 1, count do
    local l = limits[i]
    if l.n > 0 then
      asks = true
      if #l.places > 0 or #l.later > 0 then
        pass(l)
        load(l, l.n)
      end
      local one = earliest(l, l.now)
      if not one then
        due, tightest = nil, i
        break
      end
      -- A limit whose clock stands still grants now.
      if one > l.now and one > due then due, tightest = one, i end
    end
  end
  if not asks then return reply(0, -1, 0, 0, true) end
  -- Places that were open at the instant of one limit may have ended at that of another one.
  local last = count > 1 and due and now
  while last and last < due do
    last = due
    for i = 1, count do
      local l = limits[i]
      local one = l.n > 0 and #l.places > 0 and earliest(l, max(due, l.now)) or due
      if one > l.now and one > due then due, tightest = one, i end
    end
  end
  local wait = due and due - now
  local is_granted = due ~= nil
  if is_granted and wait > 0 then
    for i = 1, count do
      local l = limits[i]
      if l.n > 0 and wait > min(longest, l.longest) then is_granted = false end
    end
  end
  if not is_granted then
    if wait then keep_till(now + wait) end
    return reply(is_shadow and 2 or 0, wait or -1, tightest, 0, true)
  end
  local is_foreseen = false
  for i = 1, wait > 0 and count or 0 do
    is_foreseen = is_foreseen or limits[i].n > 0 and limits[i].held > limits[i].now
  end
  if is_behind and not is_foreseen then return reply(4, wait, tightest, 0, true) end
  local before = {}
  for i = 1, count do
    local l = limits[i]
    before[i] = ''
    -- A limit that is not paused keeps nothing of what is foreseen.
    if l.n > 0 and (not is_foreseen or l.held > l.now) then
      if is_foreseen and l.real == '' then l.real = value_of(l) end
      local at, rest, free = max(due, l.now), l.n, 0
      for _, place in ipairs(l.places) do
        if is_open(l, place, at) then free = free + place.free end
      end
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
        l.kind.take(l, max(at, l.at), rest)
        l.shift = 0
        l.writes = l.writes + 1
      end
      touch(l)
    end
  end
  local told = reply(is_foreseen and 3 or 1, wait, tightest, due, tells or is_foreseen)
  if wait > 0 then
    for i = 1, count do told[#told + 1] = before[i] end
  end
  return told
end

local give_back
if ARGV[4] then
  -- Adds a booking to the runs of those that were given back. A run whose value from before is not
  -- known takes in no later booking, or that booking could not be undone alone.
  local function drop(l, number, due, before)
    local runs, low, high = runs_of(l), number, number
    local i = find_run(runs, number)
    -- The run before the booking, and the one behind it.
    local run, next_run = runs[i], runs[i + 1]
    if next_run and next_run.low - 1 == number then
      high, due = next_run.high, next_run.due
      table.remove(runs, i + 1)
    end
    if run and run.high + 1 == number and (is_known(run) or #before <= 8) then
      low, before = run.low, run.text:sub(33)
      table.remove(runs, i)
      i = i - 1
    end
    table.insert(runs, i + 1, new_run(low, high, due, before))
  end

  -- Goes back to a value from before bookings.
  local function go_back(l, before)
    l.writes, l.booked = parse('>dd', before)
    l.first = 17
    l.kind.read(l, before)
  end

  -- Makes the refunds again whose bookings before them are undone.
  local function refund_again(l)
    for _, back in ipairs(l.refunds) do
      if back.number > l.writes then
        local kind = l.kind
        if l.writes <= back.of then forget_refund(back) end
        if back.lent > 0 then kind.pass_on(l, back.due, back.lent_at, back.lent) end
        if back.n < 0 then
          kind.lend(l, back.lent_at, -back.n, back.spare < 0)
        elseif back.n > 0 then
          back.spare = kind.give(l, max(l.now, l.booked), back.n, back.due) or 0
        end
        back.number = l.writes
      end
    end
    pass(l)
  end

  -- Goes back to the value from before the last run while no booking is left behind that run.
  local function undo(l)
    local runs = runs_of(l)
    local run, undone = runs[#runs], false
    while run and is_known(run) and run.high + 1 == l.writes and run.low >= l.kept_from do
      go_back(l, run.text:sub(33))
      runs[#runs] = nil
      remove_from(l, run.low)
      run, undone = runs[#runs], true
    end
    if undone then refund_again(l) end
  end

  -- Frees a place: of a booking, or of the parts that a request took at its instant.
  local function free_place(l, due, number, before)
    local places, rest = l.places, l.n
    if number >= 0 then
      -- A booking is given back once.
      local runs = runs_of(l)
      local run = runs[find_run(runs, number)]
      if run and run.high >= number then return end
      drop(l, number, due, before)
    else
      for _, place in ipairs(places) do
        local freed = place.due == due and min(rest, place.size - place.free) or 0
        if freed > 0 then
          place.free, rest = place.free + freed, rest - freed
          if place.free == place.size and place.number >= 0 then
            drop(l, place.number, due, place.before or '')
            place.before = nil
          end
        end
      end
    end
    if rest > 0 then add_place(l, {due = due, size = rest, free = rest, number = number}) end
    l.alive = l.alive - l.n
    if l.origin ~= '' and l.alive <= 0 then
      go_back(l, l.origin)
      l.origin, l.runs = '', NONE
      keep_passed(l)
      refund_again(l)
    else
      undo(l)
    end
  end

  -- Gives back the bookings of the requests for `l.n` permits of each limit at one instant.
  -- `ARGV[first]` and those behind it have the value of each limit from before the booking.
  function give_back(place, first)
    local is_foreseen = place < 0
    place = math.abs(place)
    for i = 1, count do
      local l, before = limits[i], ARGV[first + i - 1]
      local number = #before >= 8 and parse('>d', before) or -1
      -- An instant or a number that is not reached is of a state that was lost, or of another
      -- clock.
      local is_there = l.value and place <= l.booked and number < l.writes
      if l.n > 0 and is_there and is_foreseen == (l.real ~= '') then
        if now < place then
          pass(l)
          if l.kind.drop then
            l.kind.drop(l, place, l.n)
            pass(l)
          else
            free_place(l, place, number, before)
          end
          bound_places(l)
          touch(l)
        else
          -- The instant of the booking came on the way: the booking is a grant.
          give(l, l.n, place)
        end
      end
    end
  end
end

if operation == 'reserve' then
  for first = 4, #ARGV, 1 + count do
    local given_back = ARGV[first]
    for i = 1, count do limits[i].n = parse('>d', given_back, 1 + 8 * i) end
    give_back(parse('>d', given_back), first + 1)
  end
  local told, size = {}, 24 + 16 * count
  for first = 9, #numbers, size do
    local longest, mode, tells = parse('>ddd', numbers, first)
    for i = 1, count do
      local l = limits[i]
      l.n, l.most = parse('>dd', numbers, first + 8 + 16 * i)
    end
    told[#told + 1] = reserve(longest, mode == 1, mode == 2, tells == 1)
  end
  write_changed()
  return told
end

local span, flag, place = parse('>ddd', numbers, 9)
for i = 1, count do limits[i].n = parse('>d', numbers, 25 + 8 * i) end

if operation == 'back' then
  give_back(place, 4)
elseif operation == 'debit' then
  for _, l in ipairs(limits) do
    if l.n > 0 then
      l.kind.take(l, l.at, l.n)
      change(l)
    end
  end
elseif operation == 'refund' then
  for _, l in ipairs(limits) do
    -- A state is told of no grant that is still to come, but after the clock was set back.
    if l.n > 0 and l.value and place <= max(l.now, l.booked) then give(l, l.n, place) end
  end
elseif operation == 'keep' then
  local taken = {}
  for i, l in ipairs(limits) do
    taken[i] = l.at > l.now and 0 or max(0, l.kind.left(l, l.at) - l.n)
    if taken[i] > 0 then
      l.kind.take(l, l.at, taken[i])
      change(l)
    end
  end
  write_changed()
  return reply(1, 0, 0, 0, true, taken)
elseif operation == 'pause' then
  -- The pause lasts for the span. The stock stays if the flag is set.
  for _, l in ipairs(limits) do
    local till = max(l.held, now + span)
    if l.kind.hold then l.kind.hold(l, till, flag == 1) end
    l.held = till
    change(l)
  end
elseif operation == 'resume' then
  local held = {}
  for i, l in ipairs(limits) do
    local rest = l.held - l.now
    held[i] = rest > 0 and 1 or 0
    if rest > 0 then
      if l.kind.resume then l.kind.resume(l) end
      l.held = 0
      change(l)
    end
  end
  write_changed()
  return reply(1, 0, 0, 0, true, held)
elseif operation == 'reset' then
  -- One by one: Lua passes fewer than 8,000 keys at once.
  for _, l in ipairs(limits) do
    call('DEL', l.key)
    read(l, nil)
  end
  return reply(1, 0, 0, 0, true)
end

write_changed()
return reply(1, 0, 0, 0, true)
