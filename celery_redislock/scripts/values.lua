-- Part of other scripts: a lock's value and a done note, as texts. This is what scripts need most
-- often; records.lua has the rest. `protocol/holders.py` and `protocol/notes.py` are the same in
-- Python; tests/contract/scripts/test_formats.py compares the two.
--
-- A value is JSON that opens with a token. Only a client with this token may extend or release the
-- lock; with "", nobody may. Scripts add fields at the end of the value.

local REDELIVERED = ',"redelivered":true'  -- another copy of the holder's message was seen
local REPLACED = ',"replaced":'            -- the ms at which the run must end; then its successor

local TURNED_AWAY = ',"turned_away":'      -- how many duplicates ended without a run

-- How a done note begins: the attempt must not run, since another task replaced it; or it is over.
local REPLACED_NOTE, ENDED_NOTE = 'r', '0'
-- A lasting note begins with this: it stays after the ack, since there may be another copy.
local LASTING = '+'

-- The same note as a lasting one.
local function lasting(note)
  return string.sub(note, 1, 1) == LASTING and note or LASTING .. note
end

-- Whether an attempt's done note says that another task replaced it.
local function says_replaced(key)
  return string.sub(redis.call('GET', key) or '', 1, 1) == REPLACED_NOTE
end

-- Leave this note of an attempt that is over. What was replaced stays noted as replaced, whatever
-- becomes of its copies: one that came earlier must not take its successor's place in the room.
local function note_over(key, note, ttl)
  if says_replaced(key) then
    redis.call('PEXPIRE', key, ttl)
  else
    redis.call('SET', key, note, 'PX', ttl)
  end
end

-- `micros` has six digits.
local function acquired(value, fence, seconds, micros)
  return string.sub(value, 1, -2) .. ',"fence":' .. fence
    .. ',"acquired_at":' .. seconds .. '.' .. micros .. '}'
end

-- Whether this is a value with this opening.
local function is_under(value, opening)
  return type(value) == 'string' and string.sub(value, 1, #opening) == opening
end

-- The first of the local `slots` whose value has this opening, and the value; or nil.
local function slot_under(opening)
  for _, slot in ipairs(slots) do
    local current = redis.pcall('GET', slot)
    if is_under(current, opening) then
      return slot, current
    end
  end
end
