-- Keep a lock for a task that is about to be published, or learn who has the lock. Idempotent. Also
-- under a suspension: the message that it is kept for waits in the queue, and then in the room.
--
-- KEYS  1 lock  2 room  3 entries  4 rooms  5 deadlines  6 sent  7 waiters  8 ended  9 suspended
--       10.. the lock's further slots
-- ARGV  1 value, opening with {"token":"<token>"   2 ttl in ms   3 the lock's id
-- Reply {"reserved"}
--       {"busy", value, or "" if the lock is free and kept for the room, ms to live (-1: for ever), and
--           what `send` replies, if there is something to publish}
--       {"waits", the id of a call of this task that waits in the room, 0, and as in "busy"}

local lock, room, entries, rooms, deadlines, sent, waiters, ended, suspended = unpack(KEYS)
local slots = {lock, unpack(KEYS, 10)}
local value, ttl, lock_id = unpack(ARGV)

local time = redis.call('TIME')
local publishes = true
-- include records.lua
-- include room.lua

local opening, task = opening_of(value), record_of(value).task

local kept = with(value, acquired_now(time))

local free, held, other
for _, slot in ipairs(slots) do
  local current = redis.pcall('GET', slot)
  if not current then
    free = free or slot
  elseif is_under(current, opening) then
    change(slot, kept, ttl)
    return {'reserved'}
  else
    held, other = held or slot, other or current
  end
end

local waiting
for _, member in ipairs(free and redis.call('LRANGE', room, 0, #slots + 15) or {}) do
  waiting = waiting or task_there(member) == task and state_of(member).id
end
if free and not waiting and (redis.call('EXISTS', room) == 0 or may_go('')) then
  redis.call('SET', free, kept, 'PX', ttl)
  return {'reserved'}
end
local offered = free and offer()
if offered then
  set_due()
end
if waiting then
  return {'waits', waiting, 0, unpack(offered or {})}
end
local left = free and 1000 or redis.call('PTTL', held)  -- the room comes first; not for long
other = free and '' or type(other) == 'string' and other or '{}'
return {'busy', other, left, unpack(offered or {})}
