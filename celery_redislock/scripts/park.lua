-- Put a task whose lock is held into the lock's waiting room.
--
-- KEYS  1 lock  2 room: entry ids in order  3 entries, see entries.lua
--       4 the bucket's rooms: lock id -> ms at which to look at it
--       5 ended: id -> JSON of its successor's task id and its entry
--       6 deadlines: id -> ms at which it gives up  7 aside  8 waiters  9.. the lock's further slots
--       then the done notes of those that it replaces, in the order of ARGV
-- ARGV  1 entry id  2 entry  3 kind: earlier entries of this kind are replaced; "" replaces none
--       4 how many may wait, or ""  5 ms after which the entry gives up, or ""  6 "1" in front
--       7 the lock's id  8 task id  9 a token for a turn  10 the done notes' ttl in ms
--       11 ms after which others check that a replaced entry got its result
--       12 ms after which the holder is ended, or "" to leave it alone
--       13 this task's name and id, for those it replaces: a JSON list with exactly four quotes
--       14 when this task arrived, in ms of this server's clock, or "" if only its age is known
--       15 "1" this task has begun before: it goes before newer ones of its kind, replacing none
--       16 this task's age in ms: how long ago a worker received it
--       17.. the ids in the room of those that it replaces
-- Reply {"parked", {id and entry of each that it replaced}, {the turn given, see turns.lua}, ms
--       until the next look at the room}
--       {"full"}  no more may wait
--       {"older", task id}  the task that it would replace arrived later, and waits
--       {"older", "", value}  the task that it would replace arrived later, and has the lock
--       {"notes", id...}  nothing was done; ask again with the notes of these, too
--       {"ask", as in "parked", {}}  the task has its turn, or has the lock already: acquire again

