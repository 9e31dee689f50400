-- Take a lock away from whoever holds it: an operator's order.
--
-- KEYS  1 lock  2 broken mark  3 waiters  4 wake list  5 room  6 the bucket's rooms
--       7.. the lock's further slots
-- ARGV  1 the lock's name   2 the opening of the only value that is to be broken, or ""
-- Reply the values that stood there, if they are locks of ours

local broken, longest = {}, math.max(redis.call('PTTL', KEYS[2]), 1000)
for _, slot in ipairs({KEYS[1], unpack(KEYS, 7)}) do
  local current = redis.pcall('GET', slot)
  local ok, holder = false, nil
  if type(current) == 'string' then
    ok, holder = pcall(cjson.decode, current)
  end
  local meant = ARGV[2] == '' or ok and string.sub(current, 1, #ARGV[2]) == ARGV[2]
  if ok and meant and type(holder) == 'table' and type(holder.token) == 'string' then
    -- The mark lives as long as the holder may believe in its right, lest it take the lock again.
    -- One that was broken just before may believe so too.
    longest = math.max(tonumber(holder.ttl_ms) or 0, redis.call('PTTL', slot), longest)
    local marks = string.sub(redis.call('GET', KEYS[2]) or '', -4096)
    redis.call('SET', KEYS[2], marks .. '{"token":"' .. holder.token .. '"', 'PX', longest)
    redis.call('DEL', slot)
    broken[#broken + 1] = current
  end
end
if #broken > 0 then
  if redis.call('EXISTS', KEYS[5]) == 1 then
    local now = redis.call('TIME')
    redis.call('ZADD', KEYS[6], now[1] * 1000 + math.floor(now[2] / 1000), ARGV[1])
  elseif redis.call('EXISTS', KEYS[3]) == 1 then
    redis.call('DEL', KEYS[4])
    redis.call('LPUSH', KEYS[4], '1')
    redis.call('PEXPIRE', KEYS[4], longest)
  end
end
return broken
