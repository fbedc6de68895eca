-- The runs of bookings that were given back one behind the other. Most calls copy their text
-- unchanged. A call that gives back or takes a place parses it.

local new_run, is_known, runs_of, lowest_run, find_run, revive
if has_back then
  -- Returns a run, with the text that it is stored as.
  function new_run(low, high, due, before)
    return {low = low, high = high, due = due, text = pack('>dddd', low, high, due, #before) .. before}
  end

  -- Returns whether the value from before a run is known.
  function is_known(run)
    return #run.text > 40
  end

  -- Parses the runs.
  function runs_of(l)
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

  -- Returns the lowest number of a booking that may be undone.
  function lowest_run(l)
    if l.runs then return l.runs[1] and l.runs[1].low or MOST end
    return l.run < l.ends and parse('>d', l.value, l.run) or MOST
  end

  -- Returns the last run that begins with `number` or below, 0 if there is none.
  function find_run(runs, number)
    local low, high = 0, #runs
    while low < high do
      local middle = math.ceil((low + high) / 2)
      if runs[middle].low <= number then low = middle else high = middle - 1 end
    end
    return low
  end

  -- Makes the bookings of a run again, up to a booking of n permits. Returns the values from before
  -- and behind that booking, if the places of all these bookings are in the list, and no permits
  -- were given back between two of them.
  local function replay(l, run, number, due, n)
    if run.low < l.kept_from then return nil end
    -- A booking in cells costs a step for each cell.
    if l.kind == kinds[CELLS] and (number - run.low) * l.terms[4] > 256 then return nil end
    for _, back in ipairs(l.refunds) do
      if back.number > run.low and back.number <= number + 1 then return nil end
    end
    local made, places, i, before = {}, l.places, 1, nil
    for name, value in pairs(l) do made[name] = value end
    made.writes, made.booked = parse('>dd', run.text, 33)
    made.first = 17
    l.kind.read(made, run.text:sub(33))
    if made.writes ~= run.low then return nil end
    while made.writes <= number do
      local at, size = due, n
      if made.writes == number then
        before = pack('>dd', number, made.booked) .. l.kind.value(made)
      else
        while places[i] and places[i].number ~= made.writes do i = i + 1 end
        if not places[i] then return nil end
        at, size = places[i].due, places[i].size
      end
      l.kind.take(made, at, size)
      made.shift, made.writes = 0, made.writes + 1
    end
    return before, pack('>dd', made.writes, made.booked) .. l.kind.value(made)
  end

  -- Takes the number of a booking of n permits out of the run that contains it. Returns the value
  -- from before the booking, as far as it is known.
  function revive(l, number, due, n)
    local runs, known = runs_of(l), pack('>d', number)
    local i = find_run(runs, number)
    local run = runs[i]
    if not run or run.high < number then return known end
    local before, behind = run.text:sub(33), ''
    if is_known(run) then
      local made, rest = replay(l, run, number, due, n)
      if made then known, behind = made, rest end
    end
    table.remove(runs, i)
    if number < run.high then table.insert(runs, i, new_run(number + 1, run.high, run.due, behind)) end
    if run.low < number then
      table.insert(runs, i, new_run(run.low, number - 1, due, before))
    elseif before ~= '' then
      known = before
    end
    return known
  end
end
