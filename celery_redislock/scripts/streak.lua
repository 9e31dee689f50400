-- Count a duplicate that is turned away, if that was not known when it asked for the lock: the how
-- many-th in a row, since the last run began.
--
-- KEYS  1 lock  2.. the lock's further slots
-- Reply how many, this one included | 0 no run of ours is in its way any more

-- include turned_away.lua

local current = {}
for i, slot in ipairs(KEYS) do
  current[i] = redis.pcall('GET', slot)
end
return count_turned_away(KEYS, current)
