-- Put a task into the lock's waiting room: its lock is held, or its policy has it wait first.
--
-- KEYS  1 lock  2 room  3 entries  4 rooms  5 ended  6 deadlines  7 sent  8 waiters
--       9 done note of this attempt  10 suspended  11 wake list  12.. the lock's further slots
--       then the done notes of those that it replaces, in the order of ARGV
-- ARGV  1 member  2 entry  3 entry id  4 how many may wait, or ""  5 ms until it gives up, or ""
--       6 "1" in front of all others  7 the lock's id  8 task id  9 the done notes' ttl in ms
--       10 ms after which others check that a replaced entry got its result
--       11 ms after which the holder is ended, or "" to leave it alone
--       12 this task's name and id, for those it replaces: a JSON list with exactly four quotes
--       13 when this task arrived, in ms of this server's clock, or "" if only its age is known
--       14 this task's age in ms: how long ago a worker received it   15 its receipt
--       16 ms without a call of this member after which it is published, or "" for no such wait
--       17 ms since the first call after which it is published in any case  18 its pending slot
--       19 the opening of its delivery's claim, if a request for the lock may come late; or ""
--       20.. the ids in the room of those that it replaces
-- Reply {"parked", {id and entry of each that it replaced}, {what `send` replies, if there is something
--       to publish}, ms until the next look, the value of one of the lock's slots, or "", and the
--       suspension that keeps the task from the lock, as JSON, if there is one}
--       {"full"}  no more may wait
--       {"older", task id}  the task that it would replace arrived later, and waits
--       {"older", "", value}  the task that it would replace arrived later, and has the lock
--       {"done", the note, ms until it expires}  another task has replaced it, as the note says
--       {"notes", id...}  nothing was done; ask again with the notes of these, too
--       {"ask", as in "parked", {}}  the task need not wait: acquire now

