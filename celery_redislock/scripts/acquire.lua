-- Take a lock, or learn who has it. Idempotent: asked again with its own token it says "yours".
--
-- KEYS  1 lock  2 fence counter of the bucket  3 waiters  4 done marker of this attempt
--       5 room: who waits, in order  6 entries of the room  7 the bucket's rooms
--       8.. the lock's further slots, if several may hold it at once
-- ARGV  1 value, opening with {"token":"<token>"   2 length of that opening   3 ttl in ms
--       4 task id, or ""   5 how often the task replaced itself   6 attempt
--       7 how: "try" once, "wait", "woken" after a wait, or "last" before giving up a wait
--       8 "1" take it also if this attempt has run before
--       9 ms after which a waiter that has not asked again is dead
--       10 this attempt's entry in the room   11 the lock's name
--       12 the opening of the value that was stored when the message was sent, or ""
-- Reply {"acquired", value as stored, fence, 1 if a slot is free for the room's next | 0}
--       {"done", "1" its result is to be expected | "0" none is, ms for which we will know, or -1}
--           this attempt has run before; this is another copy of its message
--       {"done", "r" and a JSON list of task and id, ms}  it was replaced by that one before it ran
--       {"busy", value, ms to live (-1: for ever), relation}, relation being
--           "other" | "own" this very attempt | "earlier" this task's earlier attempt
--           | "reserved" free, and kept for a waiter | "foreign" not a lock of ours
--           | "queued" free, and it is the turn of another, who waits in the room

local value, opening, ttl = ARGV[1], string.sub(ARGV[1], 1, tonumber(ARGV[2])), tonumber(ARGV[3])
local task_id, how, again = ARGV[4], ARGV[7], ARGV[8] == '1'
local first = redis.call('LINDEX', KEYS[5], 0)  -- whose turn it is

local slots = {KEYS[1], unpack(KEYS, 8)}
local current = {}
local kept  -- for this message, since it was sent
for i, slot in ipairs(slots) do
  current[i] = redis.pcall('GET', slot)
  if type(current[i]) == 'string' and string.sub(current[i], 1, #opening) == opening then
    redis.call('PEXPIRE', slot, ttl)
    return {'acquired', current[i], string.match(current[i], '"fence":(%d+)') or '0', 0}
  end
  if type(current[i]) == 'string' and ARGV[12] ~= ''
      and string.sub(current[i], 1, #ARGV[12]) == ARGV[12] then
    kept = i
  end
end

if task_id ~= '' and not again and not kept then
  local done = redis.call('GET', KEYS[4])
  if done then
    return {'done', done, redis.call('PTTL', KEYS[4])}
  end
end

-- The order of a task's runs under one id: a replacement starts counting its retries anew.
local function order(nesting, attempt)
  return (tonumber(nesting) or 0) * 1000000 + (tonumber(attempt) or 0)
end
local mine = order(ARGV[5], ARGV[6])

local function take(chosen)
  local now = redis.call('TIME')
  local micros = now[1] * 1000000 + now[2]
  -- Above the last one, also if the clock was set back; above all before, also if the counter is gone.
  local fence = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 1, micros)
  local fence_text = string.format('%.0f', fence)
  local stored = string.format('%s,"fence":%s,"acquired_at":%s.%06d}',
    string.sub(value, 1, -2), fence_text, now[1], now[2])
  if how ~= 'try' then
    redis.call('ZREM', KEYS[3], opening)
  end
  local more = 0
  if first and redis.call('HDEL', KEYS[6], ARGV[10]) == 1 then
    redis.call('LREM', KEYS[5], 1, ARGV[10])
    redis.call('HDEL', KEYS[6], '#')
    -- To be looked at should we die.
    redis.call('ZADD', KEYS[7], now[1] * 1000 + math.floor(now[2] / 1000) + ttl, ARGV[11])
    if redis.call('EXISTS', KEYS[5]) == 1 then
      for i in ipairs(slots) do
        if i ~= chosen and not current[i] then
          more = 1
        end
      end
    end
  end
  redis.call('SET', KEYS[2], fence_text)
  redis.call('SET', slots[chosen], stored, 'PX', ttl)
  return {'acquired', stored, fence_text, more}
end

if kept then
  return take(kept)  -- the first copy of the message does: no other has run
end

local function busy(i, relation)
  if how == 'wait' or how == 'woken' then
    local now = redis.call('TIME')
    redis.call('ZADD', KEYS[3], now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[9], opening)
    redis.call('PEXPIRE', KEYS[3], ARGV[9])
  elseif how == 'last' then
    redis.call('ZREM', KEYS[3], opening)
  end
  if relation == 'queued' then
    return {'busy', '', ttl, relation}
  end
  local found = relation == 'foreign' and '' or current[i]
  return {'busy', found, redis.call('PTTL', slots[i]), relation}
end

-- A slot of this task's own comes before a free one: its other run is not to be run beside.
local free, reserved, other, relation
for i, slot in ipairs(slots) do
  local ok, holder = false, nil
  if not current[i] then
    free = free or i
  elseif type(current[i]) == 'string' then
    ok, holder = pcall(cjson.decode, current[i])
    ok = ok and type(holder) == 'table' and type(holder.token) == 'string'
  end
  if current[i] and not ok then
    other, relation = other or i, relation or 'foreign'
  elseif ok and holder.reserved then
    reserved = reserved or i
  elseif ok and task_id ~= '' and holder.task_id == task_id and not holder.cooling then
    local theirs = order(holder.nesting, holder.attempt)
    if mine > theirs then
      -- Kept for us; or its holder has let a heartbeat pass, so it is dead or has given up.
      if holder.held or holder.queued
          or redis.call('PTTL', slot) < (tonumber(holder.ttl_ms) or ttl) / 2 then
        return take(i)
      end
      return busy(i, 'earlier')
    elseif mine < theirs and not again then
      return {'done', '0', -1}
    elseif mine == theirs and holder.queued then
      return take(i)  -- kept for this very message, which does not say so
    elseif mine == theirs then
      if not string.find(current[i], '"redelivered":true', 1, true) then
        current[i] = string.sub(current[i], 1, -2) .. ',"redelivered":true}'
        redis.call('SET', slot, current[i], 'KEEPTTL')
      end
      return busy(i, 'own')
    end
    other, relation = other or i, relation or 'other'
  elseif ok then
    other, relation = other or i, relation or 'other'
  end
end

if free then
  if first and first ~= ARGV[10] then
    return busy(free, 'queued')
  end
  return take(free)
end
if reserved then
  -- Who will not wait may go first: nobody runs, and it must not be refused.
  if how ~= 'wait' then
    return take(reserved)
  end
  return busy(reserved, 'reserved')
end
return busy(other, relation)
