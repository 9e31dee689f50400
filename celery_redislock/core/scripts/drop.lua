-- Take out who waits in a waiting room: an operator's order. What they end in is stored afterwards.
--
-- KEYS  1 room  2 entries  3 the bucket's rooms  4 ended  5 what the lock's done notes begin with
--       6 deadlines  7 aside
-- ARGV  1 the lock's mark   2 the id of the task that they are said to be duplicates of, or ""
--       3 the done notes' ttl in ms   4 how many at most
-- Reply for each: id, entry or ""

local reply = {}
local function drop(id, entry)
  if entry then
    -- Its message may be on its way: it had the turn, perhaps.
    redis.call('SET', KEYS[5] .. ':' .. id, '0', 'PX', ARGV[3])
    redis.call('HSET', KEYS[4], id, cjson.encode({ARGV[2], entry}))
  end
  reply[#reply + 1] = id
  reply[#reply + 1] = entry or ''
end

for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, ARGV[4] - 1)) do
  local entry = redis.call('HGET', KEYS[2], id)
  redis.call('LREM', KEYS[1], 1, id)
  redis.call('HDEL', KEYS[2], id, '#' .. id)
  redis.call('ZREM', KEYS[6], id)
  drop(id, entry)
end
local aside = redis.call('HGETALL', KEYS[7])
for i = 1, #aside, 2 do
  if #reply / 2 < tonumber(ARGV[4]) then
    drop(aside[i], aside[i + 1])
    redis.call('HDEL', KEYS[7], aside[i])
  end
end
if #reply > 0 then
  -- If whoever asked dies now, a worker that looks after rooms stores their results.
  local now = redis.call('TIME')
  redis.call('ZADD', KEYS[3], now[1] * 1000 + math.floor(now[2] / 1000), ARGV[1])
end
return reply