local lock, room, entries, rooms, ended, deadlines, aside, waiters = unpack(KEYS)
local id, entry, kind, most, give_up_after, in_front, lock_id, task_id = unpack(ARGV, 1, 8)
local turn_token, done_ttl, look_again, replace_after, successor, arrived_at, began, age = unpack(ARGV, 9, 16)
local known = {unpack(ARGV, 17)}
local slots = {lock, unpack(KEYS, 9, #KEYS - #known)}
local their_notes = {unpack(KEYS, #KEYS - #known + 1)}

local AGAIN = 50  -- of so many replaced entries, one that asks again learns which it replaced
local limit, publishes = tonumber(most), true
local time = redis.call('TIME')
-- include values.lua
-- include runs.lua
-- include records.lua
-- include entries.lua
-- include kinds.lua
-- include turns.lua
-- The caller's machine measures the age. All times are this server's.
local arrived = tonumber(arrived_at) or now - age
local following = next_in_line(id)
local is_free = false

local function holder_in(slot)
  local current = redis.pcall('GET', slot)
  return current, record_of(current)
end

-- Of a task that is in the room, and asks again because the reply was lost: ids and entries of those
-- that it replaced, as far as they may have no result yet.
local function replaced_before()
  local found = {}
  local some = redis.call('HEXISTS', entries, id) == 1 and some_of(ended, AGAIN) or {}
  for i = 1, #some, 2 do
    local successor, its_entry = ended_of(some[i + 1])
    if successor == task_id then
      found[#found + 1] = some[i]
      found[#found + 1] = its_entry
    end
  end
  return found
end

for _, slot in ipairs(slots) do
  local current, holder = holder_in(slot)
  if not current then
    is_free = true
    if not following or following == id then
      return {'ask', replaced_before(), {}}
    end
  elseif holder and (holder.reserved or holder.task_id == task_id and not holder.cooling) then
    return {'ask', replaced_before(), {}}
  end
end

local function parked(reply)
  reply[3] = is_free and offer() or {}
  reply[4] = set_due(redis.call('EXISTS', ended) == 1 and now + look_again or nil)
  return reply
end

if redis.call('HEXISTS', entries, id) == 1 then
  -- Another copy of the message parked the task, or its turn came too early. This message ends.
  redis.call('HDEL', entries, '#' .. id)
  return parked({'parked', replaced_before()})
end

-- A task that a worker kept back must not end a task that arrived later.
local function is_newer(than)
  return than and than > arrived
end

local others, replaced = ids_of(kind), {}
for _, other in ipairs(began == '1' and {} or others) do
  local its_entry = redis.call('HGET', entries, other)
  local _, its_arrival = head_of(its_entry)
  if is_newer(tonumber(its_arrival)) then
    return {'older', parts_of(other) or other}
  end
  replaced[#replaced + 1] = {other, its_entry}
end
-- The id of the next attempt of a holder that this task replaces; nil if it replaces none.
local function id_replaced(holder)
  if not holder or holder.cooling or holder.turn or type(holder.task_id) ~= 'string' then
    return
  end
  if holder.queued or holder.held or holder.token ~= '' then
    local attempt = (tonumber(holder.attempt) or 0) + (holder.held and 1 or 0)
    return id_of(holder.task_id, tonumber(holder.nesting) or 0, attempt)
  end
end

for _, slot in ipairs(slots) do
  local current, holder = holder_in(slot)
  if replace_after ~= '' and holder and not holder.turn then
    local its_arrival = tonumber(holder.arrived_ms)
    if not its_arrival and holder.age_ms and holder.acquired_at then
      its_arrival = holder.acquired_at * 1000 - holder.age_ms
    end
    if is_newer(its_arrival) then
      return {'older', '', current}
    end
  end
end
if limit and redis.call('LLEN', room) - #replaced >= limit then
  return {'full'}
end

local notes, needed = {}, {'notes'}
for i, other in ipairs(known) do
  notes[other] = their_notes[i]
end
local function need(other)
  if other and not notes[other] then
    needed[#needed + 1] = other
  end
end
for _, other in ipairs(replaced) do
  need(other[1])
end
for _, slot in ipairs(replace_after ~= '' and slots or {}) do
  local _, holder = holder_in(slot)
  need(id_replaced(holder))
end
if needed[2] then
  return needed
end

-- The newest entry gets the place of the oldest; a task that has begun goes before newer ones.
if not others[1] or redis.call('LINSERT', room, 'BEFORE', others[1], id) < 1 then
  redis.call(in_front == '1' and 'LPUSH' or 'RPUSH', room, id)
end
redis.call('HDEL', aside, id)  -- the entry's message came after all, and its task waits again

local reply = {'parked', {}}
for _, other in ipairs(replaced) do
  take_out(other[1])
  if end_turn(other[1]) then
    is_free = true
  end
  -- The other entry may have had the turn, and its message may be on its way.
  redis.call('SET', notes[other[1]], REPLACED_NOTE .. successor, 'PX', done_ttl)
  redis.call('HSET', ended, other[1], ended_text(task_id, other[2]))
  reply[2][#reply[2] + 1] = other[1]
  reply[2][#reply[2] + 1] = other[2]
end
local of_kind = began == '1' and others or {}
table.insert(of_kind, 1, id)
list(kind, of_kind)

-- Tell the holder that it is replaced, and by whom. If no run has the lock, free the lock now. A
-- done note tells every copy of the holder's message: a replaced task stays replaced.
local function replace(slot)
  local current, holder = holder_in(slot)
  if not holder or holder.cooling or holder.turn then
    return
  end
  local waits, its_id = holder.queued or holder.held, id_replaced(holder)
  if its_id then
    local lives = math.max(redis.call('PTTL', slot), tonumber(done_ttl))
    redis.call('SET', notes[its_id], REPLACED_NOTE .. successor, 'PX', lives)
  end
  if waits and its_id then
    redis.call('DEL', slot)
    is_free = true
  elseif holder.token ~= '' then
    -- Name the newest successor, but count the time from the first one.
    local at = replaced_at(current) or now + replace_after
    redis.call('SET', slot, to_be_replaced(current, at, successor), 'KEEPTTL')
  end
end
if replace_after ~= '' then
  for _, slot in ipairs(slots) do
    replace(slot)
  end
end

local give_up = ''
if give_up_after ~= '' then
  give_up = string.format('%.0f', now + give_up_after)
  redis.call('ZADD', deadlines, give_up, id)
end
redis.call('HSET', entries, id, entry_text(give_up, kind, arrived, entry))
if is_free and next_in_line(id) == id then
  set_due(#replaced > 0 and now + look_again or nil)
  return {'ask', reply[2], {}}  -- the task replaced the entry that had the turn, or the holder
end
return parked(reply)
