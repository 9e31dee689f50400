-- Take a lock, or learn who has it, where the case is plain: the lock has one slot; no note says that
-- this attempt has run; and the lock is free and nobody waits, or another task or a `RedisLock` has
-- it. If it is not, this does nothing, and acquire.lua is asked, which would do the same in the plain
-- case.
--
-- KEYS  1 lock  2 fence counter of the bucket  3 waiters  4 done note of this attempt  5 room
--       6 the runs of the task  7 the tasks whose runs are kept  8 the duplicates that were turned
--       away  9 the bucket's holds
-- ARGV  1 value  2 ttl in ms  3 the lock's id  4 this attempt  5 what happens if the lock is busy
--       6 how many runs the bucket's history keeps: as for acquire.lua. 5 may be "wait", too: the
--       caller will wait, so a busy lock is not plain
-- Reply nothing if the case is not plain; else as acquire.lua does

local lock, counter, waiters, done_note, room, runs, history, turned, holds = unpack(KEYS)
local value, ttl, lock_id, entry_id, if_busy, runs_kept = unpack(ARGV)

-- include values.lua

local slot = lock
local current = redis.pcall('GET', slot)
if not current then
  if redis.call('EXISTS', done_note, waiters, room, holds) > 0 then
    return nil
  end
  local time = redis.call('TIME')
-- include taking.lua
end

if if_busy == 'wait' or not is_of_another(current, entry_id, value)
    or redis.call('EXISTS', done_note) > 0 then
  return nil
end
local time = redis.call('TIME')
local ms, note = string.match(if_busy, '^(%d+):(.*)$')
if ms then
  redis.pcall('SET', done_note, note, 'PX', ms)
end
if if_busy ~= '' and runs_kept ~= '0' then
-- include runs.lua
-- include turned.lua
  current = count_for_run(slot, current)
  count_for_task()
end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return {'busy', current, redis.call('PTTL', slot), 'other', now}
