-- Put an entry that was set aside back into the waiting room, behind the others: an operator's order.
--
-- KEYS  1 room  2 entries  3 aside  4 the bucket's rooms
-- ARGV  1 the entry's id  2 the lock's mark
-- Reply 1 put back | 0 there is none with that id

local entry = redis.call('HGET', KEYS[3], ARGV[1])
if not entry then
  return 0
end
if redis.call('HSET', KEYS[2], ARGV[1], entry) == 1 then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  -- It was offered before: whoever publishes it looks whether it has run elsewhere.
  redis.call('HSET', KEYS[2], '#' .. ARGV[1], '1|||0|')
end
redis.call('HDEL', KEYS[3], ARGV[1])
local now = redis.call('TIME')
redis.call('ZADD', KEYS[4], now[1] * 1000 + math.floor(now[2] / 1000), ARGV[2])
return 1
