-- Put an entry that was set aside back at the end of the waiting room: an operator's order.
--
-- KEYS  1 room  2 entries  3 aside  4 the bucket's rooms
-- ARGV  1 the entry's id  2 the lock's id
-- Reply 1 put back | 0 there is none with that id

local room, entries, aside, rooms = unpack(KEYS)
local id, lock_id = unpack(ARGV)

-- include entries.lua
-- include kinds.lua

local entry = redis.call('HGET', aside, id)
if not entry then
  return 0
end
if redis.call('HEXISTS', entries, id) == 0 then
  local kind = head_of(entry) or ''
  local ids = ids_of(kind)
  ids[#ids + 1] = id
  list(kind, ids)
  redis.call('RPUSH', room, id)
  redis.call('HSET', entries, id, entry)
  -- The entry was offered before: its publisher then checks whether the task has run elsewhere.
  save_state(id, {offers = 1, flag = '', till = 0, tokens = ''})
end
redis.call('HDEL', aside, id)
look_now()
return 1
