-- Put a task whose lock is held into the lock's waiting room.
--
-- KEYS  1 lock  2 room: entry ids in order  3 entries: id -> "<ms at which it gives up>|<kind>|<entry>"
--       4 the bucket's rooms: name -> ms at which to look at it  5 ended: id -> JSON of its successor's task id, entry
--       6 what the lock's done markers begin with   7.. the lock's further slots
-- ARGV  1 entry id  2 entry  3 kind: an earlier entry of the same kind is replaced; "" replaces none
--       4 how many may wait, or ""  5 ms after which it gives up, or ""  6 "1" to the front
--       7 the lock's name  8 task id  9 ttl in ms  10 the done markers' ttl in ms
--       11 ms after which others look whether a replaced one got its result
--       12 ms after which the holder is to be ended, or "" if it is left alone
--       13 this task and its id, as a JSON list of two, with no other quotes in it, for the holder
--       14 when this task was received, in ms, or ""
--       15 "1" it has begun before, so others of its kind are newer: it goes before them, and replaces none
-- Reply {"parked", for each that it replaced: id, entry}
--       {"full"}  as many wait as may
--       {"older", task id}  the one that it would replace was received later, and waits
--       {"older", task id, value}  the same, and runs
--       {"ask", the same}  its turn has come, or the lock is this very task's: ask for it again

local id, kind, limit = ARGV[1], ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local first = redis.call('LINDEX', KEYS[2], 0)
local due, is_free = now + ARGV[9], false

for _, slot in ipairs({KEYS[1], unpack(KEYS, 7)}) do
  local current = redis.pcall('GET', slot)
  if not current then
    is_free = true
    if not first or first == id then
      return {'ask'}
    end
  else
    local left = redis.call('PTTL', slot)
    if left >= 0 then
      due = math.min(due, now + left)
    end
    if type(current) == 'string' then
      local ok, holder = pcall(cjson.decode, current)
      local mine = ok and type(holder) == 'table' and holder.task_id == ARGV[8]
      if mine and not holder.cooling or ok and type(holder) == 'table' and holder.reserved then
        return {'ask'}
      end
    end
  end
end

if redis.call('HEXISTS', KEYS[3], id) == 1 then
  return {'parked'}  -- by another copy of its message
end

-- One that a worker kept back must not end one that was sent after it.
local function is_newer(received)
  return ARGV[14] ~= '' and (tonumber(received) or 0) > tonumber(ARGV[14])
end

local replaced, newer = {}, nil
if kind ~= '' then
  for _, other in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    local entry = redis.call('HGET', KEYS[3], other)
    local its_kind, received = string.match(entry or '', '^%d*|([^|@]*)@?(%d*)|')
    if its_kind == kind then
      newer = newer or other
      if ARGV[15] == '1' then
        -- It has begun before: it goes before those that came since.
      elseif is_newer(received) then
        return {'older', (string.gsub(other, ':[^:]*$', ''))}
      else
        replaced[#replaced + 1] = {other, entry}
      end
    end
  end
end
for _, slot in ipairs({KEYS[1], unpack(KEYS, 7)}) do
  local current = redis.pcall('GET', slot)
  if ARGV[12] ~= '' and type(current) == 'string'
      and is_newer(string.match(current, '"received_ms":(%d+)')) then
    return {'older', '', current}
  end
end
if limit and redis.call('LLEN', KEYS[2]) - #replaced >= limit then
  return {'full'}
end

local give_up = ''
if ARGV[5] ~= '' then
  give_up = string.format('%.0f', now + ARGV[5])
  due = math.min(due, now + ARGV[5])
end
local reply = {'parked'}
for i, other in ipairs(replaced) do
  if i == 1 then
    redis.call('LINSERT', KEYS[2], 'BEFORE', other[1], id)  -- the newest gets the oldest's turn
  end
  redis.call('LREM', KEYS[2], 1, other[1])
  redis.call('HDEL', KEYS[3], other[1])
  redis.call('HDEL', KEYS[3], '#')
  -- Its message may be on its way: it was handed over, perhaps.
  redis.call('SET', KEYS[6] .. ':' .. other[1], '0', 'PX', ARGV[10])
  redis.call('HSET', KEYS[5], other[1], cjson.encode({ARGV[8], other[2]}))
  due = math.min(due, now + ARGV[11])
  reply[#reply + 1] = other[1]
  reply[#reply + 1] = other[2]
end
if #replaced == 0 and newer then
  redis.call('LINSERT', KEYS[2], 'BEFORE', newer, id)
  redis.call('HDEL', KEYS[3], '#')
elseif #replaced == 0 then
  redis.call(ARGV[6] == '1' and 'LPUSH' or 'RPUSH', KEYS[2], id)
end
-- Tell the holder that it is replaced, and by whom. What does not run, or not yet, is replaced now.
local function replace(slot)
  local current = redis.pcall('GET', slot)
  local ok, holder = pcall(cjson.decode, type(current) == 'string' and current)
  if not ok or type(holder) ~= 'table' or type(holder.token) ~= 'string' or holder.cooling then
    return
  end
  if (holder.queued or holder.held) and type(holder.task_id) == 'string' then
    local attempt = (tonumber(holder.attempt) or 0) + (holder.queued and 0 or 1)
    local done = string.format('%s:%s:%d.%d', KEYS[6], holder.task_id,
      tonumber(holder.nesting) or 0, attempt)
    redis.call('SET', done, 'r' .. ARGV[13], 'PX', math.max(redis.call('PTTL', slot), ARGV[10]))
    redis.call('DEL', slot)
    is_free = true
  elseif holder.token ~= '' then
    local mark = ',"replaced":%d+,"by":%["[^"]*","[^"]*"%]'
    -- The newest is named; the time counts from the first.
    local at = tonumber(string.match(current, ',"replaced":(%d+),"by":')) or now + ARGV[12]
    current = string.gsub(current, mark, '')
    current = string.format('%s,"replaced":%.0f,"by":%s}', string.sub(current, 1, -2), at, ARGV[13])
    redis.call('SET', slot, current, 'KEEPTTL')
  end
end
if ARGV[12] ~= '' then
  for _, slot in ipairs({KEYS[1], unpack(KEYS, 7)}) do
    replace(slot)
  end
end

if kind ~= '' then
  kind = kind .. '@' .. ARGV[14]
end
redis.call('HSET', KEYS[3], id, give_up .. '|' .. kind .. '|' .. ARGV[2])
redis.call('ZADD', KEYS[4], 'LT', due, ARGV[7])
if is_free and redis.call('LINDEX', KEYS[2], 0) == id then
  reply[1] = 'ask'  -- it replaced the one whose turn it was, or the holder
end
return reply
