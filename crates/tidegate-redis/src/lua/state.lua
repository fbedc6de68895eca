-- Reads the state of every limit, and writes the states that were changed.

-- Whether the call continues with the predicted state behind a pause, if there is one. A booking
-- from before the pause is given back to the state without the predicted bookings.
local predicts = operation == 'status' or operation == 'reserve'
for first = 4, #ARGV, 1 + #KEYS do
  if parse('>d', ARGV[first]) > 0 then predicts = false end
end

local read_place, text_of_place, read_back, pass
if has_back then
  -- Reads a place with the value from before its booking.
  function read_place(value, first)
    local due, size, free, number, length, behind = parse('>ddddd', value, first)
    local before = value:sub(behind, behind + length - 1)
    return {due = due, size = size, free = free, number = number, before = before}, behind + length
  end

  function text_of_place(place)
    local before = place.before or ''
    return pack('>ddddd', place.due, place.size, place.free, place.number, #before) .. before
  end

  -- Reads the data of a limit about bookings that were given back. The runs stay a text, which most
  -- calls copy.
  function read_back(l, value, bytes)
    local count_places, count_refunds, length, later, real, count_parts, count_marks, first
    count_places, count_refunds, l.kept_from, l.alive, l.first_due, first = parse('>ddddd', value, 41)
    local reset, valid
    length, later, real, count_parts, count_marks, reset, valid, first = parse('>ddddddd', value, first)
    if reset > 0 then l.reset = reset end
    if valid > 0 then l.valid = valid end
    if count_marks > 0 then l.marks, first = marks.read(value, first, count_marks) end
    l.real = value:sub(first, first + real - 1)
    first = first + real
    l.origin = value:sub(first, first + length - 1)
    first = first + length
    local places, refunds = NONE, NONE
    if count_places > 0 then places = {} end
    if count_refunds > 0 then refunds = {} end
    for i = 1, count_places do places[i], first = read_place(value, first) end
    if later > 0 then l.later = {} end
    for at = first, first + later - 1, 64 * RECORD do
      l.later[#l.later + 1] = value:sub(at, min(at + 64 * RECORD, first + later) - 1)
    end
    first = first + later
    if count_parts > 0 then
      local parts = {}
      for i = 1, count_parts do parts[i], first = read_place(value, first) end
      l.parts = parts
    end
    for i = 1, count_refunds do
      refunds[i], first = read_refund(value, first)
    end
    l.first = 41 + bytes
    l.places, l.refunds, l.runs, l.run = places, refunds, nil, first
  end

  -- Refunds the places that have ended. Forgets runs of which no booking lies ahead, and refunds
  -- that every booking ahead has found. Afterwards the list has places with `permits` permits, if
  -- enough are left.
  function pass(l, permits)
    local places = l.places
    for i = #places, 1, -1 do
      if has_ended(l, places[i]) then refund(l, table.remove(places, i)) end
    end
    local parts = l.parts
    for i = parts and #parts or 0, 1, -1 do
      if parts[i].due <= now then table.remove(parts, i) end
    end
    load(l, permits or 1)
    if l.booked <= now then l.runs, l.refunds, l.kept_from, l.marks = NONE, NONE, 0, NONE end
    local refunds, lowest = l.refunds, #l.refunds > 0 and lowest_run(l)
    for i = #refunds, 1, -1 do
      local back = refunds[i]
      -- A run may be from before bookings that have passed.
      local is_needed = lowest < back.number and (back.n < 0 or back.lent > 0)
      if back.till <= now and not is_needed then table.remove(refunds, i) end
    end
    if min(l.booked, l.first_due) <= now then l.origin = '' end
  end
end

-- The time from which nothing from before the last reset can be given back. A bucket stands still
-- in a pause.
local function reset_till(l)
  local span = l.kind.span and l.kind.span(l) or l.terms[2]
  return l.reset and max(l.reset, l.held) + 2 * span or 0
end

-- Reads a value into the numbers of a limit.
local function read(l, value, moved)
  l.origin, l.kept_from, l.alive, l.first_due = '', 0, 0, 0
  l.first, l.places, l.refunds, l.runs, l.later, l.real = 41, NONE, NONE, NONE, NONE, ''
  if l.parts or l.marks or l.valid then l.parts, l.marks, l.reset, l.valid = nil, nil, nil, nil end
  if value then
    local bytes
    l.writes, l.seen, l.booked, l.held, bytes = parse('>ddddd', value)
    -- A value of another program. No text begins with a number like this: the first eight bytes of
    -- a text are no whole number, or a larger one.
    local writes = l.writes
    if not (writes >= 0 and writes < MAX_WRITES and writes % 1 == 0) then error(FOREIGN, 0) end
    if bytes > 0 then read_back(l, value, bytes) end
    if l.real ~= '' and not (predicts and now < l.held) then
      -- The predicted bookings end with the pause.
      l.value, l.predicted = l.real, l.writes
      return read(l, l.real)
    end
    l.ends = l.first
  else
    -- This first number is above every booking number of a state that was lost.
    l.writes, l.seen, l.booked, l.held = floor(now / 8), now, now, 0
  end
  local kind, seen = l.kind, l.seen
  kind.read(l, value)
  if moved or seen > now then
    local ahead = moved or seen - now
    -- The length of a window is its second term.
    if moved or ahead > (kind.span and kind.span(l) or l.terms[2]) then
      if l.real ~= '' then
        -- The predicted bookings end, because the clock of the value without them was set back as
        -- well.
        l.value, l.predicted = l.real, l.writes
        return read(l, l.real, ahead)
      end
      -- The clock was set back. The state must record this, or it would count again.
      l.writes, l.changed = l.writes + 1, true
      if l.booked > seen or l.predicted then
        -- There may be waits that have instants of the clock from before.
        l.writes = max(l.writes, l.predicted or 0, floor(l.booked / 8) + 1)
        l.valid = l.writes
      end
      seen, l.seen, l.booked, l.sooner = now, now, l.booked - ahead, ahead
      for _, place in ipairs(l.places) do place.due = place.due - ahead end
      -- Their permits are lost for the span.
      l.later, l.parts, l.marks = NONE, nil, nil
      l.runs, l.refunds, l.origin = NONE, NONE, ''
      if l.held > 0 then l.held = l.held - ahead end
      if l.reset then l.reset = max(1, l.reset - ahead) end
      if kind.move then kind.move(l, -ahead) end
    end
  end
  l.now = seen > now and seen or now
  if l.reset and reset_till(l) <= now then l.reset = nil end
  if l.valid and not l.reset and 8 * l.valid <= now then l.valid = nil end
  if l.first > 41 then pass(l) end
  l.at = max(l.now, l.booked, l.held)
end

local limits, count = {}, #KEYS
local terms, first = ARGV[2], 1
for i = 1, count do
  local number, longest = parse('>dd', terms, first)
  local kind, key = kinds[number], KEYS[i]
  local value = values[i]
  -- With the numbers of a bucket it has 32 fields. With one more, the table would grow in each
  -- call.
  local l = {
    kind = kind, key = key, value = value, longest = longest, n = 0, most = 0,
    terms = {parse(kind.terms, terms, first + 16)},
    writes = 0, seen = 0, booked = 0, held = 0, first = 0, now = 0, at = 0,
    places = NONE, later = NONE, refunds = NONE, runs = NONE, run = 0, ends = 0, kept = 0,
    origin = '', kept_from = 0, alive = 0, first_due = 0, real = '',
    changed = false,
  }
  first = first + 8 + 8 * #kind.terms
  read(l, value)
  limits[i] = l
end

-- Returns the value of a limit.
local function value_of(l)
  if #l.places > 0 then unload(l) end
  local places, refunds, runs, text = l.places, l.refunds, l.runs, ''
  if not runs then
    text = l.value:sub(l.run, l.ends - 1)
  elseif #runs > 0 then
    -- The lowest runs are the first whose instants pass.
    local texts, bytes, lowest = {}, 0, max(1, #runs + 1 - MAX_RUNS)
    for i = #runs, lowest, -1 do
      texts[i] = runs[i].text
      bytes = bytes + #texts[i]
      if bytes > MAX_RUN_BYTES then
        lowest = i + 1
        break
      end
    end
    text = table.concat(texts, '', lowest, #runs)
  end
  local origin, later = l.origin, l.later
  local real = l.real
  local is_kept = l.kept_from > 0 and l.booked > l.now
  -- The marks of a bucket are numbers of its algorithm.
  local noted = l.booked > l.now and l.kind ~= kinds[BUCKET] and l.marks or NONE
  local listed = #places + #later + #refunds + #(l.parts or NONE) + #noted
  if listed == 0 and text .. origin .. real == '' and not (is_kept or l.valid) then
    return pack('>ddddd', l.writes, l.seen, l.booked, l.held, 0) .. l.kind.value(l)
  end
  local texts, bytes = {''}, 0
  for i, records in ipairs(later) do
    texts[i + 1], bytes = records, bytes + #records
  end
  if origin == '' then l.alive, l.first_due = 0, 0 end
  local parts, apart = l.parts or NONE, ''
  for _, place in ipairs(parts) do apart = apart .. text_of_place(place) end
  local first = pack('>dddd', #places, #refunds, l.kept_from, l.alive)
  first = first .. pack('>ddddddd', l.first_due, #origin, bytes, #real, #parts, #noted, l.reset or 0)
  first = first .. pack('>d', l.valid or 0)
  first = first .. (#noted > 0 and marks.text(noted) or '')
  first = first .. real .. origin
  for _, place in ipairs(places) do first = first .. text_of_place(place) end
  texts[#texts + 1] = apart
  for _, back in ipairs(refunds) do
    texts[#texts + 1] = text_of_refund(back)
  end
  texts[#texts + 1] = text
  bytes = bytes + #first + #apart + 64 * #refunds + #text
  texts[1] = pack('>ddddd', l.writes, l.seen, l.booked, l.held, bytes) .. first
  texts[#texts + 1] = l.kind.value(l)
  return table.concat(texts)
end

-- Notes a change of a limit, which is written at the end.
local function touch(l)
  l.seen, l.changed = l.now, true
  l.at = max(l.now, l.booked, l.held)
end

local change
if operation ~= 'reserve' then
  -- A change that is never undone: no booking from before it is undone. No booking gets the number
  -- of a booking that was predicted before.
  function change(l)
    l.writes = max(l.writes, l.predicted or 0) + 1
    l.runs, l.refunds, l.origin = NONE, NONE, ''
    if l.kind ~= kinds[BUCKET] then l.marks = nil end
    touch(l)
  end
end

local function write_changed()
  -- All keys are read before the first one is written: a script that may not read changes nothing.
  local writes = {}
  for i = 1, count do
    local l = limits[i]
    if l.changed then
      local value = value_of(l)
      local ends = max(now, min(l.kind.expires(l), now + CENTURY), l.booked, l.held, l.kept)
      ends = max(ends, min(reset_till(l), now + CENTURY))
      writes[#writes + 1] = {l.key, value, expiry(l.key, ends, l.value and lingers(l), l.sooner)}
    end
  end
  for _, parts in ipairs(writes) do write(unpack(parts)) end
end
