-- Part of other scripts, after values.lua: reads a lock's value while a run has the lock, mostly
-- without decoding it; records.lua has the rest. `protocol/holders.py` is the same in Python;
-- tests/contract/scripts/test_formats.py compares the two.

local function token_of(value)
  return string.match(value, '^{"token":"([^"]*)"')
end

local function with(value, added)
  return string.sub(value, 1, -2) .. added .. '}'
end

local function fence_of(value)
  return string.match(value, '"fence":(%d+)') or '0'
end

local function is_cooling(value)
  return string.find(value, '^{"token":"","cooling":true') ~= nil
end

-- Whether this is the value of a run that has the lock, or had it last.
local function is_run(value)
  return token_of(value) and string.find(value, ',"fence":', 1, true) ~= nil
end

-- The version of the values that we write. `protocol/holders.py` has the rule for others.
local VERSION = 2

-- Whether another task has the lock. False also if only decoding the value could tell: JSON escapes
-- some characters of an id, and the value may be of another version.
local function is_of_another_task(value, task_id)
  local id = type(value) == 'string' and token_of(value)
    and string.find(value, ',"v":' .. VERSION .. ',', 1, true)
    and string.match(value, ',"task_id":"([^"\\]*)"')
  return id and id ~= task_id
end

-- The name of the task whose run has the lock; nil for a `RedisLock`.
local function task_of(value)
  local ok, record = pcall(cjson.decode, value)
  return ok and type(record.task) == 'string' and record.task or nil
end

local function turned_away_by(value)
  return tonumber(string.match(value, TURNED_AWAY .. '(%d+)')) or 0
end

local function with_one_more_turned_away(value)
  local alone = string.gsub(value, TURNED_AWAY .. '%d+', '')
  return with(alone, TURNED_AWAY .. (turned_away_by(value) + 1))
end
