-- Keep a lock for a task that is about to be published, or learn who has it. Idempotent, as a take.
--
-- KEYS  1 lock  2 room: who waits, in order   3.. the lock's further slots
-- ARGV  1 value, opening with {"token":"<token>"   2 length of that opening   3 ttl in ms
-- Reply {"reserved"}
--       {"busy", value, ms to live (-1: for ever)}
--       {"room", entry id}  it is free, and the turn of this one, who waits in the room

local opening = string.sub(ARGV[1], 1, tonumber(ARGV[2]))
local slots = {KEYS[1], unpack(KEYS, 3)}
local mine, free, held, value

for _, slot in ipairs(slots) do
  local current = redis.pcall('GET', slot)
  if not current then
    free = free or slot
  elseif type(current) == 'string' and string.sub(current, 1, #opening) == opening then
    mine = slot
  elseif not held then
    held, value = slot, type(current) == 'string' and current or ''
  end
end

if not mine and free then
  local first = redis.call('LINDEX', KEYS[2], 0)
  if first then
    return {'room', first}
  end
end
if not mine and not free then
  return {'busy', value, redis.call('PTTL', held)}
end
local now = redis.call('TIME')
local stored = string.format('%s,"acquired_at":%s.%06d}', string.sub(ARGV[1], 1, -2), now[1], now[2])
redis.call('SET', mine or free, stored, 'PX', ARGV[3])
return {'reserved'}
