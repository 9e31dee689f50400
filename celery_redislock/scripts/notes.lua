-- Part of other scripts: a done note, as text. `protocol/notes.py` is the same in Python.

-- How a done note begins: the attempt must not run, since another task replaced it; or it is over. What
-- was replaced has such a kind too, if its end is not up to the message that meets the note.
local REPLACED_NOTE, ENDED_NOTE = 'r', '0'
-- A lasting note begins with this: it stays after the ack, since there may be another copy.
local LASTING = '+'

-- The same note as a lasting one.
local function lasting(note)
  return string.sub(note, 1, 1) == LASTING and note or LASTING .. note
end

-- Whether such a note says that the attempt is over, whatever follows.
local function says_over(note)
  return string.find(note, '^%+?[01]') ~= nil
end

-- The identity of the message whose attempt has ended, by such a note; nil if it was replaced.
local function message_of(note)
  return string.match(note, '^%+?[^+r](.*)$')
end

-- Whether such a note says that another task replaced the attempt.
local function says_replaced(note)
  return string.sub(note, 1, 1) == REPLACED_NOTE
end

-- The note of an attempt that was replaced by this one. With ENDED_NOTE, its result is stored for it:
-- no message of its own may do that, too.
local function replaced_note(successor, kind)
  return REPLACED_NOTE .. (kind or '') .. successor
end

-- Leave this note of an attempt that is over. What was replaced stays noted as replaced, whatever
-- becomes of its copies: one that came earlier must not take its successor's place in the room. A
-- lasting note stays lasting: only who left it knows of another copy. And what has ended stays so.
local function note_over(key, note, ttl)
  -- This comes first: a full server takes the note only after a write that needs no memory.
  local is_there = redis.call('PEXPIRE', key, ttl) == 1
  local before = is_there and redis.call('GET', key) or ''
  local kind, successor = string.match(before, '^' .. REPLACED_NOTE .. '(%w?)(%[.*)$')
  local new_kind = string.match(note, '%w')
  if not successor then
    local message = message_of(before) or ''
    if message ~= '' and message == message_of(note) and string.match(before, '%w') == ENDED_NOTE then
      note = string.gsub(note, '%w', ENDED_NOTE, 1)
    end
    redis.call('SET', key, before == lasting(before) and lasting(note) or note, 'PX', ttl)
  elseif kind ~= ENDED_NOTE and new_kind ~= REPLACED_NOTE then
    redis.call('SET', key, replaced_note(successor, new_kind), 'PX', ttl)
  end
end
