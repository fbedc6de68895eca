-- The time of a call, in microseconds: the first number of ARGV[3], or the server's clock if that
-- number is -1. Keys expire by the server's clock. With another time they are kept for a day more.
local now = struct.unpack('>d', ARGV[3])
local is_real = now < 0
if is_real then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
