-- Count a duplicate that ended without a run, where acquire.lua did not know that it would.
--
-- KEYS  1 lock  2 the runs of the duplicate's task, see history.lua  3 the duplicates that were turned
--       away, see turned.lua  4.. the lock's further slots
-- ARGV  1 the fence of the run that was in its way, or "" if that is not known
-- Reply 1

local lock, runs, turned = unpack(KEYS)
local slots = {lock, unpack(KEYS, 4)}
local fence = ARGV[1]

-- include values.lua
-- include runs.lua

local time = redis.call('TIME')
-- include turned.lua

for _, slot in ipairs(slots) do
  local value = redis.pcall('GET', slot)
  if type(value) == 'string' and fence_of(value) == fence then
    count_for_run(slot, value)
  end
end
count_for_task()
return 1
