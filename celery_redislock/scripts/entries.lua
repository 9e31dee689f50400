-- Part of other scripts: what is in a waiting room. `protocol/entries.py` is the same in Python;
-- tests/scripts/test_formats.py compares the two.
--
-- Needs the local `entries`; `take_out` needs `room` and `deadlines` too, `look_now` needs `rooms` and
-- `lock_id`. `entries` is a hash:
--   id -> "<ms at which it gives up>|<kind>@<ms of its arrival>|<what was parked>"
--   "#" id -> "<offers>|<ms of the first offer>|<flag>|<until ms>|<tokens of the turns offered>"
--   and the fields in kinds.lua
-- An id is "<task id>:<how often the task replaced itself>.<attempt>".

local GIVEN = 'u'               -- the turn is given, and its message is not yet published
local PUBLISHED = 'p'           -- its message is published; before `till` we do not think it lost
local RECEIVED = 'r'            -- a worker has received the message
local GIVING_UP = 'g'           -- the entry gives up, and a message to tell that is published
local GIVING_UP_RECEIVED = 'h'  -- a worker has received that message

-- The ms of a reply of TIME: all times in a room are this server's, in ms.
local function ms_of(time)
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Have a worker look at this room at that time.
local function look_at(ms)
  redis.call('ZADD', rooms, string.format('%.0f', ms), lock_id)
end

local function look_now()
  look_at(ms_of(redis.call('TIME')))
end

local function id_of(task_id, nesting, attempt)
  return string.format('%s:%d.%d', task_id, nesting, attempt)
end

-- Task id, nesting and attempt, as texts; nil if it is not an id.
local function parts_of(id)
  return string.match(id, '^(.*):(%d+)%.(%d+)$')
end

local function entry_text(gives_up_at, kind, arrived, parked)
  return string.format('%s|%s@%.0f|%s', gives_up_at, kind, arrived, parked)
end

-- The kind, and the ms of the arrival as a text; nil if it is not an entry.
local function head_of(entry)
  return string.match(entry, '^%d*|([^|@]*)@(%d*)|')
end

local function parked_of(entry)
  return string.match(entry, '^[^|]*|[^|]*|(.*)$') or ''
end

local function state_of(id)
  local text = redis.call('HGET', entries, '#' .. id) or ''
  local offers, first, flag, till, tokens = string.match(text, '^(%d+)|(%d*)|(%a?)|(%d+)|(.*)$')
  return {
    offers = tonumber(offers) or 0, first = tonumber(first), flag = flag or '',
    till = tonumber(till) or 0, tokens = tokens or '',
  }
end

local function save_state(id, state)
  redis.call('HSET', entries, '#' .. id, string.format('%d|%s|%s|%.0f|%s', state.offers,
    state.first and string.format('%.0f', state.first) or '', state.flag, state.till, state.tokens))
end

local function gives_up_by(state)
  return state.flag == GIVING_UP or state.flag == GIVING_UP_RECEIVED
end

-- Take an entry out of the room. Reply the entry, or false. `is_there` says that the id is in the
-- room even if its entry is lost: for an id that is not there, LREM walks through the whole room.
-- HDEL comes first: a server without memory allows it.
local function take_out(id, is_there)
  local entry = redis.call('HGET', entries, id)
  redis.call('HDEL', entries, id, '#' .. id)
  redis.call('ZREM', deadlines, id)
  if entry or is_there then
    redis.call('LREM', room, 1, id)
  end
  return entry
end

-- Some fields of a hash, flat: reading all of a large one would block the server. They are random,
-- so that fields that stay do not hide the others for ever.
local function some_of(hash, most)
  return redis.call('HRANDFIELD', hash, most, 'WITHVALUES') or {}
end

-- A replaced entry that may have no result yet, as text: its successor's task id, and the entry.
local function ended_text(successor, entry)
  return cjson.encode({successor, entry})
end

-- The successor's task id, and the entry; nil if it is not such a text.
local function ended_of(text)
  local is_json, parts = pcall(cjson.decode, text)
  if is_json and type(parts) == 'table' then
    return parts[1], parts[2]
  end
end
