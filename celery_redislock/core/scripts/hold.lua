-- Leave a lock that is still ours to the task's next attempt.
--
-- KEYS  1 lock  2 done note of this attempt  3 the runs of the task, see history.lua
--       4.. the lock's further slots
-- ARGV  1 the value's opening, {"token":"<token>"   2 the new value   3 ttl in ms
--       4 the done note's ttl in ms  5 the run's end, for the history: "<fence>|<ms>|<how>"; or ""
-- Reply 1 left | 0 not ours any more

local lock, done_note, runs = unpack(KEYS)
local slots = {lock, unpack(KEYS, 4)}
local opening, value, ttl, done_ttl, run_end = unpack(ARGV)

-- include values.lua
-- include history.lua

-- The note lasts in any case: whether a copy of the message was seen is not looked up here.
redis.call('SET', done_note, lasting(ENDED_NOTE), 'PX', done_ttl)
local slot, current = slot_under(opening)
note_end(runs, run_end, slot and current)
if not slot then
  return 0
end
redis.call('SET', slot, value, 'PX', ttl)
return 1
