-- Part of acquire.lua, twice: takes `slot`, which is free or kept for us, and records the run's begin,
-- see history.lua. The `reply` is the fence; and the value, if that does not tell it, or `tells`.

local RECORDS_OF_A_RUN = 3      -- in the history
local CUT_AFTER = 48            -- records, before a list of runs is cut again
local RUNS_LIVE = 90 * 86400    -- seconds for which a task's runs are kept after the last one
local RENEW_AFTER = 10 * 86400  -- seconds after which a list that is seldom cut is kept for longer

-- The time makes the fence rise if the counter is lost; the counter does if the clock goes back.
local micros = string.format('%06d', time[2])
local fence = time[1] .. micros
local number = tonumber(fence)
local least = (redis.call('GET', counter) or 0) + 1
local is_ahead = least > number
if is_ahead then
  fence = string.format('%.0f', least)
end
local stored = acquired(value, fence, time[1], micros)
redis.call('SET', slot, stored, 'PX', ttl)
redis.call('SET', counter, fence)
if runs_kept ~= '0' then
  local length = redis.pcall('RPUSH', runs, stored, lock_id)
  if type(length) == 'number' and (length % CUT_AFTER < RECORDS_OF_A_RUN
      or redis.call('PTTL', runs) < (RUNS_LIVE - RENEW_AFTER) * 1000) then
    -- The tasks of a bucket share its number of runs equally: none pushes out the runs of another.
    redis.pcall('ZADD', history, time[1], string.match(runs, '^[^}]*}:history:(.*)$'))
    redis.pcall('ZREMRANGEBYSCORE', history, '-inf', time[1] - RUNS_LIVE)
    redis.pcall('PEXPIRE', history, RUNS_LIVE * 1000)
    local tasks = tonumber(redis.pcall('ZCARD', history)) or 0
    local share = tasks > 0 and math.ceil(runs_kept / tasks) or 0
    local cut = share > 0 and redis.pcall('LTRIM', runs, -RECORDS_OF_A_RUN * share, -1)
    if not cut or cut.err then
      redis.pcall('DEL', runs)  -- a list that cannot be cut would grow for ever
    else
      redis.pcall('PEXPIRE', runs, RUNS_LIVE * 1000)
    end
  end
end
-- A number is the fastest reply to read.
local reply = (is_ahead or tells) and {'acquired', stored, fence} or number
