-- Part of other scripts: reads a lock's value while a run has the lock, without decoding it.
-- records.lua has the rest.

-- include values.lua

-- What a text says as JSON, if that is a table; else an empty one.
local function decoded(text)
  local is_json, found = pcall(cjson.decode, type(text) == 'string' and text)
  return is_json and type(found) == 'table' and found or {}
end

-- How the value begins: by this, its token is compared.
local function opening_of(value)
  return string.match(value, '^{"token":"[^"]*"')
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

-- The value with one more duplicate that the run turned away, and how many these are.
local function with_one_more_turned_away(value)
  local _, last = string.find(value, TURNED_AWAY, 1, true)
  if not last then
    return with(value, TURNED_AWAY .. '1'), 1
  end
  local count, rest = string.match(value, '^(%d*)(.*)$', last + 1)
  count = (tonumber(count) or 0) + 1
  return string.sub(value, 1, last) .. count .. rest, count
end
