-- Settle what a delivery holds: its lock, which may be left to the task's next message, the
-- reservation that is kept for it, and its place in the room. Safe to call twice, late, or in vain.
--
-- KEYS  1 lock  2 waiters  3 wake list  4 done note of this attempt  5 fence counter of the bucket
--       6 room  7 rooms  8 entries  9 deadlines  10 sent  11 ended  12 the runs of the task
--       13 suspended  14.. the lock's further slots
-- ARGV  1 the opening of the value that is given back   2 the done note to leave, or ""
--       3 "1" leave it in any case, "0" only if another copy of the message was seen
--       4 the done note's ttl in ms   5 ms for which a freed lock is kept for a waiter
--       6 the lock's id   7 "1" the caller can publish a task, "0" it cannot
--       8 the run's end, for the history: "<fence>|<ms>|<how>", or only "<how>" if this script adds
--       the rest; "" for none. What follows is left out if nothing of it is said:
--       9 what may still be on its way, and must not take the lock: "1" an extension, "2" a request
--       for the lock, "3" both, "0" neither
--       10 ms since the acquisition until which the lock stays taken, or "0"
--       11 the member that leaves the room, or ""   12 its id   13 its receipt, or ""
--       14 ms from now for which others must not have the lock, or "0"
--       15 the value by which the lock is left to a message of the task; or only its opening, if its
--       holder died: the rest stays as it is; or ""   16 its ttl in ms
--       17 the id of an attempt whose process died: a lock that was left to it is given back too; or ""
-- Reply 1 given back, left, or taken out of the room | 0 not ours any more, or a newer run is to have
--       it; or, if the room is not empty, or 11 is given: {the same, ms until the next look, and what
--       `send` replies, if there is something to publish}

local lock, waiters, wake, done_note, counter, room, rooms, entries, deadlines, sent, ended = unpack(KEYS)
local runs, suspended = unpack(KEYS, 12)
local slots = {lock, unpack(KEYS, 14)}
local opening, note, always, done_ttl, reserve_for, lock_id, can_publish, run_end = unpack(ARGV)
local stray, min_hold, leaver, leavers_id, receipt, pause, heir, heirs_ttl, died = unpack(ARGV, 9)

-- include history.lua

-- The plain case, for which the rest would do the same, and take longer: the first slot is still ours,
-- and free at once; nobody waits; no note was left, no copy was seen, and no pause was asked for.
local is_whole = run_end == '' or string.find(run_end, '|', 1, true)
if not stray and is_whole then
  local current = redis.pcall('GET', lock)
  if is_under(current, opening) and not string.find(current, REDELIVERED, 1, true)
      and not string.find(current, PAUSED, 1, true)
      and redis.call('EXISTS', waiters, room, done_note) == 0 then
    redis.call('DEL', lock)
    if note ~= '' and always == '1' then
      redis.call('SET', done_note, note, 'PX', done_ttl)
    end
    note_end(runs, run_end, current)
    return 1
  end
end

local time = redis.call('TIME')
local publishes = can_publish == '1'
pause, heir = tonumber(pause) or 0, heir or ''

-- include notes.lua
-- include records.lua
-- include room.lua

-- The first slot with a value of which this is true, and the value; or nil.
local function find(is_meant)
  for _, slot in ipairs(slots) do
    local value = redis.pcall('GET', slot)
    if is_meant(value) then
      return slot, value
    end
  end
end

local slot, current = find(function(value) return is_under(value, opening) end)
if not slot and (died or '') ~= '' then
  run_end, is_whole = '', true
  slot, current = find(function(value)
    local holder = record_of(value)
    return holder and holder.held and not is_newer(holder) and attempt_of(holder) == died
  end)
end
-- If the lock is gone, it no longer says whether a copy was seen: assume so.
local was_copied = not slot or string.find(current, REDELIVERED, 1, true)
local leaves_note = note ~= '' and (always == '1' or heir ~= '' or was_copied)
if leaves_note and was_copied then
  note = lasting(note)
end
if not is_whole then
  run_end = slot and ended_now(current, run_end, time) or ''
end
if heir ~= '' and string.sub(heir, -1) ~= '}' then  -- its holder died
  if not slot or string.find(current, REPLACED, 1, true) then
    return 0
  end
  heir = heir .. string.sub(current, #opening_of(current) + 1)
end

local leaves, left = (leaver or '') ~= '', nil
if leaves then
  left = leave(leaver, leavers_id, receipt)
  leaves_note = leaves_note and left
  if leaves_note then
    -- The caller stores its result. If the caller dies before, a worker that looks after the room does.
    redis.call('HSET', ended, leavers_id, ended_text('', left, now))
  end
end

local rest = 0
if not slot then
  if not is_retired(opening) then
    redis.call('ZREM', waiters, opening)  -- who gave up a wait is none of the waiters any more
  end
elseif heir ~= '' then
  heir = paused(heir, pause, now)
  rest = math.max(heirs_ttl, rest_of_pause(heir, now))
  change(slot, heir, rest)
else
  local hold, since = tonumber(min_hold) or 0, acquired_at(current)
  -- Never longer than `min_hold`: the clock may have been set back meanwhile.
  rest = since and math.min(math.ceil(since * 1000 + hold - now), hold) or 0
  rest = math.max(rest, pause, rest_of_pause(current, now))
  if rest > 0 then
    change(slot, cooling_down(current, says_over(note) and note, now, note == ''), rest)
    if someone_waits() then
      wake_one(rest)  -- so that the waiter learns when the lock will be free
    end
  else
    redis.call('DEL', slot)
  end
end

local has_room = redis.call('EXISTS', room) == 1
local offered = has_room and publishes and heir == '' and offer(false, slot) or nil
if slot and rest <= 0 and not offered and someone_waits() and may_go('') then
  -- Without the reservation, the next one to ask would take the lock before the waiter wakes.
  redis.call('SET', slot, RESERVED, 'PX', reserve_for)
  wake_one(reserve_for)
end

local reply = (slot or left) and 1 or 0
if has_room or leaves then
  reply = {reply, set_due(leaves_note and left and now + KEPT_FOR), unpack(offered or {})}
end

-- Do this last: a server without memory allows it only after a write that frees memory.
if leaves_note then
  note_over(done_note, note, done_ttl)
elseif note ~= '' and slot and string.find(current, REPLACED, 1, true) then
  -- That note stops copies, but no copy was seen. Only the message of a run that died comes back.
  redis.call('DEL', done_note)
end
note_end(runs, run_end, slot and current)
if stray == '2' or stray == '3' then
  retire(opening)
end
-- Not for a request: its sender may never have had the lock, and who has it may have to take it again.
if stray == '1' or stray == '3' then
  -- That extension carries the counter as it was, and cannot take the lock again if it has risen.
  local highest = math.max(tonumber(redis.call('GET', counter) or 0) + 1, time[1] * 1000000 + time[2])
  redis.call('SET', counter, string.format('%.0f', highest))
end
return reply
