-- Take a lock, or learn who has it. Idempotent: for the same token it replies "acquired" again.
--
-- KEYS  1 lock  2 fence counter of the bucket  3 waiters  4 done note of this attempt  5 room
--       6 entries  7 rooms  8 deadlines  9 sent  10 ended  11 the runs of the task  12 history
--       13 turned  14 suspended  15.. the lock's further slots, if several may hold it at once
-- ARGV  1 value, opening with {"token":"<token>"   2 ttl in ms   3 the lock's id
--       4 this attempt: <task id, or "">:<how often the task replaced itself>.<attempt>
--       5 what happens if the lock is busy: "" the task may still run; else it ends without a run,
--       and leaves a done note: "<ms to keep it>:<note>", or ":" for no note
--       6 how many runs the bucket's history keeps; "0" if there is none
--       The rest is left out by who tries once, and of whom it says nothing:
--       7 how: "try" once, "wait", "woken" after a wait, or "last" before giving up a wait
--       8 the identity of the message whose done note keeps this attempt from running; "" any note
--       does   9 ms after which a waiter is dead
--       10 the opening of the lock's value, if the lock is kept for this message; or ""
--       11 the id of the task that may have replaced itself with this one, or ""
-- Reply the fence, a number, if it is the time of the acquisition in us
--       {"acquired", value as stored, fence}  if the fence is not that time, or for a second call
--       {"done", the note, ms until it expires, or -1, and ms since then if the lock has the note}
--           this attempt has run before, or must not run; see `notes` in docs/inside/redis.md
--       {"busy", value, ms to live (-1: for ever), relation, now in ms, and what `send` replies, if
--           there is something to publish}. The relation is "own" this very attempt
--           | "earlier" this task's earlier attempt | "reserved" free, and kept for a waiter
--           | "foreign" not a lock of ours | "newer" of a newer release: perhaps this very attempt
--           | "suspended" free, or kept for this message: the value is the suspension | "other"

local lock, counter, waiters, done_note, room, entries, rooms, deadlines, sent, ended = unpack(KEYS)
local runs, history, turned, suspended = unpack(KEYS, 11)
local slots = {lock, unpack(KEYS, 15)}
local value, ttl, lock_id, entry_id, note_if_busy, runs_kept = unpack(ARGV)
local how, again, waiter_ttl, kept_opening, parent = unpack(ARGV, 7)

local time = redis.call('TIME')

-- include values.lua

-- The plain case: one slot, no note says that this attempt has run, nobody waits in a pool slot, and
-- the lock is free and nobody waits in the room, or another has it. The rest would do the same, and
-- takes longer.
if #slots == 1 and (not how or how == 'wait' and kept_opening .. parent == '') then
  local slot, current, tells = lock, redis.pcall('GET', lock), false
  if not current and redis.call('EXISTS', done_note, waiters, room, suspended) == 0 then
    -- include taking.lua
    return reply
  elseif not how and is_of_another(current, entry_id, value)
      and redis.call('EXISTS', done_note, waiters) == 0 then  -- a late request is among the waiters
    -- include duplicate.lua
    return {'busy', current, redis.call('PTTL', slot), 'other', ms_of(time)}
  end
end

how, again, kept_opening, parent = how or 'try', again or '', kept_opening or '', parent or ''
-- include notes.lua
-- include records.lua
-- include entries.lua
local opening = opening_of(value)
local task_id, nesting, attempt = parts_of(entry_id)
local publishes, task = task_id ~= '', string.match(runs, '^[^}]*}:history:(.*)$')
-- include room.lua
local member = place_of(entry_id, '=' .. task) or entry_id

-- `kept` is the value of a slot that is taken over. A pause that it was to keep goes on.
local function settled(slot, kept)
  -- Free memory first: a server that is out of memory refuses the other writes if they come first.
  if how ~= 'try' or kept then
    redis.call('ZREM', waiters, opening)
  end
  local pause = kept and rest_of_pause(kept, now) or 0
  pause = kept and is_cooling(kept) and redis.call('PTTL', slot) or pause
  value = paused(value, pause, now)
  local has_room = redis.call('EXISTS', room) == 1
  if has_room and task_id ~= '' then
    leave(member, entry_id)
  end
  local tells = pause > 0
  -- include taking.lua
  if has_room then
    set_due()
  end
  return reply
end

-- The order of the runs under one task id: a task's replacement counts its retries from 0.
local function order(nestings, attempts)
  return (tonumber(nestings) or 0) * 1000000 + (tonumber(attempts) or 0)
end
local mine = order(nesting, attempt)

local current, holders, kept, runs_itself = {}, {}, nil, false
for i, slot in ipairs(slots) do
  current[i] = redis.pcall('GET', slot)
  local holder = record_of(current[i])
  holders[i] = holder
  if is_under(current[i], opening) then
    redis.call('PEXPIRE', slot, ttl)
    return {'acquired', current[i], fence_of(current[i])}
  elseif kept_opening ~= '' and is_under(current[i], kept_opening) then
    kept = i
  elseif holder and holder.task_id == task_id and not is_newer(holder)
      and not (holder.cooling or holder.held or holder.queued) then
    -- Whether another copy of this very message has the lock.
    runs_itself = runs_itself or order(holder.nesting, holder.attempt) == mine
  end
end

-- Whether such a done note keeps this attempt from running.
local function counts(note)
  return again == '' or again == message_of(note)
end

-- A lock kept since the message was sent proves that no copy ran.
if task_id ~= '' and not kept then
  local done = redis.call('GET', done_note)
  -- A run that must end for a newer one, but still runs, may yet have a result of its own.
  if done and counts(done) and not (says_replaced(done) and runs_itself) then
    return {'done', done, redis.call('PTTL', done_note)}
  end
end

-- The reply if this task is suspended; nil if not. Nobody wakes it: it is not among the waiters.
local function kept_off()
  local suspension = suspension_of(task)
  if suspension then
    redis.call('ZREM', waiters, opening)
    return {'busy', as_text(suspension), suspension['until'] - now, 'suspended', now}
  end
end

-- Take a lock that is kept for this message. What has begun goes on, whatever is suspended.
local function take_kept(slot, value)
  return mine == 0 and kept_off() or settled(slot, value)
end

-- The reply if somebody else has the slot with this number, or comes before.
local function busy(i, relation, offered)
  if how == 'wait' or how == 'woken' then
    enlist(opening, now + waiter_ttl, tonumber(waiter_ttl))
  elseif how == 'last' then
    redis.call('ZREM', waiters, opening)
  end
  local slot, current = slots[i], current[i] or ''
  if relation == 'other' or relation == 'foreign' then
    -- include duplicate.lua
  end
  local left = redis.call('PTTL', slot)
  -- A free slot is kept for the room; not for long.
  local text = relation ~= 'foreign' and current or ''
  return {'busy', text, left == -2 and 1000 or left, relation, now, unpack(offered or {})}
end

if is_retired(opening) then  -- nobody waits for this reply
  how, note_if_busy = 'late', ''
  return busy(1, 'other')
elseif kept then
  return take_kept(slots[kept], current[kept])
end

-- A slot of this task's own comes before a free one: the task must not run beside its other run.
local free, reserved, other, relation
for i, slot in ipairs(slots) do
  local holder = holders[i]
  local theirs = holder and order(holder.nesting, holder.attempt)
  local is_own = holder and task_id ~= '' and holder.task_id == task_id
  local is_child = holder and parent ~= '' and holder.task_id == parent and mine > theirs
  if not current[i] then
    free = free or i
  elseif not holder then
    other, relation = other or i, relation or 'foreign'
  elseif is_newer(holder) then
    other, relation = other or i, 'newer'
  elseif holder.reserved then
    reserved = reserved or i
  elseif is_own and mine == theirs and holder.done and counts(holder.done[1]) then
    return {'done', holder.done[1], -1, math.max(now - holder.done[2], 0)}
  elseif not (is_own or is_child) or mine < theirs and (holder.cooling or again ~= '')
      or mine == theirs and holder.cooling and not holder.unfinished then
    other, relation = other or i, relation or 'other'
  elseif mine < theirs then
    return {'done', ENDED_NOTE, -1}
  elseif mine == theirs and holder.unfinished then
    return kept_off() or settled(slot, current[i])  -- a copy of what died waits where it is suspended
  elseif mine > theirs then
    -- The lock is kept for us, or from others only; or its holder missed a heartbeat: that run is dead
    -- or has given up.
    if holder.held or holder.queued or holder.cooling
        or redis.call('PTTL', slot) < (tonumber(holder.ttl_ms) or tonumber(ttl)) / 2 then
      return settled(slot, current[i])
    end
    return busy(i, 'earlier')
  elseif holder.queued then
    return take_kept(slot, current[i])  -- kept for this message, though it has no token for it
  else
    if not string.find(current[i], REDELIVERED, 1, true) then
      current[i] = with(current[i], REDELIVERED)
      redis.call('ZREM', waiters, opening)  -- a full server takes the mark only after this
      redis.call('SET', slot, current[i], 'KEEPTTL')
    end
    return busy(i, 'own')
  end
end

local suspension = (free or reserved) and kept_off()
if suspension then
  return suspension
elseif free and may_go(member) then
  return settled(slots[free])
elseif free then
  local offered = publishes and offer() or nil
  if offered then
    set_due()
  end
  return busy(free, 'other', offered)
elseif reserved and how ~= 'wait' then
  -- A task that does not wait may go first: no run holds the lock, so the task must not be refused.
  return settled(slots[reserved])
end
return busy(reserved or other, reserved and 'reserved' or relation)
