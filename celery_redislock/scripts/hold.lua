-- Hold locks of a bucket, or end that: an operator's order. See holds.lua.
--
-- KEYS  1 the holds
-- ARGV  1 what is held, as the operator named it   2 ms for which it is held; "0" ends the hold
--       3 a Lua pattern of the locks' names, or ""   4 one of the tasks' names, or ""   5 the value
-- Reply the hold as JSON, see holds.lua; or of the one that was ended, or "" if there was none

local holds = KEYS[1]
local target, ms, names, tasks, value = unpack(ARGV)

-- include values.lua
-- include runs.lua
-- include records.lua

local time = redis.call('TIME')
local now = ms_of(time)
-- include holds.lua

local text = redis.call('HGET', holds, target) or ''
if ms == '0' then
  redis.call('HDEL', holds, target)
else
  text = hold_text(now + ms, names, tasks, value, time)
  redis.call('HSET', holds, target, text)
end

local last = now
for _, hold in ipairs(all_holds()) do
  if hold[2] <= now then
    redis.call('HDEL', holds, hold[1])
  end
  last = math.max(last, hold[2])
end
redis.call('PEXPIRE', holds, math.max(last - now, 1))
return text
