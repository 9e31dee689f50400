-- Leave the done note of an attempt that ends without the lock.
--
-- KEYS  1 lock, which an error names   2 done note
-- ARGV  1 the note   2 its ttl in ms
-- Reply nothing; or, if a run or copy of the message has left its note: {"done", that note, ms until it
--       would have expired}

local _, done_note = unpack(KEYS)
local note, ttl = unpack(ARGV)

-- include notes.lua

local before, left = redis.call('GET', done_note), redis.call('PTTL', done_note)
note_over(done_note, note, ttl)
local message = before and message_of(before)
if message and message == message_of(note) then
  return {'done', before, left}
end
