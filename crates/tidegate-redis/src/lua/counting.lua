-- Permits in use over all processes. One call is one process that tells how many permits it holds,
-- and asks for more.
--
-- State. KEYS[1] is a hash, KEYS[2] a sorted set of the processes by the instant at which each is
-- taken for lost. Values are packed big-endian doubles, all of them integers below 2^53.
--
--   | field     | number | name   | unit    | meaning                                                |
--   |-----------|--------|--------|---------|--------------------------------------------------------|
--   | all       | 1      | total  | permits | in use, by all processes                               |
--   |           | 2      | seen   | us      | the latest server time of a write                      |
--   |           | 3      | paused | us      | the end of a pause, 0 without one                      |
--   |           | 4      | kept   | us      | the keys expire no earlier                             |
--   | line      |        |        |         | the processes that wait, in order of arrival: 8 bytes  |
--   |           |        |        |         | each, at most 64 processes                             |
--   | a process | 1      | call   | 1       | the number of its last call                            |
--   |           | 2      | held   | permits | in use                                                 |
--   |           | 3      | span   | us      | without a call for so long, it is taken for lost       |
--   |           | 4      | wants  | permits | that it waits for                                      |
--   |           | 5      | by     | us      | it keeps its place in the line if it asks again by then|
--
-- A process tells the number of permits that it holds, and not a difference. So a call that got
-- lost, or was carried out without an answer, is made good by the next one, and a store that lost
-- its state has it again after each process has called. A call that comes after a later one of the
-- same process changes nothing.
--
-- Cost. A call looks at the processes that wait, at most 64, and at no more than 16 processes that
-- are lost. Other lost processes are found by later calls; until then their permits are in use.
--
-- Time. The clock is the server's. If it is set back, no process is taken for lost later than its
-- span from now: each call moves the 16 latest instants.
--
-- ARGV: the operation; the process, 8 bytes; packed, the time (-1 for TIME), the limit, the span,
-- the number of the call, the permits held, how long it keeps its place, and the length of a pause;
-- packed, the sizes of its requests in order, those that do not wait negative.

local MOST_LOST = 16
local MOST_WAITING = 64 * 8

local operation, id = ARGV[1], ARGV[2]
local now, limit, span, call, held, patience, pause = struct.unpack('>ddddddd', ARGV[3])
-- Keys expire by the server's clock. Under another time they are kept for a day more.
local more = 86400000
if now < 0 then
  more = 0
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local hash, ends = KEYS[1], KEYS[2]
local all, line, mine = unpack(redis.call('HMGET', hash, 'all', 'line', id))
local total, seen, paused, kept = 0, now, 0, 0
if all then total, seen, paused, kept = struct.unpack('>dddd', all) end

local moved = {}
if now < seen then
  local latest = redis.call('ZREVRANGE', ends, 0, MOST_LOST - 1, 'WITHSCORES')
  for i = 1, #latest, 2 do
    local process = redis.call('HGET', hash, latest[i])
    local spare = process and select(3, struct.unpack('>ddd', process)) or 0
    if tonumber(latest[i + 1]) > now + spare then
      moved[#moved + 1] = string.format('%.0f', now + spare)
      moved[#moved + 1] = latest[i]
    end
  end
  -- Otherwise the next call goes on.
  if #moved < 2 * MOST_LOST then
    paused, kept, seen = math.max(0, paused - (seen - now)), kept - (seen - now), now
  end
end

-- Lost processes hold nothing, and wait for nothing.
local lost, is_lost = {}, {}
for _, process in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', string.format('%.0f', now), 'LIMIT', 0, MOST_LOST)) do
  if process ~= id or operation ~= 'call' then
    lost[#lost + 1], is_lost[process] = process, true
    local value = redis.call('HGET', hash, process)
    if value then total = total - select(2, struct.unpack('>dd', value)) end
  end
end

-- The processes that wait, without those that are lost or did not ask again in time, and how many
-- permits the processes before this one want.
local waiting, place, before = {}, nil, 0
if line and line ~= '' then
  local ids = {}
  for i = 1, #line, 8 do ids[#ids + 1] = line:sub(i, i + 7) end
  for i, value in ipairs(redis.call('HMGET', hash, unpack(ids))) do
    local process = ids[i]
    if process == id then
      place = #waiting + 1
      waiting[place] = process
    elseif value and not is_lost[process] then
      local _, _, _, wants, by = struct.unpack('>ddddd', value)
      if by >= now then
        waiting[#waiting + 1] = process
        if not place then before = before + wants end
      end
    end
  end
end

if operation == 'status' then
  return {'', total, #waiting, math.max(0, paused - now)}
end

local old_call, old_held, old_wants = 0, 0, 0
local answers, granted, wants = {}, 0, 0
if operation == 'call' then
  if mine then
    local _
    old_call, old_held, _, old_wants = struct.unpack('>dddd', mine)
    if call <= old_call then return {'', total, #waiting, 0} end
  end
  total = total - old_held + held
  local room = now < paused and 0 or limit - total - before
  for i = 1, #ARGV[4] / 8 do
    local n = struct.unpack('>d', ARGV[4], 8 * i - 7)
    local stays = n > 0
    n = math.abs(n)
    -- No request overtakes one that waits.
    if wants == 0 and n <= room then
      answers[i], room, granted = '1', room - n, granted + n
    else
      answers[i] = '0'
      if stays then wants = wants + n end
    end
  end
  total = total + granted
  if wants == 0 and place then
    table.remove(waiting, place)
    place = nil
  elseif wants > 0 and not place and 8 * #waiting < MOST_WAITING then
    place = #waiting + 1
    waiting[place] = id
  end
end

local is_here = held + granted > 0 or wants > 0
local told = {table.concat(answers), total, (place or #waiting + 1) - 1, math.max(0, paused - now)}
if operation == 'call' and not mine and not is_here and #lost == 0 and #moved == 0 then
  -- A refused request changes nothing.
  return told
elseif operation == 'pause' then
  paused = math.max(paused, now + pause)
elseif operation == 'resume' then
  told[1] = paused > now and '1' or '0'
  paused = 0
end

local joined = table.concat(waiting)
if total == 0 and joined == '' and paused <= now and not is_here then
  redis.call('DEL', hash, ends)
  return told
end
if operation == 'call' and granted == 0 and mine then
  -- A store without memory left refuses the first write if it may need more, and no later one. So
  -- permits can be given back.
  redis.call('HDEL', hash, id)
end
kept = math.max(kept, paused)
if is_here then kept = math.max(kept, now + span) end
seen = math.max(seen, now)
local values = {'all', struct.pack('>dddd', total, seen, paused, kept)}
if joined ~= (line or '') then
  values[3], values[4] = 'line', joined
end
if is_here then
  values[#values + 1] = id
  values[#values + 1] = struct.pack('>ddddd', call, held + granted, span, wants, now + patience)
end
redis.call('HSET', hash, unpack(values))
if #lost > 0 then
  redis.call('HDEL', hash, unpack(lost))
  redis.call('ZREM', ends, unpack(lost))
end
if #moved > 0 then redis.call('ZADD', ends, 'XX', unpack(moved)) end
if is_here then
  redis.call('ZADD', ends, string.format('%.0f', now + span), id)
elseif operation == 'call' and mine then
  redis.call('ZREM', ends, id)
end
local ttl = string.format('%.0f', math.max(1, math.ceil((kept - now) / 1000)) + more)
redis.call('PEXPIRE', hash, ttl)
redis.call('PEXPIRE', ends, ttl)
return told
