-- Part of break.lua and drop.lua, after entries.lua: has a worker look at the room, under the id that
-- it has: an operator may not know how many slots the lock has.

local function look_soon()
  local name, is_known = string.match(lock_id, '|(.*)$'), false
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', rooms, '-inf', '+inf')) do
    if string.match(id, '|(.*)$') == name then
      lock_id, is_known = id, true
      look_now()
    end
  end
  if not is_known then
    look_now()
  end
end
