-- Takes back grants, and bookings whose instants lie ahead.

local counts, give, give_after
if ARGV[4] or operation == 'refund' then
  -- Returns whether a grant, or a booking with a number or -1, is certainly from after the last
  -- reset, and from after the clock was set back.
  function counts(l, due, number)
    local valid = l.valid or 0
    if number and number >= 0 then return number >= valid end
    return due > (l.reset or 0) and (due > 8 * valid or not number and due <= l.now)
  end

  -- Adds permits to the state, and thus behind all bookings. They are of a grant at an instant, or
  -- of any grants up to it.
  function give_after(l, n, due, of_any)
    local spare = l.kind.give(l, max(l.now, l.booked), n, due, of_any)
    touch(l)
    if not l.kind.cut and l.booked > now then note_refund(l, n, due, spare or 0) end
  end

  -- Refunds permits of a grant.
  function give(l, n, due)
    if due <= now and l.booked > now and lasts(l, due) > now then
      -- Requests take them now, like the permits of a booking that was given back.
      if l.kind.drop then
        n = n - l.kind.drop(l, due, n)
      else
        add_place(l, {due = due, size = n, free = n, number = -1})
        n = 0
      end
      bound_places(l)
      touch(l)
      if n == 0 then return end
    end
    give_after(l, n, due)
  end
end

local give_back
if ARGV[4] then
  -- Adds a booking to the runs of bookings that were given back. A run without a known value from
  -- before it takes in no later booking. Otherwise that booking could not be undone on its own.
  local function drop(l, number, due, before)
    local runs, low, high = runs_of(l), number, number
    local i = find_run(runs, number)
    -- The run before the booking, and the run behind it.
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

  -- Applies the refunds again whose preceding bookings were undone.
  local function refund_again(l)
    for _, back in ipairs(l.refunds) do
      if back.number > l.writes then
        local kind = l.kind
        if l.writes <= back.of then forget_refund(back) end
        local room = back.lent > 0 and kind.pass_on(l, back.due, back.lent_at, back.lent) or nil
        if back.n < 0 then
          kind.lend(l, back.lent_at, -back.n, back.spare < 0)
        elseif back.n > 0 then
          back.spare = kind.give(l, max(l.now, l.booked), back.n, back.due, false, room) or 0
        end
        back.number = l.writes
      end
    end
    pass(l)
  end

  -- Goes back to the value from before the last run, as long as no booking is left behind that run.
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

  -- Notes that parts of bookings are free again. A booking that is free as a whole is a place.
  local function free_parts(l, due, rest)
    local parts, i = l.parts or NONE, 1
    while parts[i] and rest > 0 do
      local part = parts[i]
      local freed = part.due == due and min(rest, part.size - part.free) or 0
      part.free, rest = part.free + freed, rest - freed
      if part.due == due and part.free == part.size then
        table.remove(parts, i)
        remove_parts(l, due, part.size)
        add_place(l, {due = due, size = part.size, free = part.size, number = part.number})
        drop(l, part.number, due, part.before)
      else
        i = i + 1
      end
    end
  end

  -- Frees a place: of a booking, or of the parts that a request took at its instant.
  local function free_place(l, due, number, before)
    local places, rest, parts = l.places, l.n, 0
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
          if place.number < 0 then parts = parts + freed end
          if place.free == place.size and place.number >= 0 then
            drop(l, place.number, due, place.before or '')
            place.before = nil
          end
        end
      end
    end
    if rest > 0 then add_place(l, {due = due, size = rest, free = rest, number = number}) end
    if number < 0 then free_parts(l, due, rest + parts) end
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
  -- `ARGV[first]` and the arguments after it have the value of each limit from before the booking.
  function give_back(place, first)
    local is_predicted = place < 0
    place = math.abs(place)
    for i = 1, count do
      local l, before = limits[i], ARGV[first + i - 1]
      local number = #before >= 8 and parse('>d', before) or -1
      -- An instant or a number that is not reached belongs to a state that was lost, or to another
      -- clock. The numbers of a new state are larger than all earlier ones: a booking of a lost
      -- state counts as one of this state if this state is booked as far ahead.
      local is_there = l.value and place <= l.booked and number < l.writes
      if is_there and is_predicted and number >= 0 then
        -- The limit may have changed since.
        is_there = l.real ~= '' and number >= parse('>d', l.real)
      end
      if l.n > 0 and is_there and is_predicted == (l.real ~= '') and counts(l, place, number) then
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
          -- The instant of the booking passed while the call was on its way: the booking is a
          -- grant.
          give(l, l.n, place)
        end
      end
    end
  end
end