local lock, room, entries, rooms, ended, deadlines, sent, waiters, done_note = unpack(KEYS)
local suspended, wake = unpack(KEYS, 10)
local member, entry, id, most, give_up_after, in_front, lock_id, task_id = unpack(ARGV, 1, 8)
local done_ttl, look_again, replace_after, successor = unpack(ARGV, 9, 12)
local arrived_at, age, receipt, quiet, longest, pending, late = unpack(ARGV, 13, 19)
local known = {unpack(ARGV, 20)}
local slots = {lock, unpack(KEYS, 12, #KEYS - #known)}
local their_notes = {unpack(KEYS, #KEYS - #known + 1)}

local limit, publishes = tonumber(most), true
local time = redis.call('TIME')
-- include notes.lua
-- include records.lua
-- include room.lua
-- The caller's machine measures the age. All times are this server's.
local arrived = tonumber(arrived_at) or time[1] * 1000 + time[2] / 1000 - age
local waits_first = quiet ~= ''
if redis.call('EXISTS', room) == 0 then
  redis.call('DEL', entries, deadlines, sent)  -- the server may have evicted the room alone
end
-- A task is in the room once, also if a copy of its message comes.
member = place_of(id, pending) or member

local suspension = suspension_of(string.sub(pending, 2))
if suspension then
  replace_after = ''  -- what runs goes on
end

-- The slots whose holders this task replaces, with their records: a release that is newer than ours
-- may mean something else by its fields, and is only waited for.
local held_by, replaceable, reserved = '', {}, {}
for _, slot in ipairs(slots) do
  local current = redis.pcall('GET', slot)
  local holder = record_of(current) or {}
  holder = is_newer(holder) and {} or holder
  local is_own = holder.task_id == task_id and not holder.cooling
  if suspension and is_own and holder.queued and string.find(id, ':0.0', -4, true) then
    reserved[#reserved + 1] = slot  -- its place in the room takes that of its reservation
  elseif is_own or holder.reserved and not waits_first and not suspension then
    return {'ask', {}, {}}
  else
    held_by = type(current) == 'string' and current or held_by
    if replace_after ~= '' and holder.token and not holder.cooling then
      replaceable[#replaceable + 1] = {slot, current, holder}
    end
  end
end

local before = redis.call('HGET', entries, member)
local state = state_of(member)
local is_there = before and state.id == id
if not (waits_first or suspension) and (is_there or not before) and may_go(member) then
  return {'ask', {}, {}}
end

local function parked(replaced)
  if late ~= '' then
    retire(late)
  end
  local offered = offer()
  -- A release may have woken this task, while it waited in a pool slot: let another one in.
  if suspension and not offered and someone_waits() and may_go('') then
    wake_one(BESIDE_WAITERS)
  end
  return {
    'parked', replaced, offered or {},
    set_due(redis.call('EXISTS', ended) == 1 and now + look_again or nil),
    held_by, suspension and as_text(suspension),
  }
end

-- The ms at which the member gives up, as text; "" if it does not.
local function new_deadline()
  if give_up_after == '' then
    return ''
  end
  local gives_up_at = string.format('%.0f', now + give_up_after)
  redis.call('ZADD', deadlines, gives_up_at, member)
  return gives_up_at
end

local function give_up_reservation()
  if reserved[1] then
    redis.call('DEL', unpack(reserved))
  end
end

if is_there then
  give_up_reservation()
  -- Another copy of the message parked the task, or it came and the lock was held. This message ends.
  if not waits_first then
    -- This comes first: a full server takes the rest only after it.
    redis.call('ZREM', sent, member)
    state.due = 0
    state.receipt = string.gsub(state.receipt or '', '/.*$', '') .. (string.match(receipt, '/.*$') or '')
    save_state(member, state)
    local gives_up_at = times_of(before)
    if gives_up_at and (give_up_after == '' or gives_up_at <= now) then
      -- It gave up, and waits on all the same: with that time, it would be published at once.
      redis.call('ZREM', deadlines, member)
      redis.call('HSET', entries, member, with_deadline(before, new_deadline()))
    elseif gives_up_at then
      redis.call('ZADD', deadlines, gives_up_at, member)
    end
  end
  return parked({})
end

-- A task that a worker kept back must not end one that arrived later. Of two that one worker received,
-- its own clock tells the order: calls take longer than there is between two messages.
local function is_later(its_arrival, its_receipt)
  local worker, at = string.match(receipt, '^(%x+):(%d+)')
  local its_worker, its_time = string.match(its_receipt or '', '^(%x+):(%d+)')
  if worker and worker == its_worker then
    return tonumber(its_time) > tonumber(at)
  end
  return its_arrival and its_arrival > arrived
end

if before then
  -- Of two that arrived at the same time, each would replace the other.
  local note = redis.call('GET', done_note)
  if note and says_replaced(note) then
    return {'done', note, redis.call('PTTL', done_note)}
  end
  local _, its_arrival = times_of(before)
  if is_later(its_arrival, state.receipt) then
    return {'older', parts_of(state.id) or state.id}
  end
end

local notes, needed = {}, {'notes'}
for i, other in ipairs(known) do
  notes[other] = their_notes[i]
end
if before and not notes[state.id] then
  needed[#needed + 1] = state.id
end
for _, each in ipairs(replaceable) do
  local _, current, holder = unpack(each)
  local its_arrival = tonumber(holder.arrived_ms)
  if not its_arrival and holder.age_ms and holder.acquired_at then
    its_arrival = holder.acquired_at * 1000 - holder.age_ms
  end
  if is_later(its_arrival, holder.receipt) then
    return {'older', '', current}
  end
  local its_id = attempt_of(holder)
  if its_id and not notes[its_id] then
    needed[#needed + 1] = its_id
  end
end
if limit and not before and redis.call('LLEN', room) >= limit then
  return {'full'}
elseif needed[2] then
  return needed
end

give_up_reservation()
local replaced = {}
if before then
  -- The newest call gets the place of the one before, whose message may be on its way.
  redis.call('ZREM', sent, member)
  redis.call('ZREM', deadlines, member)
  redis.call('SET', notes[state.id], replaced_note(successor, ENDED_NOTE), 'PX', done_ttl)
  redis.call('HSET', ended, state.id, ended_text(task_id, before, now))
  replaced = {state.id, before}
end
if before and in_front == '1' then
  redis.call('LREM', room, 1, member)
end
if not before or in_front == '1' then
  redis.call(in_front == '1' and 'LPUSH' or 'RPUSH', room, member)
end

-- Tell each holder, and by a done note its message's copies, who replaces it. Free what no run has.
for _, each in ipairs(replaceable) do
  local slot, current, holder = unpack(each)
  local its_id = attempt_of(holder)
  if its_id then
    local lives = math.max(redis.call('PTTL', slot), tonumber(done_ttl))
    redis.call('SET', notes[its_id], replaced_note(successor), 'PX', lives)
  end
  if its_id and (holder.queued or holder.held) then
    local rest = rest_of_pause(current, now)
    if rest > 0 then
      change(slot, cooling_down(current), rest)
    else
      redis.call('DEL', slot)
    end
  elseif holder.token ~= '' then
    -- Name the newest successor, but count the time from the first one.
    local at = replaced_at(current) or now + replace_after
    redis.call('SET', slot, to_be_replaced(current, at, successor), 'KEEPTTL')
  end
end

local gives_up_at = new_deadline()
local first_call = waits_first and (before and state.first_call or now) or nil
local due = waits_first and math.min(now + quiet, first_call + longest) or 0
redis.call('HSET', entries, member, entry_text(gives_up_at, arrived, entry))
save_state(member, {due = due, first_call = first_call, receipt = receipt, id = id})
-- One that only comes back, and is put in front, does not overtake those that are under way.
local may_be_next = before or waits_first or replace_after ~= ''
if may_be_next and not suspension and due <= now and may_go(member) then
  set_due(before and now + look_again or nil)
  return {'ask', replaced, {}}  -- the task replaced the one that was next, or the holder
end
return parked(replaced)
