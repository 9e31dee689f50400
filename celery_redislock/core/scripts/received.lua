-- Note that a worker has received the message that was sent for an entry of a waiting room: it need
-- not be sent again.
--
-- KEYS  1 entries
-- ARGV  1 the entry's id  2 ms for which this is believed  3 the token of the turn that the message
--       was sent for; "" it was sent to give up
-- Reply 1 noted | 0 it waits for no such message: it has left, or was put there again

local state = redis.call('HGET', KEYS[1], '#' .. ARGV[1]) or ''
local offers, first, flag, tokens = string.match(state, '^(%d+)|(%d*)|(%a?)|%d+|(.*)$')
local gives_up = flag == 'g' or flag == 'h'
if not offers or gives_up ~= (ARGV[3] == '') or not string.find(tokens, ARGV[3], 1, true) then
  return 0
end
local time = redis.call('TIME')
local till = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
flag = gives_up and 'h' or 'r'
state = string.format('%d|%s|%s|%.0f|%s', offers, first, flag, till, tokens)
redis.call('HSET', KEYS[1], '#' .. ARGV[1], state)
return 1
