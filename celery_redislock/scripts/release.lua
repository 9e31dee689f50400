-- Give a lock back, if it is still ours. Safe to call twice, late, or by a loser.
--
-- KEYS  1 lock  2 waiters  3 wake list  4 done marker of this attempt
--       5 fence counter of the bucket
-- ARGV  1 the value's opening, {"token":"<token>"
--       2 what to leave in the done marker: "1" its result is to be expected, "0" none is,
--         "" nothing: the attempt did not run to its end
--       3 "1" leave it in any case, "0" only if another copy of the message was seen
--       4 the done marker's ttl in ms   5 ms for which a freed lock is kept for a waiter
--       6 "1" an extension may still be on its way: it must not take the lock again
-- Reply 1 released | 0 not ours any more

local current = redis.pcall('GET', KEYS[1])
local ours = type(current) == 'string' and string.sub(current, 1, #ARGV[1]) == ARGV[1]

local function someone_waits()
  if redis.call('EXISTS', KEYS[2]) == 0 then
    return false
  end
  local now = redis.call('TIME')
  redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, now[1] * 1000 + math.floor(now[2] / 1000))
  return redis.call('EXISTS', KEYS[2]) == 1
end

if ours and someone_waits() then
  -- Without the reservation whoever just released would take it again before a waiter wakes.
  redis.call('SET', KEYS[1], '{"token":"","reserved":true}', 'PX', ARGV[5])
  redis.call('DEL', KEYS[3])
  redis.call('LPUSH', KEYS[3], '1')
  redis.call('PEXPIRE', KEYS[3], ARGV[5])
elseif ours then
  redis.call('DEL', KEYS[1])
end

-- Last: a server without memory refuses this as a first write, and not after one that frees some.
if ARGV[2] ~= '' then
  -- If the lock is gone, so is the note of whether a copy was seen.
  if ARGV[3] == '1' or not ours or string.find(current, '"redelivered":true', 1, true) then
    redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[4])
  end
end
if ARGV[6] == '1' then
  -- It says what the counter was when it was sent, and is refused if that has moved.
  local now = redis.call('TIME')
  local counter = math.max(tonumber(redis.call('GET', KEYS[5]) or 0) + 1, now[1] * 1000000 + now[2])
  redis.call('SET', KEYS[5], string.format('%.0f', counter))
end
return ours and 1 or 0
