-- Leave the done note of an attempt that ends without the lock.
--
-- KEYS  1 lock, which an error names   2 done note
-- ARGV  1 the note   2 its ttl in ms
-- Reply nothing

local _, done_note = unpack(KEYS)
local note, ttl = unpack(ARGV)

-- include notes.lua

note_over(done_note, note, ttl)
