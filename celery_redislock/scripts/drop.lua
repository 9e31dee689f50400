-- Take tasks out of a waiting room: an operator's order. Their results are stored afterwards.
--
-- KEYS  1 room  2 entries  3 the bucket's rooms  4 ended  5 deadlines  6 aside
--       7.. the tasks' done notes
-- ARGV  1 the lock's id   2 the id of the task whose duplicates they are said to be, or ""
--       3 the done notes' ttl in ms   4 how many entries at most   5.. the tasks' ids in the room
-- Reply for each: id, entry or "". Without ids {"notes", the ids of the next tasks}, or {}

local room, entries, rooms, ended, deadlines, aside = unpack(KEYS)
local lock_id, in_favour_of, done_ttl, most = unpack(ARGV, 1, 4)
local ids, notes = {unpack(ARGV, 5)}, {unpack(KEYS, 7)}

-- include values.lua
-- include runs.lua
-- include records.lua
-- include entries.lua

if not ids[1] then
  ids = redis.call('LRANGE', room, 0, most - 1)
  local put_aside = some_of(aside, most - #ids)
  for i = 1, #put_aside, 2 do
    ids[#ids + 1] = put_aside[i]
  end
  return ids[1] and {'notes', unpack(ids)} or {}
end

local reply = {}
for i, id in ipairs(ids) do
  local entry = redis.call('HGET', aside, id)
  if entry then
    redis.call('HDEL', aside, id)
  else
    entry = take_out(id, true)
  end
  if entry then
    -- The entry may have had the turn, and its message may be on its way.
    redis.call('SET', notes[i], lasting(ENDED_NOTE), 'PX', done_ttl)
    redis.call('HSET', ended, id, ended_text(in_favour_of, entry))
  end
  reply[#reply + 1] = id
  reply[#reply + 1] = entry or ''
end
if redis.call('EXISTS', room) == 0 then
  redis.call('DEL', entries, deadlines)
end
-- If the caller dies now, a worker that looks after rooms stores their results.
look_now()
return reply
