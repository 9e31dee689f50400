-- Keep a lock for a task that is about to be published, or learn who has it. Idempotent, as a take.
--
-- KEYS  1 lock  2 room  3 entries  4 the bucket's rooms  5 deadlines  6 aside  7 waiters
--       8 ended  9.. the lock's further slots
-- ARGV  1 value, opening with {"token":"<token>"   2 length of that opening   3 ttl in ms
--       4 the lock's mark
-- Reply {"reserved"}
--       {"busy", value, ms to live (-1: for ever), and if somebody in the room got the turn: see
--       turns.lua}

local opening = string.sub(ARGV[1], 1, tonumber(ARGV[2]))
local slots = {KEYS[1], unpack(KEYS, 9)}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local R = {
  slots = slots, room = KEYS[2], entries = KEYS[3], rooms = KEYS[4], deadlines = KEYS[5],
  aside = KEYS[6], ended = KEYS[8], waiters = KEYS[7], mark = ARGV[4], publishes = true,
  token = string.sub(opening, 11, -2) .. '.' .. time[1] .. time[2],
}
-- include turns.lua

local function keep(slot, condition)
  local stored = string.format('%s,"acquired_at":%s.%06d}', string.sub(ARGV[1], 1, -2), time[1], time[2])
  redis.call('SET', slot, stored, condition, 'PX', ARGV[3])
  return {'reserved'}
end

local free, held
for _, slot in ipairs(slots) do
  local current = redis.pcall('GET', slot)
  if not current then
    free = free or slot
  elseif type(current) == 'string' and string.sub(current, 1, #opening) == opening then
    return keep(slot, 'XX')
  else
    held = held or slot
  end
end

local offered
if free and redis.call('EXISTS', KEYS[2]) == 1 then
  offered = offer()
  if offered then
    set_due()
    held, free = free, nil
  end
end
if free then
  return keep(free, 'NX')
end
local value = redis.pcall('GET', held)
return {'busy', type(value) == 'string' and value or '', redis.call('PTTL', held), unpack(offered or {})}
