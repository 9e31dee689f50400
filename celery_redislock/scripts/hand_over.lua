-- Say who in a waiting room is to be published now: the first, if the lock is free, or if it gives up.
-- It stays in the room until it takes the lock.
--
-- KEYS  1 lock  2 room  3 entries; "#" counts how often the first was handed over  4 the bucket's rooms  5 ended  6 corrupt entries
--       7.. the lock's further slots
-- ARGV  1 the lock's name  2 entry id that is to leave the room first, or ""
--       3 "1" put that one to the corrupt ones
--       4 ms until the first is handed over again, doubled each time  5 most of that
-- Reply {id, entry, "1" it gives up | "0", and for each that was replaced and may have no result
--       yet: id, entry}; id is "" if none is to be published

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function take_out(id, is_corrupt)
  local entry = redis.call('HGET', KEYS[3], id)
  redis.call('LREM', KEYS[2], 1, id)
  redis.call('HDEL', KEYS[3], id, '#')
  if is_corrupt then
    redis.call('RPUSH', KEYS[6], id .. '|' .. (entry or ''))
  end
end

if ARGV[2] ~= '' then
  take_out(ARGV[2], ARGV[3] == '1')
end
local first, entry
while true do
  first = redis.call('LINDEX', KEYS[2], 0)
  entry = first and redis.call('HGET', KEYS[3], first)
  if not first or entry then
    break
  end
  take_out(first, true)
end

local ended = redis.call('HGETALL', KEYS[5])
if not first and #ended == 0 then
  redis.call('ZREM', KEYS[4], ARGV[1])
  return {'', '', '0'}
end

local reply = {'', '', '0'}
local is_free, due = false, now + ARGV[5]
for _, slot in ipairs({KEYS[1], unpack(KEYS, 7)}) do
  local left = redis.call('PTTL', slot)  -- -2 if it is free, -1 if it stands for ever
  is_free = is_free or left == -2
  if left >= 0 then
    due = math.min(due, now + left)
  end
end
if first then
  local give_up = tonumber(string.match(entry, '^(%d+)|'))
  local gives_up = give_up and now >= give_up
  if gives_up or is_free then
    local tries = redis.call('HINCRBY', KEYS[3], '#', 1)
    due = now + math.min(ARGV[4] * 2 ^ math.min(tries - 1, 30), ARGV[5])
    reply = {first, entry, gives_up and '1' or '0'}
  elseif give_up then
    due = math.min(due, give_up)
  end
end
if #ended > 0 then
  due = math.min(due, now + ARGV[4])
end
redis.call('ZADD', KEYS[4], due, ARGV[1])
for _, each in ipairs(ended) do
  reply[#reply + 1] = each
end
return reply
