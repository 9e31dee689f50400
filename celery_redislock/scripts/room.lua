-- Part of other scripts: the waiting room, and which of its tasks is published next.
--
-- A task stays in the room until it takes the lock, or ends. Whoever frees the lock publishes the
-- first task that is not under way; if its message does not come, it is published again, with
-- growing pauses, and the next one has its chance.
--
-- Needs what entries.lua and suspended.lua need; `publishes`, whether the caller can publish a task;
-- `slots`, keys; to wake one, `wake`, the key of a list; and `waiters`, the key of a sorted set: the
-- openings of those that wait in pool slots -> ms from which one that has not asked again is dead; and
-- of those that are over, though a request of theirs may come late -> ms until which it is refused,
-- as a negative number.

-- include entries.lua
-- include suspended.lua

local now = ms_of(time)

local KEPT_FOR = 5000         -- ms for which a free lock is kept for a task that was published now
local BESIDE_WAITERS = 1000   -- the same while tasks wait in pool slots: its message may need one
local LONGEST_PAUSE = 600000  -- between two publications of one task
local LONGEST_CHANCE = 40000  -- that one has before the next one has its chance too
local GOES_LAST_AFTER = 60000 -- ms after which one that does not come loses its place in the order
local LOOKED_AT = 100         -- members at most, to find some that are not suspended
local LOOKED_FAR = 2000       -- the same where it must be known who is next: 5 ms of the server

local LATE_FOR = 120000 -- ms for which a request may come late: a system sends it again for so long

local FOR_OTHERS = 3000 -- ms for which it is kept for one whom the caller cannot publish: others look
local DECLINED = 1      -- when such a one is due: others may publish it at once, also to wait again

local passed_over = {}  -- members that the caller cannot publish

local function someone_waits()
  return redis.call('ZRANGEBYSCORE', waiters, '(' .. now, '+inf', 'LIMIT', 0, 1)[1] ~= nil
end

-- Have `waiters` say so of this opening, for so many ms at least.
local function enlist(opening, score, ms)
  redis.call('ZADD', waiters, string.format('%.0f', score), opening)
  redis.call('ZREMRANGEBYSCORE', waiters, -now, now)  -- not first: a full server is to refuse this
  if redis.call('PTTL', waiters) < ms then
    redis.call('PEXPIRE', waiters, ms)
  end
end

-- From now on a request with this opening comes late: it must not take the lock.
local function retire(opening)
  enlist(opening, -now - LATE_FOR, LATE_FOR)
end

local function is_retired(opening)
  return (tonumber(redis.call('ZSCORE', waiters, opening) or nil) or 0) < 0
end

local function wake_one(ms)
  redis.call('DEL', wake)
  redis.call('LPUSH', wake, '1')
  redis.call('PEXPIRE', wake, ms)
end

-- How many slots are free, and the ms at which the first of the others is.
local function count_free()
  local free, next_one = 0, math.huge
  for _, slot in ipairs(slots) do
    local left = redis.call('PTTL', slot)
    if left == -2 then
      free = free + 1
    elseif left >= 0 then
      next_one = math.min(next_one, now + left + 1)
    end
  end
  return free, next_one
end

-- The ms at which a member under way was first published, or nil.
local function first_of(member)
  return tonumber(redis.call('ZSCORE', sent, member) or nil)
end

