-- Leave the done note of an attempt that ends without the lock.
--
-- KEYS  1 lock, which an error names   2 done note
-- ARGV  1 the note   2 its ttl in ms
-- Reply nothing; or, if a copy of the message has left this very note: {"done", the note, ms until it
--       would have expired}

local _, done_note = unpack(KEYS)
local note, ttl = unpack(ARGV)

-- include notes.lua

local before, left = redis.call('GET', done_note), redis.call('PTTL', done_note)
note_over(done_note, note, ttl)
if before and lasting(before) == lasting(note) then
  return {'done', before, left}
end
