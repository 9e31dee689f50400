-- Note that a worker has received the message that was sent for an entry of a waiting room: nobody
-- need send it again.
--
-- KEYS  1 entries
-- ARGV  1 the entry's id  2 ms for which others rely on this  3 the token of the turn that the
--       message was sent for; "" if it was sent since the entry gives up
-- Reply 1 noted | 0 the entry waits for no such message: it has left, or was parked again

local entries = KEYS[1]
local id, believed_for, turn_token = unpack(ARGV)

-- include entries.lua

local state = state_of(id)
local gives_up = gives_up_by(state)
if gives_up ~= (turn_token == '') or not string.find(state.tokens, turn_token, 1, true) then
  return 0
end
state.till = ms_of(redis.call('TIME')) + believed_for
state.flag = gives_up and GIVING_UP_RECEIVED or RECEIVED
save_state(id, state)
return 1
