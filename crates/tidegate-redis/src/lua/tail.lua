-- Carries out the operation, writes last, and replies.

local numbers = ARGV[3]

if operation == 'reserve' then
  for first = 4, #ARGV, 1 + count do
    local given_back = ARGV[first]
    for i = 1, count do limits[i].n = parse('>d', given_back, 1 + 8 * i) end
    give_back(parse('>d', given_back), first + 1)
  end
  local replies, size = {}, 24 + 16 * count
  for first = 9, #numbers, size do
    local longest, mode, wants_state = parse('>ddd', numbers, first)
    for i = 1, count do
      local l = limits[i]
      l.n, l.most = parse('>dd', numbers, first + 8 + 16 * i)
      -- The request waits for no longer than each of its limits allows.
      if l.n > 0 then longest = min(longest, l.longest) end
    end
    replies[#replies + 1] = reserve(longest, mode == 1, mode == 2, wants_state == 1)
  end
  write_changed()
  return replies
end

local other
local span, flag, place = parse('>ddd', numbers, 9)
for i = 1, count do limits[i].n = parse('>d', numbers, 25 + 8 * i) end

-- Returns the instant at which a debit counts. A bucket stands still in a pause, and its level is
-- as of the end. A window counts at once: the pause may end sooner.
local function charged_at(l)
  return l.kind.hold and l.at or max(l.now, l.booked)
end

-- Gives back permits of no particular grant. They may be those of the oldest grant that counts. So
-- while bookings lie ahead, a window gets none of them, but a fixed window as many as it has
-- granted at least: all of its grants end with it. A bucket stands still in a pause: what was
-- charged there counts at the end, behind the bookings from before the pause. Where the permits of
-- dropped bookings may still be taken, as of a bucket in steps, these fill the bucket as well.
local function refund_any(l)
  local kind, due = l.kind, l.now
  -- The first places of the list are those with the earliest instants.
  if #l.later > 0 then pass(l, l.n) end
  local free = has_back and free_at(l, due) or 0
  if kind.hold and l.now < l.held and l.booked - l.shift <= l.now then due = l.at end
  if kind.hold or kind.cut or l.booked <= l.now then
    if l.n > free then give_after(l, l.n - free, due, true) end
  elseif kind.granted and #l.later == 0 then
    give(l, min(l.n, max(0, kind.granted(l) - free)), due)
  end
end

if operation == 'debit' then
  for _, l in ipairs(limits) do
    if l.n > 0 then
      l.kind.take(l, charged_at(l), l.n)
      change(l)
    end
  end
elseif operation == 'refund' then
  for _, l in ipairs(limits) do
    -- A state gets no refund of a grant that is still ahead, except after the clock was set back.
    if l.n > 0 and place < 0 and (l.value or lingers(l)) then
      refund_any(l)
    elseif l.n > 0 and l.value and place >= 0 and place <= max(l.now, l.booked) and counts(l, place) then
      give(l, l.n, place)
    end
  end
elseif operation == 'keep' then
  other = {}
  for i, l in ipairs(limits) do
    local at = charged_at(l)
    other[i] = at > l.now and 0 or max(0, l.kind.left(l, at) - l.n)
    if other[i] > 0 then
      l.kind.take(l, at, other[i])
      change(l)
    end
  end
elseif operation == 'pause' then
  -- The pause lasts for the span. The available permits stay if the flag is set.
  for _, l in ipairs(limits) do
    local till = max(l.held, now + span)
    if l.kind.hold then l.kind.hold(l, till, flag == 1) end
    l.held = till
    change(l)
  end
elseif operation == 'resume' then
  other = {}
  for i, l in ipairs(limits) do
    local rest = l.held - l.now
    other[i] = rest > 0 and 1 or 0
    if rest > 0 then
      if l.kind.resume then l.kind.resume(l) end
      l.held, l.sooner = l.now, (l.sooner or 0) + rest
      change(l)
    end
  end
elseif operation == 'reset' then
  for _, l in ipairs(limits) do
    if l.value then
      -- Bookings from before an earlier reset may be due later.
      local last = max(now, l.reset or 0, l.kind.last and l.kind.last(l) or l.booked)
      -- Bookings from before this reset have lower numbers. They may be given back late.
      local valid = max(floor(last / 8), l.writes, l.predicted or 0)
      read(l, nil)
      -- Its key is kept for no request that was refused before.
      l.value = nil
      l.writes, l.reset, l.valid = valid, last, valid
      touch(l)
    end
  end
end

write_changed()
return reply(1, 0, 0, 0, true, other)
