-- Take a lock away from its holder: an operator's order.
--
-- KEYS  1 lock  2 who broke which lock, see records.lua  3 waiters  4 wake list  5 room  6 rooms
--       7 the runs of the task that is said to hold it, see history.lua  8.. the lock's further slots
-- ARGV  1 the lock's id   2 the opening of the only value to break, or ""   3 who breaks it, as JSON
-- Reply the values that were broken; a value that is not a lock of ours is left alone

local lock, broken_by_whom, waiters, wake, room, rooms, runs = unpack(KEYS)
local slots = {lock, unpack(KEYS, 8)}
local lock_id, meant_opening, by = unpack(ARGV)

-- include records.lua
-- include entries.lua
-- include history.lua

local task = string.match(runs, '^[^}]*}:history:(.*)$')

local broken, longest = {}, math.max(redis.call('PTTL', broken_by_whom), 1000)
for _, slot in ipairs(slots) do
  local current = redis.pcall('GET', slot)
  local holder = record_of(current)
  if holder and is_under(current, meant_opening) then
    local left = redis.call('PTTL', slot)
    -- This comes first: a full server takes the note only after it.
    redis.call('DEL', slot)
    -- The note lives as long as the holder, or one that was broken just before, may believe that
    -- it has the lock: neither may take it again.
    longest = math.max(tonumber(holder.ttl_ms) or 0, left, longest)
    local earlier = string.sub(redis.call('GET', broken_by_whom) or '', -8192)
    redis.call('SET', broken_by_whom, earlier .. broken_text(current, by), 'PX', longest)
    -- Record the break of a run, if its task's runs are kept. A run that has ended has a recorded end.
    local its_task = type(holder.task) == 'string' and holder.task or ''
    local is_over = holder.held or holder.cooling or holder.queued or its_task ~= task
    if is_run(current) and not is_over and redis.pcall('EXISTS', runs) == 1 then
      note_end(runs, ended_now(current, 'broken', redis.call('TIME')), current)
    end
    broken[#broken + 1] = current
  end
end
if #broken > 0 then
  if redis.call('EXISTS', room) == 1 then
    look_soon()
  elseif redis.call('ZRANGEBYSCORE', waiters, 0, '+inf', 'LIMIT', 0, 1)[1] then
    redis.call('DEL', wake)
    redis.call('LPUSH', wake, '1')
    redis.call('PEXPIRE', wake, 1000)
  end
end
return broken
