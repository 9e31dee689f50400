-- Suspend a task or a lock in some buckets, or end that: an operator's order. See suspended.lua.
--
-- KEYS  1 the list of the first bucket; then those of the others; then, in this order, their `rooms`
-- ARGV  1 "task <name>" or "lock <name>"   2 for how many ms; "0" ends that   3 what people are told
-- Reply the suspension, or the one that was ended, as text; "" if there was none

local first_list = KEYS[1]
local count = #KEYS / 2
local lists, rooms = {first_list, unpack(KEYS, 2, count)}, {unpack(KEYS, count + 1)}
local target, ms, told = unpack(ARGV)

-- include suspended.lua

local time = redis.call('TIME')
local now = ms_of(time)
local ends = ms == '0'
local suspension = not ends and begun(told, time, ms) or nil
local reply = suspension

local changed, texts, was_there, some_may_wait = {}, {}, {}, ends
for i, text in ipairs(redis.call('MGET', unpack(lists))) do
  local list, has_ended = not_ended(text, now)
  was_there[i], reply = list[target] ~= nil, reply or list[target]
  some_may_wait = some_may_wait or was_there[i]
  if was_there[i] or has_ended or suspension then
    list[target] = suspension
    changed[#changed + 1] = lists[i]
    if next(list) then
      texts[#texts + 1] = lists[i]
      texts[#texts + 1] = as_text(list)
    end
  end
end
-- Free memory first: a server that is out of memory refuses the other writes if they come first.
if #changed > 0 then
  redis.call('DEL', unpack(changed))
end
if #texts > 0 then
  redis.call('MSET', unpack(texts))
end

-- What waits for the end of the one that was there is looked at again; also if the list was lost,
-- which woke nobody. Few buckets have rooms: these are found by halves.
local name = string.match(target, '^lock (.*)$')
local function look_again(first, last)
  local middle = math.floor((first + last) / 2)
  if redis.call('EXISTS', unpack(rooms, first, last)) == 0 then
    return
  elseif first < last then
    look_again(first, middle)
    look_again(middle + 1, last)
  elseif ends or was_there[first] then
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', rooms[first], now, '+inf')) do
      if not name or string.match(id, '|(.*)$') == name then
        redis.call('ZADD', rooms[first], string.format('%.0f', now), id)
      end
    end
  end
end
if some_may_wait then
  look_again(1, count)
end
return reply and as_text(reply) or ''
