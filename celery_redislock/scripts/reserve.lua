-- Keep a lock for a task that is about to be published, or learn who has the lock. Idempotent.
--
-- KEYS  1 lock  2 room  3 entries  4 the bucket's rooms  5 deadlines  6 aside  7 waiters
--       8 ended  9.. the lock's further slots
-- ARGV  1 value, opening with {"token":"<token>"   2 ttl in ms   3 the lock's id
-- Reply {"reserved"}
--       {"busy", value, ms to live (-1: for ever), and the turn given, if any: see turns.lua}

local lock, room, entries, rooms, deadlines, aside, waiters, ended = unpack(KEYS)
local slots = {lock, unpack(KEYS, 9)}
local value, ttl, lock_id = unpack(ARGV)

-- include values.lua
-- include runs.lua
-- include records.lua

local opening = opening_of(token_of(value))
local time = redis.call('TIME')
local publishes, turn_token = true, next_token(value, time)
-- include entries.lua
-- include turns.lua

local function keep(slot, condition)
  redis.call('SET', slot, with(value, acquired_now(time)), condition, 'PX', ttl)
  return {'reserved'}
end

local free, held
for _, slot in ipairs(slots) do
  local current = redis.pcall('GET', slot)
  if not current then
    free = free or slot
  elseif is_under(current, opening) then
    return keep(slot, 'XX')
  else
    held = held or slot
  end
end

local offered
if free and redis.call('EXISTS', room) == 1 then
  offered = offer()
  if offered then
    set_due()
    held, free = free, nil
  end
end
if free then
  return keep(free, 'NX')
end
local other = redis.pcall('GET', held)
return {'busy', type(other) == 'string' and other or '', redis.call('PTTL', held), unpack(offered or {})}
