-- Leave a lock that is still ours to the task's next attempt.
--
-- KEYS  1 lock  2 done marker of this attempt   3.. the lock's further slots
-- ARGV  1 the value's opening, {"token":"<token>"   2 the new value   3 ttl in ms
--       4 the done marker's ttl in ms
-- Reply 1 left | 0 not ours any more

redis.call('SET', KEYS[2], '0', 'PX', ARGV[4])
for _, slot in ipairs({KEYS[1], unpack(KEYS, 3)}) do
  local current = redis.pcall('GET', slot)
  if type(current) == 'string' and string.sub(current, 1, #ARGV[1]) == ARGV[1] then
    redis.call('SET', slot, ARGV[2], 'PX', ARGV[3])
    return 1
  end
end
return 0
