-- Raise the fence counter of a bucket, never lower it.
--
-- KEYS  1 fence counter of the bucket
-- ARGV  1 the fence that the next one must exceed
-- Reply 1

local counter = KEYS[1]
local fence = unpack(ARGV)

if (tonumber(redis.call('GET', counter)) or 0) < tonumber(fence) then
  redis.call('SET', counter, fence)
end
return 1
