-- Part of other scripts: a lock's value, as text. This is what scripts need most often; runs.lua and
-- records.lua have the rest. `protocol/holders.py` is the same in Python.
--
-- A value is JSON that opens with a token. Only a client with this token may extend or release the
-- lock; with "", nobody may. Scripts add fields at the end of the value.

local REDELIVERED = ',"redelivered":true'  -- another copy of the holder's message was seen
local REPLACED = ',"replaced":'            -- the ms at which the run must end; then its successor
local PAUSED = ',"paused_until":'          -- the ms until which others must not have the lock
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

-- Whether another task has the lock than the one with this entry id, or a `RedisLock` that did not
-- store `own`. False also if only decoding the value could tell: JSON escapes some characters of an
-- id, and the value may be of another version.
local function is_of_another(value, entry_id, own)
  if not (is_under(value, '{"token":"') and string.find(value, ',"v":' .. VERSION .. ',', 1, true)) then
    return false
  end
  local _, last = string.find(value, ',"task_id":"', 1, true)
  if last then
    local id = string.match(value, '^([^"\\]*)"', last + 1)
    return id and not is_under(entry_id, id .. ':')
  end
  return string.find(value, ',"task_id":null,', 1, true)
    and not is_under(value, string.match(own, '^{"token":"[^"]*"'))
end
