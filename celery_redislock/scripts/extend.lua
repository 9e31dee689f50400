-- Extend a lock that is still ours; optionally take it again if it has vanished.
--
-- KEYS  1 lock  2 fence counter of the bucket  3 who broke which lock, see records.lua
--       4.. the lock's further slots
-- ARGV  1 value as stored, or its opening   2 ttl in ms   3 "1" take it again if it is missing
--       4 fence   5 ms since the acquisition after which the lock is no longer extended, or ""
--       6 the counter as it was when the lock was last known to be ours
--       7 if the body has described itself: what it said, a JSON string with exactly two quotes
-- Reply {1 extended | 2 was missing, taken again | 0 not ours any more, counter}
--       {1, counter, the value, ms until the run is ended}  another run replaces this one
--       {0, counter, who, as JSON, or "" if that is not known}  an operator broke it

local lock, fence_counter, broken = unpack(KEYS)
local slots = {lock, unpack(KEYS, 4)}
local value, ttl, retakes, fence, max_hold, last_counter, description = unpack(ARGV)

-- include records.lua

local opening = opening_of(value)
local counter = redis.call('GET', fence_counter) or '0'
local free

for _, slot in ipairs(slots) do
  local current = redis.pcall('GET', slot)
  if not current then
    free = free or slot
  elseif is_under(current, opening) then
    local since = max_hold ~= '' and acquired_at(current)
    if since and ms_of(redis.call('TIME')) - since * 1000 > tonumber(max_hold) then
      return {0, counter}
    end
    redis.call('PEXPIRE', slot, ttl)
    if description then
      -- If the server refuses this, the next extension brings it again.
      redis.pcall('SET', slot, described(current, description), 'KEEPTTL')
    end
    local at = replaced_at(current)
    if at then
      return {1, counter, current, at - ms_of(redis.call('TIME'))}
    end
    return {1, counter}
  end
end

local by = broken_by(redis.call('GET', broken), opening)
if by then
  return {0, counter, by}
end
-- The key is gone: the server came back empty, failed over, or evicted it. If the counter has risen,
-- somebody has since taken a lock of this bucket: perhaps this one, and released it.
if not free or retakes ~= '1' or tonumber(counter) > tonumber(last_counter) then
  return {0, counter}
end
change(free, value, ttl)
-- The next fence is the time. It is higher, unless this server's clock is behind the old server's.
local time = redis.call('TIME')
if math.max(tonumber(counter), time[1] * 1000000 + time[2]) < tonumber(fence) then
  redis.call('SET', fence_counter, fence)
  counter = fence
end
return {2, counter}
