-- Look after a waiting room: find the entry to publish, those that wait too long, results to store.
--
-- KEYS  1 lock  2 room  3 entries  4 rooms  5 ended  6 deadlines  7 sent  8 waiters  9 suspended
--       10.. the lock's further slots
-- ARGV  1 the lock's id  2 ms after which others check that a replaced entry got its result
--       3 ms after its first publication at which an entry ends, though no worker took it
--       4.. the members that this caller cannot publish
-- Reply {ms until the next look, or -1, {what `send` replies, if there is something to publish}, {the
--       members that waited too long}, {ids and values of some of `ended`}}

local lock, room, entries, rooms, ended, deadlines, sent, waiters, suspended = unpack(KEYS)
local slots = {lock, unpack(KEYS, 10)}
local lock_id, look_again, longest = unpack(ARGV, 1, 3)
local unknown = {unpack(ARGV, 4)}

local AT_ONCE = 50     -- one call looks at no more entries that gave up, or that were replaced
local ON_ITS_WAY = 1000 -- ms that a message may take, which is not published again meanwhile

local time = redis.call('TIME')
local publishes = true
-- include room.lua

-- Dead waiters go first, if there are any: a full server takes what follows only after a write that
-- needs no memory, and one that is published may free some.
redis.call('ZREMRANGEBYSCORE', waiters, 0, now)

for _, member in ipairs(unknown) do
  pass_over(member)
end

-- Whether all before it are under way.
local function is_next(member)
  for _, other in ipairs(front()) do
    if other == member or not first_of(other) then
      return other == member
    end
  end
end

-- Publish one whose time to wait is over: its policy decides what follows.
local function give_up()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, AT_ONCE)) do
    local state, first = state_of(member), first_of(member)
    if redis.call('HEXISTS', entries, member) == 0 then
      take_out(member)
    elseif first and first > now - ON_ITS_WAY and state.due > now then
      redis.call('ZADD', deadlines, first + ON_ITS_WAY, member)
    elseif not passed_over[member] then
      local before = state.due  -- 0 if it waited; else its message, or an earlier one, did not come
      if before > 0 and not first then
        redis.call('ZADD', sent, string.format('%.0f', before - KEPT_FOR), member)
      end
      local sending = send(member, state, before == 0 and not is_next(member))
      redis.call('ZADD', deadlines, string.format('%.0f', state.due), member)
      return sending
    end
  end
end

local offered = give_up() or offer(true, true)
local too_long = redis.call('ZRANGEBYSCORE', sent, '-inf', now - longest, 'LIMIT', 0, AT_ONCE)

-- Whoever replaced an entry stores its result. If that takes too long, it died: this caller does it, and
-- nobody else meanwhile. Reading all would block the server; those that stay must not hide others.
local some = redis.call('HRANDFIELD', ended, AT_ONCE, 'WITHVALUES') or {}
local without_result, due = {}, nil
for i = 1, #some, 2 do
  local successor, entry, ms = ended_of(some[i + 1])
  local again_at = (ms or 0) + look_again
  if again_at <= now then
    without_result[#without_result + 1], without_result[#without_result + 2] = some[i], some[i + 1]
    if entry then
      redis.call('HSET', ended, some[i], ended_text(successor, entry, now))
    end
    again_at = now + look_again
  end
  due = math.min(due or math.huge, again_at)
end
if #some == 2 * AT_ONCE then
  due = now
end
return {set_due(due), offered or {}, too_long, without_result}
