-- Part of other scripts: counts a duplicate that ends without a run, for its task and hour, and for
-- the run that has the lock. `protocol/past.py` reads the counts.
--
-- Needs the locals `runs`, the key of the duplicate's task's runs, see history.lua; `time`, TIME's
-- reply; and `turned`, the key of a hash of the bucket:
--   task -> "<hours since 1970>:<duplicates>;" for each hour with any, newest first

-- include runs.lua

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

-- Count the duplicate in the lock's value. Reply the value that the slot then has. If a run of the
-- task has ended, and its lock is kept on, count it for the run's recorded end, too.
local function count_for_run(slot, value)
  if not is_run(value) then
    return value
  end
  local count
  value, count = with_one_more_turned_away(value)
  redis.pcall('SET', slot, value, 'KEEPTTL')
  if not is_cooling(value) then
    return value
  end
  local start, records = fence_of(value) .. '|', redis.pcall('LRANGE', runs, -LAST_RECORDS, -1)
  for i, record in ipairs(records) do
    if string.sub(record, 1, #start) == start then
      local ended = string.match(record, '^[^|]*|[^|]*|[^|]*')
      redis.pcall('LSET', runs, i - #records - 1, ended .. '|' .. count)
    end
  end
  return value
end
