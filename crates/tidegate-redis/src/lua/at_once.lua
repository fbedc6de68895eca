-- Decides the plain request by the functions of its algorithm. A bucket has decided it before, or
-- leaves it to the files behind this one.

local kind = is_plain and kinds[parse('>d', ARGV[2])]
if kind and kind ~= kinds[BUCKET] then
  local l = {terms = {parse(kind.terms, ARGV[2], 17)}, first = 41, now = now, booked = booked}
  kind.read(l, values[1])
  local due, ends, state = kind.due(l, now, n), kind.expires(l), nil
  if due then
    if due == now then
      kind.take(l, now, n)
      state, ends = kind.value(l), kind.expires(l)
    end
    local available, full, next_at
    if not state or wants_state == 1 then
      available, full = kind.left(l, now)
      next_at = available > 0 and now or kind.due(l, now, 1)
    end
    local reply = decide(state, ends, false, available, full, next_at, due, due)
    if reply then return reply end
  end
end
