-- Permits in use over all processes. In a call a process reports how many permits it holds, and
-- asks for more.
--
-- State. The key is a hash, so it exists as a whole or not at all. Its values are packed big-endian
-- doubles, all of them integers below 2^53.
--
--   | field     | number | name   | unit    | meaning                                                |
--   |-----------|--------|--------|---------|--------------------------------------------------------|
--   | all       | 1      | total  | permits | in use, by all processes                               |
--   |           | 2      | seen   | us      | the latest server time of a write                      |
--   |           | 3      | paused | us      | the end of a pause, 0 without one                      |
--   |           | 4      | kept   | us      | the key expires no earlier, nor before a pause ends    |
--   |           | 5      | first  | us      | no process is lost before                              |
--   | line      |        |        |         | the waiting processes, in order of arrival: 8 bytes    |
--   |           |        |        |         | each, at most 64 processes                             |
--   | a process | 1      | call   | 1       | the number of its last call                            |
--   |           | 2      | held   | permits | in use                                                 |
--   |           | 3      | wants  | permits | that it waits for                                      |
--   |           | 4      | by     | us      | it keeps its position in the queue if it asks again by |
--   |           |        |        |         | then                                                   |
--   |           | 5      | ends   | us      | without a call until then, it is considered lost       |
--
-- A process reports the number of permits that it holds, not a difference. So the next call repairs
-- a call that was lost, or was carried out without a reply. A store that lost its state has it
-- again after each process has called. A call that arrives after a later one of the same process
-- changes nothing, while the process has permits or waits.
--
-- Cost. A call visits the waiting processes, at most 64. When a process may be lost, the call
-- visits all processes: each lives for two thirds of its span after that, so this is rare.
--
-- Time. The clock is the server's. If it is set back, all instants of the state move with it.
--
-- ARGV: the operation; the process, 8 bytes; packed, the time (-1 for TIME), the limit, the span,
-- the number of the call, the permits held, how long it keeps its position, and the length of a
-- pause; packed, the sizes of its requests in order, negative for requests that do not wait.

local MAX_WAITING = 64 * 8
local NEVER = 2^53

local operation, id = ARGV[1], ARGV[2]
local limit, span, call, held, patience, pause = struct.unpack('>dddddd', ARGV[3], 9)

local hash = KEYS[1]
local all, line, mine = unpack(redis.call('HMGET', hash, 'all', 'line', id))
local total, seen, paused, kept, first = 0, now, 0, 0, NEVER
if all then
  total, seen, paused, kept, first = struct.unpack('>ddddd', all)
  -- No text begins with a number like this: the first eight bytes of a text are no whole number, or
  -- a larger one.
  if not (total >= 0 and total < 2^51 and total % 1 == 0) then
    error('the key has a value of another program', 0)
  end
end

-- Lost processes hold nothing, and wait for nothing.
local lost, is_lost, moved = {}, {}, {}
local looks = now >= first or now < seen
if looks then
  local back = math.max(0, seen - now)
  if back > 0 then seen, paused, kept = now, math.max(0, paused - back), kept - back end
  total, first = 0, NEVER
  local fields = redis.call('HGETALL', hash)
  for i = 1, #fields, 2 do
    local process, value = fields[i], fields[i + 1]
    if #process == #id then
      local calls = operation == 'call' and process == id
      local number, holds, wants, by, ends = struct.unpack('>ddddd', value)
      ends = ends - back
      if ends <= now and not calls then
        lost[#lost + 1], is_lost[process] = process, true
      else
        total, first = total + holds, math.min(first, ends)
        if back > 0 and not calls then
          moved[#moved + 1] = process
          moved[#moved + 1] = struct.pack('>ddddd', number, holds, wants, by - back, ends)
        end
      end
    end
  end
end

-- Runs a command with many fields, more than Lua can pass at once.
local function in_parts(command, fields)
  for i = 1, #fields, 1000 do
    redis.call(command, hash, unpack(fields, i, math.min(i + 999, #fields)))
  end
end

-- The waiting processes, without those that are lost or did not ask again in time, and how many
-- permits the processes ahead of this one want.
local waiting, position, before = {}, nil, 0
if line and line ~= '' then
  local ids = {}
  for i = 1, #line, 8 do ids[#ids + 1] = line:sub(i, i + 7) end
  for i, value in ipairs(redis.call('HMGET', hash, unpack(ids))) do
    local process = ids[i]
    if process == id then
      position = #waiting + 1
      waiting[position] = process
    elseif value and not is_lost[process] then
      local _, _, wants, by = struct.unpack('>dddd', value)
      if by >= now then
        waiting[#waiting + 1] = process
        if not position then before = before + wants end
      end
    end
  end
end

if operation == 'status' then
  return {'', total, #waiting, math.max(0, paused - now)}
end

local old_call, old_held = 0, 0
local answers, granted, wants = {}, 0, 0
if operation == 'call' then
  if mine then
    old_call, old_held = struct.unpack('>dd', mine)
    if call <= old_call then return {'', total, #waiting, 0} end
  end
  total = total - old_held + held
  local room = now < paused and 0 or limit - total - before
  for i = 1, #ARGV[4] / 8 do
    local n = struct.unpack('>d', ARGV[4], 8 * i - 7)
    local stays = n > 0
    n = math.abs(n)
    -- No request overtakes a waiting request.
    if wants == 0 and n <= room then
      answers[i], room, granted = '1', room - n, granted + n
    else
      answers[i] = '0'
      if stays then wants = wants + n end
    end
  end
  total = total + granted
  if wants == 0 and position then
    table.remove(waiting, position)
    position = nil
  elseif wants > 0 and not position and 8 * #waiting < MAX_WAITING then
    position = #waiting + 1
    waiting[position] = id
  end
end

local is_here = held + granted > 0 or wants > 0
local reply = {table.concat(answers), total, (position or #waiting + 1) - 1, math.max(0, paused - now)}
if operation == 'call' and not mine and not is_here and not looks then
  -- A refused request changes nothing.
  return reply
elseif operation == 'pause' then
  paused = math.max(paused, now + pause)
elseif operation == 'resume' then
  reply[1] = paused > now and '1' or '0'
  paused = 0
end

local joined = table.concat(waiting)
if total == 0 and joined == '' and paused <= now and not is_here then
  redis.call('DEL', hash)
  return reply
end
if operation == 'call' and granted == 0 and mine then
  -- A store without free memory refuses the first write of a script if that write may need more,
  -- but no later one. So permits can be given back.
  redis.call('HDEL', hash, id)
end
if is_here then kept, first = math.max(kept, now + span), math.min(first, now + span) end
seen = math.max(seen, now)
local values = {'all', struct.pack('>ddddd', total, seen, paused, kept, first)}
if joined ~= (line or '') then
  values[3], values[4] = 'line', joined
end
if is_here then
  values[#values + 1] = id
  values[#values + 1] = struct.pack('>ddddd', call, held + granted, wants, now + patience, now + span)
end
redis.call('HSET', hash, unpack(values))
in_parts('HDEL', lost)
in_parts('HSET', moved)
local millis = math.max(1, math.ceil((math.max(kept, paused) - now) / 1000))
redis.call('PEXPIRE', hash, string.format('%.0f', millis + (is_real and 0 or 86400000)))
return reply
