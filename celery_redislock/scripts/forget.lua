-- Delete done notes of attempts whose messages the broker will not deliver again.
--
-- KEYS  1 done note   2.. more of them
-- ARGV  1 the most ms to live of a note to delete: a note with more was left later, by another run
-- Reply nothing

local done_note = KEYS[1]
local done_notes = {done_note, unpack(KEYS, 2)}
local most = ARGV[1]

-- include notes.lua

for _, each in ipairs(done_notes) do
  local note, left = redis.call('GET', each), redis.call('PTTL', each)
  if note and left >= 0 and left <= tonumber(most) and note ~= lasting(note) and not says_replaced(note) then
    redis.call('DEL', each)
  end
end
