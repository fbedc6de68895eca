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

-- Returns the instant as of which permits of no particular grant are given back, and bounds their
-- number. A bucket stands still in a pause. If bookings lie ahead, the permits of a window, or of a
-- step, may be granted besides these bookings: no more than are taken now. If they may still be
-- granted at the last booking, no more than are taken there.
local function without_grant(l)
  if l.kind.hold and l.now < l.held then return l.at end
  if l.booked > l.now and lasts(l, l.now) > l.now then
    local taken = l.terms[l.kind == kinds[BUCKET] and 6 or 1]
    if lasts(l, l.now) > l.booked then taken = taken - l.kind.left(l, l.booked) end
    l.n = min(l.n, max(0, taken - free_at(l, l.now)))
  end
  return l.now
end

if operation == 'back' then
  give_back(place, 4)
elseif operation == 'debit' then
  for _, l in ipairs(limits) do
    if l.n > 0 then
      l.kind.take(l, charged_at(l), l.n)
      change(l)
    end
  end
elseif operation == 'refund' then
  for _, l in ipairs(limits) do
    local due = place < 0 and without_grant(l) or place
    -- A state gets no refund of a grant that is still ahead, except after the clock was set back.
    local is_there = l.value or place < 0 and lingers(l)
    if l.n > 0 and is_there and due <= max(l.now, l.booked) then give(l, l.n, due) end
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
      l.held = 0
      change(l)
    end
  end
elseif operation == 'reset' then
  -- One by one: Lua passes fewer than 8,000 keys at once.
  for _, l in ipairs(limits) do
    call('DEL', l.key)
    read(l, nil)
  end
  return reply(1, 0, 0, 0, true)
end

write_changed()
return reply(1, 0, 0, 0, true, other)
