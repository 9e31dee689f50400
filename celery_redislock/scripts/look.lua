-- Look after a waiting room: find the entry to publish, entries to set aside, and results to store.
--
-- KEYS  1 lock  2 room  3 entries  4 the bucket's rooms  5 ended: id -> JSON of its successor's
--       task id and its entry  6 deadlines: id -> ms at which it gives up  7 aside  8 waiters
--       9 wake list  10.. the lock's further slots
-- ARGV  1 the lock's id  2 a new token
--       3 the id of an entry that this caller declines, since it cannot publish it; or ""
--       4 ms after which others check that a replaced entry got its result
--       5 ms after which the declined entry is set aside, if nobody else publishes it; "" for never
--       6 ms for which a free lock is kept for a waiter
--       7.. the ids of other entries that this caller cannot publish
-- Reply {ms until the next look, or -1, {the entry to publish, see turns.lua, or
--       {"give up", id, entry, "", offers}}, {ids and entries that were set aside}, {ids and values
--       of some of `ended`}}

local lock, room, entries, rooms, ended, deadlines, aside, waiters, wake = unpack(KEYS)
local slots = {lock, unpack(KEYS, 10)}
local lock_id, turn_token, declined, look_again, aside_after, reserve_for = unpack(ARGV, 1, 6)
local passed_over = {[declined] = true}
for i = 7, #ARGV do
  passed_over[ARGV[i]] = true
end

local AT_ONCE = 50  -- one call looks at no more entries that gave up, or that were replaced

local time = redis.call('TIME')
local publishes = true
-- include values.lua
-- include runs.lua
-- include records.lua
-- include entries.lua
-- include turns.lua

if declined ~= '' and redis.call('HEXISTS', entries, declined) == 1 then
  local state = state_of(declined)
  state.offers, state.flag = math.max(state.offers - 1, 0), GIVEN
  save_state(declined, state)
  -- Be more patient for each time that somebody, who may be gone by now, did publish the entry.
  local patience = (tonumber(aside_after) or math.huge) * (state.offers + 1)
  if state.first and now - state.first > patience then
    set_aside(declined)
    end_turn(declined)
    -- The room has waited long already: the next entry waits less for a worker that knows its task.
    local following = redis.call('LINDEX', room, 0)
    if following then
      local its = state_of(following)
      its.first = its.first or now - aside_after + PAUSE
      save_state(following, its)
    end
  end
end

-- The offer of an entry whose time to wait is over; nil if it has left, or needs no message now.
local function give_up(id)
  local entry, state = redis.call('HGET', entries, id), state_of(id)
  if not entry then
    take_out(id)
    return nil
  end
  if state.flag == GIVING_UP_RECEIVED and state.till > now then
    redis.call('ZADD', deadlines, string.format('%.0f', state.till), id)  -- a worker has its message
    return nil
  end
  local again = gives_up_by(state)
  if again and state.offers >= OFFERS then
    set_aside(id)
    return nil
  end
  local had = again and state.offers or 0
  local till = now + PAUSE * 2 ^ had
  save_state(id, {offers = had + 1, first = state.first or now, flag = GIVING_UP, till = till, tokens = ''})
  redis.call('ZADD', deadlines, string.format('%.0f', till), id)
  return {'give up', id, entry, '', had}
end

local function gives_up()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, AT_ONCE)) do
    local offered = give_up(id)
    if offered then
      return offered
    end
  end
end

-- The offer of an entry whose turn was given by a caller that cannot publish; or nil.
local function unpublished()
  for _, slot in ipairs(slots) do
    local current = redis.pcall('GET', slot)
    local id = turn_of(current)
    if id and not passed_over[id] and state_of(id).flag == GIVEN then
      local entry, state = redis.call('HGET', entries, id), state_of(id)
      if entry then
        redis.call('PEXPIRE', slot, beside_waiters(PAUSE))
        state.offers, state.flag, state.till = state.offers + 1, PUBLISHED, now + PAUSE
        save_state(id, state)
        return {'publish', id, entry, token_of(current), state.offers - 1}
      end
    end
  end
end

local turns = turns_given()
for _, id in ipairs(front()) do
  if is_spent(id, state_of(id), turns) then
    set_aside(id)
  end
end

local function lets_waiter_in()
  if not redis.call('LINDEX', room, 0) or not someone_waits() or not waiters_go_first() then
    return false
  end
  local slot = free_slot()
  if slot then
    let_waiter_in(slot, reserve_for)
  end
  return slot
end

local offered = gives_up() or unpublished() or not lets_waiter_in() and offer() or nil
local without_result = some_of(ended, AT_ONCE)
local again_in = #without_result < 2 * AT_ONCE and look_again or 0
local due = set_due(#without_result > 0 and now + again_in or nil)
return {due, offered or {}, put_aside, without_result}
