-- Give a lock back, if it is still ours. Safe to call twice, late, or by a loser.
--
-- KEYS  1 lock  2 waiters  3 wake list  4 done marker of this attempt
--       5 fence counter of the bucket  6 room  7 the bucket's rooms
--       8.. the lock's further slots
-- ARGV  1 the value's opening, {"token":"<token>"
--       2 what to leave in the done marker: "1" its result is to be expected, "0" none is,
--         "" nothing: the attempt did not run to its end
--       3 "1" leave it in any case, "0" only if another copy of the message was seen
--       4 the done marker's ttl in ms   5 ms for which a freed lock is kept for a waiter
--       6 the lock's name
--       and, unless it is the plain case:
--       7 "1" an extension may still be on its way: it must not take the lock again
--       8 ms since the acquisition for which the lock stands on, or "0"
-- Reply 2 released, and somebody is in the room | 1 released | 0 not ours any more

local slot, current
for _, key in ipairs({KEYS[1], unpack(KEYS, 8)}) do
  current = redis.pcall('GET', key)
  if type(current) == 'string' and string.sub(current, 1, #ARGV[1]) == ARGV[1] then
    slot = key
    break
  end
end
-- If the lock is gone, so is the note of whether a copy was seen.
local leaves_mark = ARGV[2] ~= ''
  and (ARGV[3] == '1' or not slot or string.find(current, '"redelivered":true', 1, true))

-- Most often nobody waits, and the lock need not stand on.
if slot and not ARGV[7] and redis.call('EXISTS', KEYS[2], KEYS[6]) == 0 then
  redis.call('DEL', slot)
  if leaves_mark then
    redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[4])
  end
  return 1
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function someone_waits()
  redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, now)
  return redis.call('EXISTS', KEYS[2]) == 1
end

local function still_to_stand()
  local min_hold = tonumber(ARGV[8]) or 0
  local since = min_hold > 0 and tonumber(string.match(current, '"acquired_at":([%d.]+)'))
  -- Never for longer than that: the clock may have been set back meanwhile.
  return since and math.min(math.ceil(since * 1000 + min_hold - now), min_hold) or 0
end

local reply = slot and 1 or 0
if slot then
  local rest = still_to_stand()
  local in_room = redis.call('EXISTS', KEYS[6]) == 1
  if rest > 0 then
    -- Nobody's any more: without the token nobody extends or releases it.
    local done = '{"token":"","cooling":true' .. string.sub(current, #ARGV[1] + 1)
    redis.call('SET', slot, done, 'PX', rest)
  elseif not in_room and someone_waits() then
    -- Without the reservation whoever just released would take it again before a waiter wakes.
    redis.call('SET', slot, '{"token":"","reserved":true}', 'PX', ARGV[5])
    redis.call('DEL', KEYS[3])
    redis.call('LPUSH', KEYS[3], '1')
    redis.call('PEXPIRE', KEYS[3], ARGV[5])
  else
    redis.call('DEL', slot)
  end
  if in_room then
    -- Who released hands over. If it dies before it has, a worker that looks after rooms does.
    redis.call('ZADD', KEYS[7], now + math.max(rest, 0), ARGV[6])
    reply = rest > 0 and 1 or 2
  end
end

-- Last: a server without memory refuses this as a first write, and not after one that frees some.
if leaves_mark then
  redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[4])
end
if ARGV[7] == '1' then
  -- It says what the counter was when it was sent, and is refused if that has moved.
  local counter = math.max(tonumber(redis.call('GET', KEYS[5]) or 0) + 1, time[1] * 1000000 + time[2])
  redis.call('SET', KEYS[5], string.format('%.0f', counter))
end
return reply
