-- Part of other scripts: what is in a waiting room. `protocol/entries.py` is the same in Python.
--
-- Needs the local `lock_id`, and as locals the keys that it uses:
--   room        the members, in order
--   entries     member -> "<ms at which it gives up>|<ms of its arrival>|<what was parked>"
--               "#" member -> "<ms at which to publish it>|<ms of the first call>|<receipt>|<its id>"
--   deadlines   member -> ms at which it gives up
--   sent        the members that are under way -> ms of their first publication
--   ended       id -> see `ended_text`
--   rooms       the bucket's rooms: lock id -> ms of the next look
-- A receipt says which delivery put the task there: "<worker>:<µs of that worker's clock>", if it is the
-- first one of the task, "/", and the delivery's token. By the token, each stay has another one.
-- An id is "<task id>:<how often the task replaced itself>.<attempt>". A member is an id; or "=" and
-- the name of a task: its pending slot, in which the newest call replaces the one before.

-- include runs.lua

-- Have a worker look at the room now, under the ids that it has: an operator may not know how many
-- slots the lock has.
local function look_soon()
  local name, ids = string.match(lock_id, '|(.*)$'), {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', rooms, '-inf', '+inf')) do
    ids[#ids + 1] = string.match(id, '|(.*)$') == name and id or nil
  end
  for _, id in ipairs(ids[1] and ids or {lock_id}) do
    redis.call('ZADD', rooms, string.format('%.0f', ms_of(redis.call('TIME'))), id)
  end
end

-- The id of the attempt that has the lock with this record, or that it is kept for; nil if none does.
local function attempt_of(holder)
  local attempt = (tonumber(holder.attempt) or 0) + (holder.held and 1 or 0)
  if type(holder.task_id) == 'string' then
    return string.format('%s:%d.%d', holder.task_id, tonumber(holder.nesting) or 0, attempt)
  end
end

-- Task id, nesting and attempt, as texts; nil if it is not an id.
local function parts_of(id)
  return string.match(id, '^(.*):(%d+)%.(%d+)$')
end

local function entry_text(gives_up_at, arrived, parked)
  return string.format('%s|%.3f|%s', gives_up_at, arrived, parked)
end

-- The ms at which it gives up, and of its arrival; nil if there are none.
local function times_of(entry)
  local gives_up_at, arrived = string.match(entry or '', '^(%d*)|([%d.]*)|')
  return tonumber(gives_up_at), tonumber(arrived)
end

local function with_deadline(entry, gives_up_at)
  return (string.gsub(entry, '^%d*', gives_up_at))
end

-- `due` is 0 for one that waits for its first chance; `first_call` is for a pending slot.
local function state_of(member)
  local text = redis.call('HGET', entries, '#' .. member) or ''
  local due, first_call, receipt, id = string.match(text, '^(%d+)|(%d*)|([^|]*)|(.*)$')
  local first = tonumber(first_call)
  return {due = tonumber(due) or 0, first_call = first, receipt = receipt, id = id or member}
end

local function save_state(member, state)
  local first_call = state.first_call and string.format('%.0f', state.first_call) or ''
  redis.call('HSET', entries, '#' .. member,
    string.format('%.0f|%s|%s|%s', state.due, first_call, state.receipt or '', state.id))
end

-- The name of the task of an entry; nil if it does not say. Our entries open with it.
local function task_of(entry)
  return string.match(entry, '^%d*|[%d.]*|{"task": ?"([^"\\]*)"')
    or decoded(string.match(entry, '^%d*|[%d.]*|(.*)$')).task
end

local function task_there(member)
  return task_of(redis.call('HGET', entries, member) or '')
end

-- The member as which the task with this id is in the room, or nil: its own, or its task's pending
-- slot. A copy of its message does not say which.
local function place_of(id, slot)
  if redis.call('HEXISTS', entries, id) == 1 then
    return id
  end
  return state_of(slot).id == id and slot or nil
end

-- Take an entry out of the room. Reply the entry, or false. `is_there` says that the member is in
-- the room even if its entry is lost: for one that is not there, LREM walks through the whole room.
-- HDEL comes first: a server without memory allows it.
local function take_out(member, is_there)
  local entry = redis.call('HGET', entries, member)
  redis.call('HDEL', entries, member, '#' .. member)
  redis.call('ZREM', deadlines, member)
  redis.call('ZREM', sent, member)
  if entry or is_there then
    redis.call('LREM', room, 1, member)
  end
  return entry
end

-- Take the task with this id out of the room, unless a newer one has its slot. With a receipt, only from
-- that stay: the task may have been put there again since.
local function leave(member, id, receipt)
  local state = state_of(member)
  if state.id == id and ((receipt or '') == '' or state.receipt == receipt) then
    return take_out(member)
  end
end

-- A replaced entry that may have no result yet, as text: its successor's task id, the entry, and the
-- ms at which somebody last began to store its result.
local function ended_text(successor, entry, ms)
  return cjson.encode({successor, entry, string.format('%.0f', ms)})
end

-- The successor's task id, the entry, and the ms; nil if it is not such a text.
local function ended_of(text)
  local parts = decoded(text)
  return parts[1], parts[2], tonumber(parts[3])
end
