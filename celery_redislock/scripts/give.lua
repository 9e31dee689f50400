-- Give back a lock where the case is plain: it has one slot and is still ours, it is free at once,
-- nobody waits, no note was left, and no copy of the message was seen. If it is not, this does
-- nothing, and settle.lua is asked, which would do the same in the plain case.
--
-- KEYS  1 lock  2 waiters  3 room  4 done note of this attempt  5 the runs of the task
-- ARGV  1 the opening of the value that is given back   2 the done note to leave, or ""
--       3 the done note's ttl in ms   4 the run's end, for the history; or ""
-- Reply 1 given back; or nothing if the case is not plain

local lock, waiters, room, done_note, runs = unpack(KEYS)
local opening, note, done_ttl, run_end = unpack(ARGV)

-- include values.lua
-- include history.lua

local current = redis.pcall('GET', lock)
if not is_under(current, opening) or string.find(current, REDELIVERED, 1, true)
    or redis.call('EXISTS', waiters, room, done_note) > 0 then
  return nil
end
redis.call('DEL', lock)
if note ~= '' then
  redis.call('SET', done_note, note, 'PX', done_ttl)
end
note_end(runs, run_end, current)
return 1
