-- Part of acquire.lua: cuts a list of runs, see history.lua. The tasks of a bucket share its number
-- of runs equally, so that no task pushes out the runs of another.
redis.pcall('ZADD', history, time[1], task)
redis.pcall('ZREMRANGEBYSCORE', history, '-inf', time[1] - KEPT_FOR)
redis.pcall('PEXPIRE', history, KEPT_FOR * 1000)
local tasks = tonumber(redis.pcall('ZCARD', history)) or 0
local share = tasks > 0 and math.ceil(runs_kept / tasks) or 0
local reply = share > 0 and redis.pcall('LTRIM', runs, -RECORDS_OF_A_RUN * share, -1)
if not reply or reply.err then
  redis.pcall('DEL', runs)  -- a list that cannot be cut would grow for ever
else
  redis.pcall('PEXPIRE', runs, KEPT_FOR * 1000)
end
