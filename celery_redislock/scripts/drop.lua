-- Take tasks out of a waiting room: an operator's order. Their results are stored afterwards.
--
-- KEYS  1 room  2 entries  3 the bucket's rooms  4 ended  5 the prefix of the lock's done notes
--       6 deadlines  7 aside
-- ARGV  1 the lock's id   2 the id of the task whose duplicates they are said to be, or ""
--       3 the done notes' ttl in ms   4 how many entries at most
-- Reply for each: id, entry or ""

local room, entries, rooms, ended, done, deadlines, aside = unpack(KEYS)
local lock_id, in_favour_of, done_ttl, most = unpack(ARGV)

-- include values.lua
-- include runs.lua
-- include records.lua
-- include entries.lua

local reply = {}
local function drop(id, entry)
  if entry then
    -- The entry may have had the turn, and its message may be on its way.
    redis.call('SET', note_key(done, id), lasting(ENDED_NOTE), 'PX', done_ttl)
    redis.call('HSET', ended, id, ended_text(in_favour_of, entry))
  end
  reply[#reply + 1] = id
  reply[#reply + 1] = entry or ''
end

for _, id in ipairs(redis.call('LRANGE', room, 0, most - 1)) do
  drop(id, take_out(id, true))
end
if redis.call('EXISTS', room) == 0 then
  redis.call('DEL', entries, deadlines)
end
local put_aside = some_of(aside, most - #reply / 2)
for i = 1, #put_aside, 2 do
  redis.call('HDEL', aside, put_aside[i])
  drop(put_aside[i], put_aside[i + 1])
end
if #reply > 0 then
  -- If the caller dies now, a worker that looks after rooms stores their results.
  look_now()
end
return reply
