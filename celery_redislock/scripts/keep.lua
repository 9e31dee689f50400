-- Leave a lock that is still ours to the task's next attempt.
--
-- KEYS  1 lock  2 done note of this attempt  3 the runs of the task, see history.lua
--       4.. the lock's further slots
-- ARGV  1 the value's opening, {"token":"<token>"
--       2 the new value; or only its opening, if its holder died: the rest stays as it is   3 ttl in ms
--       4 the done note's ttl in ms, or "0" for no note
--       5 the run's end, for the history: "<fence>|<ms>|<how>", or only "<how>" if it died; or ""
-- Reply 1 left | 0 not ours any more; or the holder died, and a newer run is to have the lock

local lock, done_note, runs = unpack(KEYS)
local slots = {lock, unpack(KEYS, 4)}
local opening, value, ttl, done_ttl, run_end = unpack(ARGV)

-- include values.lua
-- include notes.lua
-- include runs.lua
-- include records.lua
-- include history.lua

-- Always leave a lasting note: this script does not look whether a copy of the message was seen.
if done_ttl ~= '0' then
  note_over(done_note, lasting(ENDED_NOTE), done_ttl)
end
local slot, current = slot_under(opening)
if string.sub(value, -1) ~= '}' then
  if not slot or string.find(current, REPLACED, 1, true) then
    return 0
  end
  value = value .. string.sub(current, #opening + 1)
  run_end = run_end ~= '' and ended_now(current, run_end, redis.call('TIME')) or ''
end
note_end(runs, run_end, slot and current)
if not slot then
  return 0
end
redis.call('SET', slot, value, 'PX', ttl)
return 1
