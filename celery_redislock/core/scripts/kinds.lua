-- Part of other scripts, behind entries.lua: who in a waiting room is of one kind, without a walk
-- through all of it, which would stop the server. `entries` has these fields, too:
--   "|" kind "|" -> ids of that kind as JSON, in the order of the room; some may have left

local function field_of(kind)
  return '|' .. kind .. '|'
end

-- Those of the kind that wait are these, in this order.
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

-- Those of the kind that wait, in their order. Asked before one is added, also one of no kind: the
-- lists of a room that is empty are right.
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
