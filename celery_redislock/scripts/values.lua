-- Part of other scripts: a lock's value, as text. This is what scripts need most often; runs.lua and
-- records.lua have the rest. `protocol/holders.py` is the same in Python;
-- tests/contract/scripts/test_formats.py compares the two.
--
-- A value is JSON that opens with a token. Only a client with this token may extend or release the
-- lock; with "", nobody may. Scripts add fields at the end of the value.

local REDELIVERED = ',"redelivered":true'  -- another copy of the holder's message was seen
local REPLACED = ',"replaced":'            -- the ms at which the run must end; then its successor
local TURNED_AWAY = ',"turned_away":'      -- how many duplicates ended without a run

-- The version of the values that we write. `protocol/holders.py` has the rule for others.
local VERSION = 2

-- The ms of a reply of TIME: all times are this server's.
local function ms_of(time)
  return time[1] * 1000 + math.floor(time[2] / 1000)
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
