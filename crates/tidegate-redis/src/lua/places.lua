-- The places of bookings that were given back, in the order of their instants, and those of one
-- instant in the order of their bookings. The first places are a list, from which requests take
-- permits. A storm leaves thousands of places: the others are texts of some 64 records each, which
-- are parsed when the list runs low. The Lua of a server hashes each text that it makes, so each
-- change makes only one of these texts anew.
--
--   | record | name   | bytes | unit    | meaning                                               |
--   |--------|--------|-------|---------|-------------------------------------------------------|
--   | 1      | due    | 7     | us      | the instant                                           |
--   | 2      | free   | 4     | permits | of the place, which is free as a whole                |
--   | 3      | number | 7     | 1       | of the booking, plus 1; 0 for parts of bookings       |
--
-- A place of which a part is taken is in the list, with the value from before its booking. If the
-- place does not stay in the list, its booking is kept in `parts`: then the free permits of this
-- booking are a place of parts of bookings. When the whole booking is free again, it is a place
-- once more.

local RECORD = 18

local lasts, has_ended, refund, record, load, take_parts, unload
if has_back then
  -- Returns until when the permits of a place may be granted.
  function lasts(l, due)
    return l.kind.lasts(l, due)
  end

  -- Returns whether no request can take a place anymore.
  function has_ended(l, place)
    return place.due <= now and (l.booked <= now or lasts(l, place.due) <= now)
  end

  -- Refunds a place that no request can take anymore. A bucket gets it as of its end, because a call
  -- that changes nothing does not keep the refund: idle time accrues from then on.
  function refund(l, place)
    if place.free == 0 then return end
    if l.kind.cut then
      l.kind.cut(l, place.due, place.free)
    else
      local ended = l.kind == kinds[BUCKET] and min(l.now, lasts(l, place.due)) or l.now
      local spare = l.kind.give(l, max(ended, l.booked), place.free, place.due)
      if place.due <= now and l.booked > now then
        note_refund(l, place.free, place.due, spare or 0, place.number)
      end
    end
  end

  -- Returns the i-th place of a text.
  function record(text, i)
    local due, free, number = parse('>I7I4I7', text, RECORD * (i - 1) + 1)
    return {due = due, size = free, free = free, number = number - 1}
  end

  -- Extends the list to 16 free places with at least `permits` permits, as far as `later` has
  -- places. Places that have ended are refunded on the way, up to 64 times in a call. Ended places
  -- that do not last, and ended places of one instant, are refunded together.
  function load(l, permits)
    local later = l.later
    if #later == 0 then return end
    l.refunded = l.refunded or 0
    if l.places == NONE then l.places = {} end
    local places, free, count, ended = l.places, 0, 0, nil
    for _, place in ipairs(places) do
      free, count = free + place.free, count + min(1, place.free)
    end
    while later[1] and (count < MAX_PLACES / 2 or free < permits) and l.refunded < 64 do
      local text, read = later[1], 0
      for i = 1, #text / RECORD do
        local place = record(text, i)
        read = i
        if not has_ended(l, place) then
          places[#places + 1] = place
          free, count = free + place.free, count + 1
          if count >= MAX_PLACES / 2 and free >= permits then break end
        elseif ended and (place.due == ended.due or lasts(l, place.due) == place.due) then
          ended.free, ended.number = ended.free + place.free, max(ended.number, place.number)
        else
          if ended then refund(l, ended) end
          ended, l.refunded = place, l.refunded + 1
          if l.refunded == 64 then break end
        end
      end
      if read == #text / RECORD then
        table.remove(later, 1)
      else
        later[1] = text:sub(RECORD * read + 1)
      end
    end
    if ended then refund(l, ended) end
  end

  -- Notes that free parts of bookings are taken.
  function take_parts(l, due, n)
    for _, part in ipairs(l.parts or NONE) do
      if part.due == due then
        local taken = min(n, part.free)
        part.free, n = part.free - taken, n - taken
      end
    end
  end

  -- Keeps the booking of a place of which parts are taken. If there are too many, the first one is
  -- forgotten.
  local function keep_apart(l, place)
    if place.number < 0 or (place.before or '') == '' then return end
    local parts = l.parts or {}
    l.parts = parts
    local i = #parts
    while i > 0 and parts[i].due > place.due do i = i - 1 end
    table.insert(parts, i + 1, place)
    if #parts > MAX_PARTS then table.remove(parts, 1) end
  end

  -- Puts the places behind the first 32 into a text. Of the taken places only the last 16 stay.
  function unload(l)
    local places, later, taken = l.places, l.later, 0
    for i = #places, 1, -1 do
      if places[i].free == 0 then
        taken = taken + 1
        if taken > MAX_PLACES / 2 then keep_apart(l, table.remove(places, i)) end
      end
    end
    if #places <= MAX_PLACES then return end
    local texts = {}
    for i = MAX_PLACES + 1, #places do
      local place = places[i]
      if place.free < place.size then keep_apart(l, place) end
      local number = place.free < place.size and 0 or place.number + 1
      if place.free > 0 then
        texts[#texts + 1] = pack('>I7I4I7', place.due, min(place.free, 2^32 - 1), number)
      end
      places[i] = nil
    end
    if l.later == NONE then l.later = {} end
    table.insert(l.later, 1, table.concat(texts))
  end
end

-- The functions that a call needs if it gives bookings or permits back.
local add_place, remove_place, remove_parts, remove_from, last_place, remove_last, keep_passed, bound_places
if ARGV[4] or operation == 'refund' then
  -- Returns whether a place precedes another one.
  local function is_before(place, other)
    return place.due < other.due or place.due == other.due and place.number < other.number
  end

  -- Returns the text to which a place belongs, 0 for the list, and the number of its places that
  -- precede this place.
  local function find(l, place)
    local later, low, high = l.later, 0, #l.later
    while low < high do
      local middle = math.ceil((low + high) / 2)
      if is_before(place, record(later[middle], 1)) then high = middle - 1 else low = middle end
    end
    if low == 0 then
      local places = l.places
      local i = #places
      while i > 0 and is_before(place, places[i]) do i = i - 1 end
      return 0, i
    end
    local text, first, last = later[low], 1, #later[low] / RECORD
    while first < last do
      local middle = math.ceil((first + last) / 2)
      if is_before(place, record(text, middle)) then last = middle - 1 else first = middle end
    end
    return low, first
  end

  function last_place(l)
    local text = l.later[#l.later]
    if not text then return l.places[#l.places] end
    return record(text, #text / RECORD)
  end

  function remove_last(l)
    local later = l.later
    local last = #later
    if last == 0 then
      l.places[#l.places] = nil
    else
      later[last] = #later[last] > RECORD and later[last]:sub(1, -RECORD - 1) or nil
    end
  end

  -- Replaces the i-th record of a text by another text, which may be empty.
  local function put(l, t, i, record)
    local text = l.later[t]
    l.later[t] = text:sub(1, RECORD * (i - 1)) .. record .. text:sub(RECORD * i + 1)
    if l.later[t] == '' then table.remove(l.later, t) end
  end

  -- Takes `n` free permits of parts of bookings out of the places of an instant.
  function remove_parts(l, due, n)
    local t, i = find(l, {due = due, number = MOST})
    while n > 0 and i > 0 do
      local text = l.later[t]
      local place = t == 0 and l.places[i] or record(text, i)
      if place.due ~= due then return end
      local taken = place.number < 0 and min(n, place.free) or 0
      n, place.free, place.size = n - taken, place.free - taken, place.size - taken
      if t == 0 then
        if place.size == 0 then table.remove(l.places, i) end
      elseif taken > 0 then
        put(l, t, i, place.free > 0 and pack('>I7I4I7', due, place.free, 0) or '')
      end
      i = i - 1
      if i == 0 and t > 0 then
        t = t - 1
        i = t == 0 and #l.places or #l.later[t] / RECORD
      end
    end
  end

  -- Adds a free place.
  function add_place(l, place)
    if l.places == NONE then l.places = {} end
    local t, i = find(l, place)
    local other = t == 0 and i > 0 and l.places[i]
    if other and place.number < 0 and other.number < 0 and other.due == place.due then
      other.free, other.size = other.free + place.free, other.size + place.size
    elseif t == 0 then
      table.insert(l.places, i + 1, place)
    else
      local text = l.later[t]
      local added = pack('>I7I4I7', place.due, min(place.free, 2^32 - 1), place.number + 1)
      l.later[t] = text:sub(1, RECORD * i) .. added .. text:sub(RECORD * i + 1)
    end
  end

  -- Takes out the place of an instant, if it has one, for kinds with one place per instant.
  function remove_place(l, due)
    local t, i = find(l, {due = due, number = MOST})
    if i == 0 then return nil end
    if t == 0 then return l.places[i].due == due and table.remove(l.places, i) or nil end
    local text = l.later[t]
    local place = record(text, i)
    if place.due ~= due then return nil end
    put(l, t, i, '')
    return place
  end

  -- Takes out the places of the bookings from `number` on. All of them are behind `booked`.
  function remove_from(l, number)
    local kept, place = {}, last_place(l)
    while place and place.due >= l.booked do
      remove_last(l)
      if place.number < number then kept[#kept + 1] = place end
      place = last_place(l)
    end
    for i = #kept, 1, -1 do add_place(l, kept[i]) end
  end

  -- Drops the places that are still ahead.
  function keep_passed(l)
    local later = l.later
    while later[1] and record(later[#later], 1).due > now do later[#later] = nil end
    local last = last_place(l)
    while last and last.due > now do
      remove_last(l)
      last = last_place(l)
    end
    l.parts = nil
  end

  -- If there are too many places, refunds the latest ones.
  function bound_places(l)
    local count = #l.places
    for _, text in ipairs(l.later) do count = count + #text / RECORD end
    while count > MAX_IN_ALL do
      local last = last_place(l)
      remove_last(l)
      if last.number < 0 then take_parts(l, last.due, last.free) end
      refund(l, last)
      count = count - 1
    end
  end
end
