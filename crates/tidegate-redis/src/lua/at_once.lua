-- Decides the plain requests at several limits, or at one limit other than a bucket. Most tables
-- have their final size from the beginning, because growing takes longer than the arithmetic of a
-- decision.

-- Returns whether a state that is full is better than a new one.
local function lingers(l)
  return l.kind == kinds[BUCKET] and l.terms[10] > 0
end

-- Returns whether a key is to be kept for a request that is refused until `due`: it would expire
-- before, and a new state is worse. It may have been kept for an earlier request.
local function is_to_keep(l, key, value, due)
  if not lingers(l) then return false end
  local till = due + SLACK
  if not value then return true end
  return l.kind.expires(l) < till and not (is_real and floor(now / 1000) + call('PTTL', key) > till / 1000)
end

if is_plain then
  local limits, fields = {nil, nil, nil}, {1, 0, 0, now, nil, nil, nil}
  local due, decided, asks, first = now, 0, false, 1
  for i = 1, #KEYS do
    local number, own = parse('>dd', ARGV[2], first)
    local kind, writes, booked, held = kinds[number], begins(values[i])
    if i > 1 then n, most = parse('>dd', ARGV[3], 17 + 16 * i) end
    if not writes or most > n then break end
    local l = {
      kind = kind, terms = {parse(kind.terms, ARGV[2], first + 16)}, first = 41,
      now = now, booked = booked, held = held, shift = 0, due = now,
      text = pack('>ddddd', writes + 1, now, now, held, 0), option = '', time = '',
    }
    first = first + 8 + 8 * #kind.terms
    kind.read(l, values[i])
    if n > 0 then
      local one = kind.due(l, now, n)
      if not one then break end
      if own < longest then longest = own end
      asks, l.due = true, one
      if one > due then due, fields[3] = one, i end
    end
    limits[i], fields[4 + i], decided = l, n, i
  end
  local wait = due - now
  -- A request that may wait is left to the other files, and one for which a key is to be kept.
  local is_decided = asks and decided == #KEYS and (wait == 0 or wait > longest)
  for i = 1, is_decided and wait > 0 and #KEYS or 0 do
    local l = limits[i]
    local asks = l.due > now or fields[4 + i] > 0 and values[i]
    if asks and is_to_keep(l, KEYS[i], values[i], due) then is_decided = false end
  end
  if is_decided then
    -- All keys are read before the first one is written.
    for i = 1, wait > 0 and 0 or #KEYS do
      local l = limits[i]
      if fields[4 + i] > 0 then
        l.kind.take(l, now, fields[4 + i])
        l.shift = 0
        l.text = l.text .. l.kind.value(l)
        local ends = max(now, min(l.kind.expires(l), now + CENTURY))
        l.option, l.time = expiry(KEYS[i], ends, values[i] and lingers(l))
      end
    end
    for i = 1, (wait > 0 or wants_state == 1) and #KEYS or 0 do
      local l = limits[i]
      local available, full = l.kind.left(l, now)
      local next_at = available > 0 and now or l.kind.due(l, now, 1)
      report(fields, i, available, full, next_at, wait > 0 and 0 or available)
    end
    if wait > 0 then
      fields[1], fields[2], fields[4] = mode == 1 and 2 or 0, wait, 0
      return {fields}
    end
    for i = 1, #KEYS do
      local l = limits[i]
      if fields[4 + i] > 0 then write(KEYS[i], l.text, l.option, l.time) end
    end
    return {fields}
  end
end