-- The first members of the room that are not suspended. One of them is next, unless all are under
-- way. And the ms from which one that is suspended may go. Behind very many that are suspended, who
-- does not look far finds those under way.
local function front(looks_far)
  local members, resumed, most, first = {}, math.huge, #slots + 16, 0
  local last = looks_far and LOOKED_FAR or LOOKED_AT
  local function find(some)
    local reads = next(suspensions())  -- else no message is read: they may be long
    for _, member in ipairs(some) do
      local entry = redis.call(reads and 'HGET' or 'HEXISTS', entries, member)
      if not entry or entry == 0 then
        take_out(member, true)
      else
        local suspension = reads and suspension_of(task_of(entry))
        resumed = suspension and math.min(resumed, suspension['until']) or resumed
        members[#members + 1] = not suspension and member or nil
        first = first + 1
      end
    end
  end
  local some
  repeat
    some = redis.call('LRANGE', room, first, first + most - 1)
    find(some)
  until resumed == math.huge or #members >= most or #some < most or first >= last
  if first >= last and not members[1] then
    find(redis.call('ZREVRANGE', sent, 0, most - 1))
  end
  return members, resumed
end

-- The ms from which one that was not published yet may be published: each free slot waits for one of
-- the last that are under way, and longer behind many: their messages may all be in one long queue.
local function opens_at(free)
  if free == 0 then
    return math.huge
  end
  local last = redis.call('ZREVRANGE', sent, free - 1, free - 1, 'WITHSCORES')[2]
  local behind = math.max(redis.call('ZCARD', sent) - #slots, 0)
  return last and last + math.min(KEPT_FOR * 2 ^ behind, LONGEST_CHANCE) or 0
end

-- Whether a slot is free that is not kept for one who comes before this member; or, for "", before
-- those who are not in the room.
local function may_go(member)
  local free = count_free()
  if free == 0 then
    return false
  end
  local span, has_chance = someone_waits() and BESIDE_WAITERS or KEPT_FOR, opens_at(free) <= now
  local look = tonumber(redis.call('ZSCORE', rooms, lock_id) or 0)
  for _, other in ipairs(front()) do
    if other == member or free == 0 then
      break
    end
    local first = first_of(other)
    if first then
      free = free - (first > now - span and 1 or 0)
    elseif has_chance and state_of(other).due <= now and (publishes or look > now - KEPT_FOR) then
      free = free - 1  -- it is published now, unless no worker looks after the room
    end
  end
  return free > 0
end

-- Note that a member is published, and is under way: the lock is kept for it, and those behind it
-- wait; or, with `aside`, neither. Reply {member, id, entry, "1" if it gives up, ms since it was first
-- published, receipt}.
local function send(member, state, aside)
  local first = first_of(member)
  local age = now - (first or now)
  if not first and not aside then
    redis.call('ZADD', sent, string.format('%.0f', now), member)
  elseif age > GOES_LAST_AFTER then
    redis.call('LREM', room, 1, member)
    redis.call('RPUSH', room, member)
  end
  state.due = now + math.min(math.max(age, KEPT_FOR), LONGEST_PAUSE)
  save_state(member, state)
  local entry = redis.call('HGET', entries, member)
  local gives_up_at = times_of(entry)
  local is_over = gives_up_at and gives_up_at <= now
  age = first and math.max(age, 1) or 0
  return {member, state.id, entry, is_over and '1' or '0', age, state.receipt or ''}
end

-- Publish the first that may be. Reply as `send` does, or nil. Who looks also publishes one that
-- others cannot, though no slot is free: to them its place would never be the first.
local function offer(looks, looks_far)
  local free = count_free()
  if free == 0 and not looks then
    return
  end
  local has_chance = opens_at(free) <= now
  for _, member in ipairs((front(looks_far))) do
    local state = state_of(member)
    local is_next = free > 0 and state.due <= now and (has_chance or first_of(member))
    if not passed_over[member] and (is_next or looks and state.due == DECLINED) then
      return send(member, state)
    end
  end
end

-- Note that this caller cannot publish one. Others have some time for it; then nobody waits for it.
local function pass_over(member)
  passed_over[member] = true
  if redis.call('HEXISTS', entries, member) == 1 then
    local state, first = state_of(member), first_of(member) or now
    state.due = DECLINED
    save_state(member, state)
    if first <= now - FOR_OTHERS then
      first = math.min(first, now - LONGEST_CHANCE)
    end
    redis.call('ZADD', sent, string.format('%.0f', first), member)
  end
end

-- When this caller looks again at one that it cannot publish.
local function later(member)
  local age = now - LONGEST_CHANCE - (first_of(member) or now)
  return now + math.min(math.max(age / 2, BESIDE_WAITERS), LONGEST_PAUSE)
end

-- The earliest time at which one of the room may be published.
local function next_chance(free)
  local opens, members, resumed = opens_at(free), front()
  local due = free > 0 and resumed or math.huge
  for _, member in ipairs(members) do
    local at = state_of(member).due
    if passed_over[member] then
      due = math.min(due, later(member))
    elseif at == DECLINED then
      due = math.min(due, tonumber(redis.call('ZSCORE', rooms, lock_id) or now))  -- not put off
    elseif free > 0 then
      due = math.min(due, first_of(member) and at or math.max(at, opens))
    end
  end
  return due
end

-- The earliest time at which one gives up.
local function next_deadline()
  local most = 2 * (#slots + 16)  -- more than are passed over
  local some = redis.call('ZRANGEBYSCORE', deadlines, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  local due = math.huge
  for i = 1, #some, 2 do
    due = math.min(due, passed_over[some[i]] and later(some[i]) or tonumber(some[i + 1]))
  end
  return due
end

-- Note the time of the next look at the room. Reply the ms until then, or -1 if the room is empty.
local function set_due(least)
  if redis.call('EXISTS', room) == 0 then
    redis.call('DEL', entries, deadlines, sent)
    if not least then
      -- A replaced entry may have no result yet: then somebody must still look after the room.
      if redis.call('EXISTS', ended) == 0 then
        redis.call('ZREM', rooms, lock_id)
      end
      return -1
    end
  end
  local free, next_one = count_free()
  local due = math.min(least or math.huge, now + LONGEST_PAUSE, next_one, next_chance(free))
  due = math.max(math.min(due, next_deadline()), now)
  local at = string.format('%.0f', due)
  if publishes then
    redis.call('ZADD', rooms, at, lock_id)
  else
    -- Never later than it was: it tells since when nobody has looked.
    redis.call('ZADD', rooms, 'LT', at, lock_id)
  end
  return due - now
end
