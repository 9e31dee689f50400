-- Take a lock away from whoever holds it: an operator's order.
--
-- KEYS  1 lock  2 broken mark  3 waiters  4 wake list
-- Reply the value that stood there, or false if there was none or it is not a lock of ours

local current = redis.pcall('GET', KEYS[1])
if type(current) ~= 'string' then
  return false
end
local ok, holder = pcall(cjson.decode, current)
if not ok or type(holder) ~= 'table' or type(holder.token) ~= 'string' then
  return false
end
-- The mark lives as long as the holder may believe in its right, lest it take the lock again.
-- One that was broken just before may believe so too.
local ttl = math.max(tonumber(holder.ttl_ms) or 0, redis.call('PTTL', KEYS[1]),
  redis.call('PTTL', KEYS[2]), 1000)
local marks = string.sub(redis.call('GET', KEYS[2]) or '', -4096)
redis.call('SET', KEYS[2], marks .. '{"token":"' .. holder.token .. '"', 'PX', ttl)
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[3]) == 1 then
  redis.call('DEL', KEYS[4])
  redis.call('LPUSH', KEYS[4], '1')
  redis.call('PEXPIRE', KEYS[4], ttl)
end
return current
