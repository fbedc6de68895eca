-- Counts the processes that call a store, in constant memory: how many called in this period and in
-- the period before. Each process calls several times in a period, and is counted once.
--
--   | state | name   | unit   | meaning                                                        |
--   |-------|--------|--------|----------------------------------------------------------------|
--   | 1     | made   | us     | when the state was made; distinguishes it from a lost state    |
--   | 2     | period | 1      | the number of the period                                       |
--   | 3     | count  | 1      | the processes that called in this period                       |
--   | 4     | before | 1      | the processes that called in the period before                 |
--
-- The reply is the larger count: the count of the period before is complete, and the count of this
-- period includes the new processes. So a process that ends counts for two periods at most. A
-- process that leaves is subtracted from the periods in which it was counted.
--
-- KEYS: the count. ARGV: packed, the time (-1 for TIME), the length of a period in us, the `made`
-- and `period` of the last reply to this process, the other period in which it was counted (-1
-- without one), and whether it leaves.

local now, length, last_made, last_period, earlier, leaves = struct.unpack('>dddddd', ARGV[1])
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local at = (now - now % length) / length
local made, period, count, before = now, at, 0, 0
local value = redis.call('GET', KEYS[1])
if value then made, period, count, before = struct.unpack('>dddd', value) end
if at > period then
  -- If no process called in a whole period, all are counted anew.
  if at > period + 1 then made, count = now, 0 end
  before, period, count = count, at, 0
elseif at < period - 1 then
  -- The clock was set back.
  made, period, count, before = now, at, 0, math.max(count, before)
end
local is_changed = leaves == 1 and made == last_made
if is_changed then
  for _, counted in ipairs({last_period, earlier}) do
    if counted == period then count = count - 1
    elseif counted == period - 1 then before = before - 1 end
  end
elseif leaves == 0 and (made ~= last_made or period ~= last_period) then
  count, is_changed = count + 1, true
end
if is_changed then
  local packed = struct.pack('>dddd', made, period, count, before)
  redis.call('SET', KEYS[1], packed, 'PX', math.ceil(2 * length / 1000))
end
return {made, period, math.max(count, before), now}
