-- Part of other scripts, after runs.lua: counts a duplicate that ends without a run, for its
-- task and hour, and for the run that has the lock. `protocol/past.py` reads the counts.
--
-- Needs the locals `runs`, the key of the duplicate's task's runs, see history.lua; `turned`; and
-- `time`, TIME's reply. It makes the local `task`. Each bucket has this key:
--   turned   task -> "<hours since 1970>:<duplicates>;" for each hour with any, newest first

local HOURS_KEPT = 48
local LENGTH_KEPT = 16 * HOURS_KEPT  -- nobody reads an hour that this cuts in two
local LAST_RECORDS = 24              -- among these is the end of a run that ended just now

local task = string.match(runs, '^[^}]*}:history:(.*)$')

local function count_for_task()
  local hour = string.format('%.0f', math.floor(time[1] / 3600))
  local counts = redis.pcall('HGET', turned, task)
  counts = type(counts) == 'string' and counts or ''
  local last, count, before = string.match(counts, '^(%d+):(%d+);(.*)$')
  if last == hour then
    redis.pcall('HSET', turned, task, string.format('%s:%d;%s', hour, count + 1, before))
  else
    redis.pcall('HSET', turned, task, string.sub(hour .. ':1;' .. counts, 1, LENGTH_KEPT))
    redis.pcall('PEXPIRE', turned, HOURS_KEPT * 3600000)
  end
end

-- A run of the same task has ended, and its lock is kept on: add the duplicate to the run's end,
-- which is already recorded.
local function count_after_end(value)
  local start, records = fence_of(value) .. '|', redis.pcall('LRANGE', runs, -LAST_RECORDS, -1)
  for i, record in ipairs(records) do
    if string.sub(record, 1, #start) == start then
      local ended = string.match(record, '^[^|]*|[^|]*|[^|]*')
      redis.pcall('LSET', runs, i - #records - 1, ended .. '|' .. turned_away_by(value))
      return
    end
  end
end

-- Count the duplicate in the lock's value. Reply the value that the slot then has.
local function count_for_run(slot, value)
  if is_run(value) then
    value = with_one_more_turned_away(value)
    redis.pcall('SET', slot, value, 'KEEPTTL')
    if is_cooling(value) and (task_of(value) or '') == task then
      count_after_end(value)
    end
  end
  return value
end
