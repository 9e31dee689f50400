-- Part of other scripts, after entries.lua: finds the entries of one kind in a waiting room without
-- a walk through all of it, which would block the server. `entries` also has these fields:
--   "|" kind "|" -> ids of that kind as JSON, in the order of the room; some may have left

local function field_of(kind)
  return '|' .. kind .. '|'
end

-- Store the ids of that kind in the room, in this order.
local function list(kind, ids)
  if kind ~= '' then
    redis.call('HSET', entries, field_of(kind), cjson.encode(ids))
  end
end

-- The ids of that kind in the room, in order.
local function ids_of(kind)
  local ids = {}
  for _, id in ipairs(cjson.decode(redis.call('HGET', entries, field_of(kind)) or '[]')) do
    if head_of(redis.call('HGET', entries, id) or '') == kind then
      ids[#ids + 1] = id
    end
  end
  return ids
end
