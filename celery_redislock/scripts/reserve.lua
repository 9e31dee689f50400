-- Keep a lock for a task that is about to be published, or learn who has the lock. Idempotent.
--
-- KEYS  1 lock  2 room  3 entries  4 the bucket's rooms  5 deadlines  6 sent  7 waiters
--       8 ended  9 the bucket's holds  10.. the lock's further slots
-- ARGV  1 value, opening with {"token":"<token>"   2 ttl in ms   3 the lock's id
-- Reply {"reserved"}
--       {"busy", value, ms to live (-1: for ever), and the entry to publish, if any: see room.lua}
--           The value is "" if the lock is free and kept for the room.

local lock, room, entries, rooms, deadlines, sent, waiters, ended, holds = unpack(KEYS)
local slots = {lock, unpack(KEYS, 10)}
local value, ttl, lock_id = unpack(ARGV)

-- include values.lua
-- include runs.lua
-- include records.lua

local opening = opening_of(token_of(value))
local time = redis.call('TIME')
local publishes = true
-- include entries.lua
-- include room.lua
-- include holds.lua

local kept = with(value, acquired_now(time))

local free, held, current = nil, nil, {}
for i, slot in ipairs(slots) do
  current[i] = value_in(slot)
  if not current[i] then
    free = free or slot
  elseif is_under(current[i], opening) then
    change(slot, kept, ttl)
    return {'reserved'}
  else
    held = held or slot
  end
end

local on_hold = free and put_on_hold(current)
if on_hold then
  free, held = nil, slots[on_hold]
end
if free and (redis.call('EXISTS', room) == 0 or may_go('')) then
  redis.call('SET', free, kept, 'PX', ttl)
  return {'reserved'}
end
local offered = free and offer()
if offered then
  set_due()
end
local other = free and '' or redis.pcall('GET', held)
local left = free and 1000 or redis.call('PTTL', held)  -- the room comes first; not for long
return {'busy', type(other) == 'string' and other or '{}', left, unpack(offered or {})}
