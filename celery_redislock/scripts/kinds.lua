-- Part of other scripts, after entries.lua: the entries of one kind in a waiting room, without a
-- walk through all of it, which would block the server. `entries` also has these fields:
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

local function list_all()
  local found = {}
  for _, id in ipairs(redis.call('LRANGE', room, 0, -1)) do
    local kind = head_of(redis.call('HGET', entries, id) or '') or ''
    found[kind] = found[kind] or {}
    table.insert(found[kind], id)
  end
  for kind, ids in pairs(found) do
    list(kind, ids)
  end
  has_lists = true
end

-- The ids of that kind in the room, in order. Call this before an entry is added, also one of no
-- kind: the lists of an empty room are correct.
local function ids_of(kind)
  if not is_listed() and kind ~= '' then
    list_all()
  end
  local ids = {}
  for _, id in ipairs(cjson.decode(redis.call('HGET', entries, field_of(kind)) or '[]')) do
    if head_of(redis.call('HGET', entries, id) or '') == kind then
      ids[#ids + 1] = id
    end
  end
  return ids
end
