-- Take tasks out of a waiting room: an operator's order, or no worker took them for too long. Their
-- results are stored afterwards.
--
-- KEYS  1 room  2 entries  3 rooms  4 ended  5 deadlines  6 sent  7.. the tasks' done notes
-- ARGV  1 the lock's id   2 the id of the task whose duplicates they are said to be, or ""
--       3 the done notes' ttl in ms   4 how many tasks at most
--       5 how many members are named, to be dropped if their messages are still under way: they come
--       first; then the ids of the tasks that have the notes
-- Reply for each: id, entry or "". Or {"notes", id...}: nothing was done; ask again with the notes of these

local room, entries, rooms, ended, deadlines, sent = unpack(KEYS)
local lock_id, in_favour_of, done_ttl, most, named = unpack(ARGV, 1, 5)
local untaken, noted = {unpack(ARGV, 6, 5 + named)}, {unpack(ARGV, 6 + named)}
local their_notes = {unpack(KEYS, 7)}

-- include notes.lua
-- include entries.lua

local members = untaken[1] and {} or redis.call('LRANGE', room, 0, most - 1)
for _, member in ipairs(untaken) do
  -- Since it was named, its task may have come, or a newer call may have replaced it.
  if redis.call('ZSCORE', sent, member) then
    members[#members + 1] = member
  end
end

local notes, needed = {}, {'notes'}
for i, id in ipairs(noted) do
  notes[id] = their_notes[i]
end
for _, member in ipairs(members) do
  local id = state_of(member).id
  if not notes[id] then
    needed[#needed + 1] = id
  end
end
if needed[2] then
  return needed
end

local reply = {}
for _, member in ipairs(members) do
  local id = state_of(member).id
  local entry = take_out(member, true)
  if entry then
    -- Its message may be on its way.
    note_over(notes[id], lasting(ENDED_NOTE), done_ttl)
    redis.call('HSET', ended, id, ended_text(in_favour_of, entry, ms_of(redis.call('TIME'))))
  end
  reply[#reply + 1] = id
  reply[#reply + 1] = entry or ''
end
if reply[1] then
  look_soon()  -- if the caller dies now, a worker that looks after rooms stores their results
end
return reply
