-- Take a lock, or learn who has it. Idempotent: asked again with its own token it says "yours".
--
-- KEYS  1 lock  2 fence counter of the bucket  3 waiters  4 done marker of this attempt
--       5 room: who waits, in order  6 entries of the room  7 the bucket's rooms
--       8.. the lock's further slots, if several may hold it at once
-- ARGV  1 value, opening with {"token":"<token>"   2 ttl in ms   3 the lock's name
--       4 this attempt: <task id, or "">:<how often the task replaced itself>.<attempt>
--       5 if it is busy the task is turned away, which is counted: ms for which the done marker then
--         notes that the attempt has ended, or "0" if it is not noted; or "" if it is not turned away
--       and, unless it is the plain case:
--       6 how: "try" once, "wait", "woken" after a wait, which may only have timed out, or "last"
--         before giving up a wait
--       7 "1" take it also if this attempt has run before
--       8 ms after which a waiter that has not asked again is dead
--       9 the opening of the value that was stored when the message was sent, or ""
-- Reply {"acquired", value as stored, fence, 1 if a slot is free for the room's next | 0}
--       {"done", "1" its result is to be expected | "0" none is, ms for which we will know, or -1}
--           this attempt has run before; this is another copy of its message
--       {"done", "r" and a JSON list of task and id, ms}  it was replaced by that one before it ran
--       {"busy", value, ms to live (-1: for ever), relation, and if it is turned away: the how
--           many-th in a row it is, see streak.lua}, relation being
--           "other" | "own" this very attempt | "earlier" this task's earlier attempt
--           | "reserved" free, and kept for a waiter | "foreign" not a lock of ours
--           | "queued" free, and it is the turn of another, who waits in the room

local value, ttl, entry, how = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[6] or 'try'
local slots = {KEYS[1], unpack(KEYS, 8)}
local current = {}
local first  -- whose turn it is

local function opening_of(text)
  return string.match(text, '^{"token":"[^"]*"')
end

local function take(chosen)
  local now = redis.call('TIME')
  -- First what frees memory: a server without any refuses the others as a first write.
  if how ~= 'try' then
    redis.call('ZREM', KEYS[3], opening_of(value))
  end
  local more = 0
  if first and redis.call('HDEL', KEYS[6], entry) == 1 then
    redis.call('LREM', KEYS[5], 1, entry)
    redis.call('HDEL', KEYS[6], '#')
    -- To be looked at should we die.
    redis.call('ZADD', KEYS[7], now[1] * 1000 + math.floor(now[2] / 1000) + ttl, ARGV[3])
    if redis.call('EXISTS', KEYS[5]) == 1 then
      for i in ipairs(slots) do
        if i ~= chosen and not current[i] then
          more = 1
        end
      end
    end
  end
  local micros = string.format('%06d', now[2])
  -- Above all before, also if the counter is gone; above the last one, also if the clock was set back.
  local fence = now[1] .. micros
  local least = (redis.call('SET', KEYS[2], fence, 'GET') or 0) + 1
  if least > tonumber(fence) then
    fence = string.format('%.0f', least)
    redis.call('SET', KEYS[2], fence)
  end
  local stored = string.sub(value, 1, -2) .. ',"fence":' .. fence
    .. ',"acquired_at":' .. now[1] .. '.' .. micros .. '}'
  redis.call('SET', slots[chosen], stored, 'PX', ttl)
  return {'acquired', stored, fence, more}
end

-- Most often nobody has it, this attempt has not run before, and nobody is in the room.
if how == 'try' and #slots == 1 and redis.call('EXISTS', KEYS[1], KEYS[4], KEYS[5]) == 0 then
  return take(1)
end

-- include turned_away.lua

local opening, reservation, again = opening_of(value), ARGV[9] or '', ARGV[7] == '1'
local task_id, nesting, attempt = string.match(entry, '^(.*):(%d+)%.(%d+)$')
first = redis.call('LINDEX', KEYS[5], 0)
local kept  -- for this message, since it was sent
for i, slot in ipairs(slots) do
  current[i] = redis.pcall('GET', slot)
  if type(current[i]) == 'string' and string.sub(current[i], 1, #opening) == opening then
    redis.call('PEXPIRE', slot, ttl)
    return {'acquired', current[i], string.match(current[i], '"fence":(%d+)') or '0', 0}
  end
  if type(current[i]) == 'string' and reservation ~= ''
      and string.sub(current[i], 1, #reservation) == reservation then
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
local function order(nestings, attempts)
  return (tonumber(nestings) or 0) * 1000000 + (tonumber(attempts) or 0)
end
local mine = order(nesting, attempt)

if kept then
  return take(kept)  -- the first copy of the message does: no other has run
end

local function busy(i, relation)
  if how == 'wait' or how == 'woken' then
    local now = redis.call('TIME')
    redis.call('ZADD', KEYS[3], now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[8], opening)
    redis.call('PEXPIRE', KEYS[3], ARGV[8])
  elseif how == 'last' then
    redis.call('ZREM', KEYS[3], opening)
  end
  local reply = {'busy', '', ttl, relation}
  if relation ~= 'queued' then
    reply[2] = relation == 'foreign' and '' or current[i]
    reply[3] = redis.call('PTTL', slots[i])
  end
  if ARGV[5] ~= '' and relation ~= 'own' and relation ~= 'earlier' then
    reply[5] = count_turned_away(slots, current)
    if ARGV[5] ~= '0' then
      redis.pcall('SET', KEYS[4], '1', 'PX', ARGV[5])
    end
  end
  return reply
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
  if first and first ~= entry then
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
