-- Gets the values of all limits.
local call = redis.call
local values = {}
-- Whether bookings lie ahead, were given back, or are given back by this call. Most calls need none
-- of the functions for these.
local has_back = operation ~= 'reserve' or ARGV[4] ~= nil
for i = 1, #KEYS do
  local value = call('GET', KEYS[i])
  values[i] = value
  if value and #value >= 40 and not has_back then
    local booked, _, bytes = parse('>ddd', value, 17)
    has_back = booked > now or bytes > 0
  end
end

