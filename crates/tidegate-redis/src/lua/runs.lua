-- The runs of bookings that were given back one behind the other. Most calls copy their text as it
-- is, and a call that gives back or takes a place parses it.

local new_run, is_known, runs_of, lowest_run, find_run, revive
if has_back then
  -- A run, with the text that it is stored as.
  function new_run(low, high, due, before)
    return {low = low, high = high, due = due, text = pack('>dddd', low, high, due, #before) .. before}
  end

  -- Whether the value from before a run is known.
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

  -- The lowest number of a booking that may be undone.
  function lowest_run(l)
    if l.runs then return l.runs[1] and l.runs[1].low or MOST end
    return l.run < l.ends and parse('>d', l.value, l.run) or MOST
  end

  -- The last run that begins with a number or below, 0 if there is none.
  function find_run(runs, number)
    local low, high = 0, #runs
    while low < high do
      local middle = math.ceil((low + high) / 2)
      if runs[middle].low <= number then low = middle else high = middle - 1 end
    end
    return low
  end

  -- Takes the number of a booking out of the run that it is in. Returns the value from before it,
  -- as far as it is known.
  function revive(l, number, due)
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
end
