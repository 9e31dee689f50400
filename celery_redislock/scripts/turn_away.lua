-- Count a duplicate that ended without a run, where acquire.lua did not know that it would.
--
-- KEYS  1 lock  2 the runs of the duplicate's task, see history.lua  3 turned, see turned.lua
--       4 suspended, see suspended.lua  5.. the lock's further slots
-- ARGV  1 the fence of the run that was in its way, or "" if that is not known   2 the lock's id
--       3 "1" a suspension was in its way
-- Reply nothing

local lock, runs, turned, suspended = unpack(KEYS)
local slots = {lock, unpack(KEYS, 5)}
local fence, lock_id, was_suspended = unpack(ARGV)

local time = redis.call('TIME')
-- include turned.lua
-- include suspended.lua

for _, slot in ipairs(slots) do
  local value = redis.pcall('GET', slot)
  if type(value) == 'string' and fence_of(value) == fence then
    count_for_run(slot, value)
  end
end
count_for_task()
if was_suspended == '1' then
  count_for_suspension()
end
