-- Part of other scripts: reads a lock's value while a run has the lock, without decoding it.
-- records.lua has the rest.

-- include values.lua

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
  return is_under(value, '{"token":"') and string.find(value, ',"fence":', 1, true) ~= nil
end

-- How many duplicates the run turned away, and the position behind which the value says so; or 0.
local function turned_away_by(value)
  local _, last = string.find(value, TURNED_AWAY, 1, true)
  return last and tonumber(string.match(value, '^(%d+)', last + 1)) or 0, last
end

local function with_one_more_turned_away(value)
  local count, last = turned_away_by(value)
  if not last then
    return with(value, TURNED_AWAY .. '1')
  end
  return string.sub(value, 1, last) .. (count + 1) .. string.match(value, '^%d*(.*)$', last + 1)
end
