-- Part of other scripts: the waiting room, and whose turn it is.
--
-- A turn is a reservation. The slot has the turn's own token until the message that is sent for it
-- arrives, or until the turn lapses. The entry stays in the room until its task takes the lock.
--
-- Needs these locals:
--   slots, room, entries, deadlines, aside, rooms, ended, waiters   keys
--   wake         the wake list's key, in scripts that let a waiter in
--   lock_id      the lock's id, in `rooms`
--   turn_token   the token of the turn that may be given
--   publishes    whether the caller can publish a task
--   time         TIME's reply

local now = ms_of(time)

local PAUSE = 5000          -- how long the first turn lasts, in ms; doubled with each offer
local OFFERS = 4            -- how often a turn is offered before the entry is set aside
local BESIDE_WAITERS = 1000 -- the longest turn while tasks wait in pool slots: it may need a slot

local put_aside = {}  -- ids and entries, flat, for the log
local function set_aside(id)
  local entry = take_out(id)
  if entry then
    redis.call('HSET', aside, id, entry)
    put_aside[#put_aside + 1], put_aside[#put_aside + 2] = id, entry
  end
end

-- End the turn of an entry that leaves the room. Reply the slot that this frees, or nil.
local function end_turn(id)
  local freed
  for _, slot in ipairs(slots) do
    if turn_of(redis.pcall('GET', slot)) == id then
      redis.call('DEL', slot)
      freed = slot
    end
  end
  return freed
end

local function someone_waits()
  redis.call('ZREMRANGEBYSCORE', waiters, 0, now)
  return redis.call('EXISTS', waiters) == 1
end

local function beside_waiters(pause)
  return someone_waits() and math.min(pause, BESIDE_WAITERS) or pause
end

local function wake_one(ms)
  redis.call('DEL', wake)
  redis.call('LPUSH', wake, '1')
  redis.call('PEXPIRE', wake, ms)
end

-- Without the reservation, the next one to ask would take the lock before the waiter wakes.
local function let_waiter_in(slot, ms)
  redis.call('SET', slot, RESERVED, 'PX', ms)
  wake_one(ms)
end

-- The first ids of the room. One of them is next in line, unless all are away or have a turn.
local function front()
  return redis.call('LRANGE', room, 0, #slots + 15)
end

local function turns_given()
  local turns = {}
  for _, slot in ipairs(slots) do
    local id = turn_of(redis.pcall('GET', slot))
    if id then
      turns[id] = true
    end
  end
  return turns
end

-- Whether the entry's message is on its way, or with a worker.
local function is_sent(state)
  return state.flag ~= '' and state.flag ~= GIVEN and state.till > now
end

-- Whether a worker has the entry's message but no free pool slot, or the entry gives up. The entry
-- keeps its place, and others go before it: the lock must not wait for a task that comes some time.
local function is_away(state)
  return is_sent(state) and state.flag ~= PUBLISHED
end

-- Whether all turns of the entry lapsed. look.lua sets it aside and reports it; others skip it.
local function is_spent(id, state, turns)
  return state.offers >= OFFERS and state.till <= now and not turns[id]
end

local function who(entry)
  local parked = parked_of(entry)
  local text = string.match(parked, '^{("task":"[^"\\]*","task_id":"[^"\\]*")')
  if text then
    return text
  end
  local ok, found = pcall(cjson.decode, parked)
  if not ok or type(found) ~= 'table' then
    return '"task":null,"task_id":null'
  end
  return string.format('"task":%s,"task_id":%s', cjson.encode(found.task), cjson.encode(found.task_id))
end

local function give_turn(slot, id, entry, state)
  local pause, kind = PAUSE, 'reserved'
  local tokens = string.sub(state.tokens .. ' ' .. turn_token, -256)  -- of the last offers
  if publishes and not is_sent(state) then
    kind, pause = 'publish', PAUSE * 2 ^ state.offers
    -- Beside waiters the turn ends sooner. Its message is not sent again because of that.
    save_state(id, {
      offers = state.offers + 1, first = state.first or now, flag = PUBLISHED, till = now + pause,
      tokens = tokens,
    })
  elseif not is_sent(state) then
    save_state(id, {
      offers = state.offers, first = state.first or now, flag = GIVEN, till = 0, tokens = tokens,
    })
  end
  pause = beside_waiters(pause)
  local _, nesting, attempt = parts_of(id)
  local value = turn_value(turn_token, who(entry), id, nesting or 0, attempt or 0, pause, time)
  redis.call('SET', slot, value, 'NX', 'PX', pause)
  return {kind, id, entry, turn_token, state.offers}
end

-- The first entry that may have the next turn, as id, entry, state; or nil. The entry with the id
-- `here` asks for the lock itself, so it is not away.
local function next_in_line(here)
  local turns = turns_given()
  for _, id in ipairs(front()) do
    local entry, state = redis.call('HGET', entries, id), state_of(id)
    if not entry then
      take_out(id, true)
      return next_in_line(here)
    elseif id == here
        or not (turns[id] or is_away(state) or is_spent(id, state, turns)) then
      return id, entry, state
    end
  end
end

local function free_slot()
  for _, slot in ipairs(slots) do
    if not redis.pcall('GET', slot) then
      return slot
    end
  end
end

-- Give a free slot to the next in line. Reply {"publish" | "reserved", id, entry, token, how often
-- it was offered before}, or nil.
local function offer()
  local slot = free_slot()
  if slot then
    local id, entry, state = next_in_line()
    return id and give_turn(slot, id, entry, state)
  end
end

-- Whether a waiter in a pool slot may go before the room: no entry can take a turn now, or the
-- first one had its turn, and its message may need that very slot.
local function waiters_go_first()
  local first = redis.call('LINDEX', room, 0)
  return not next_in_line() or is_sent(state_of(first)) and not turns_given()[first]
end

-- Note the time of the next look at the room. Reply the ms until then, or -1 if the room is empty.
local function set_due(least)
  local first = redis.call('LINDEX', room, 0)
  if not first and not least then
    redis.call('DEL', entries, deadlines)
    -- A replaced entry may have no result yet: then somebody must still look after the room.
    if redis.call('EXISTS', ended) == 0 then
      redis.call('ZREM', rooms, lock_id)
    end
    return -1
  end
  local due = least or math.huge
  for _, slot in ipairs(slots) do
    local left = redis.call('PTTL', slot)
    if left == -2 then
      due = math.min(due, now + BESIDE_WAITERS)  -- a waiter takes the free slot, or gives up
    elseif left >= 0 then
      due = math.min(due, now + left + 1)
    end
    local id = left >= 0 and turn_of(redis.pcall('GET', slot))
    if id and state_of(id).flag == GIVEN then
      due = now
    end
  end
  local deadline = redis.call('ZRANGEBYSCORE', deadlines, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  due = math.min(due, tonumber(deadline) or math.huge, now + 600000)
  if first and is_spent(first, state_of(first), turns_given()) then
    due = now
  end
  look_at(due)
  return math.max(due - now, 0)
end
