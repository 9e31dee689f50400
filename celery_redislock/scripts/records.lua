-- Part of other scripts: reads a lock's value, and changes it.

-- include runs.lua

local RESERVED = '{"token":"","reserved":true}'  -- kept for a waiter that was woken

-- A value as a record, or nil if it is not a lock of ours.
local function record_of(value)
  local record = decoded(value)
  return type(record.token) == 'string' and record or nil
end

-- Whether a newer release wrote the record. Nothing but its token, task and id is believed then.
local function is_newer(record)
  return type(record.v) == 'number' and record.v > VERSION
end

local function acquired_now(time)
  return string.format(',"acquired_at":%s.%06d', time[1], time[2])
end

-- Give a slot that is taken another value. PEXPIRE comes first: a full server refuses a SET, but not
-- after a write of the same script that needs no memory.
local function change(slot, value, ttl)
  redis.call('PEXPIRE', slot, ttl)
  redis.call('SET', slot, value, 'PX', ttl)
end

-- When the lock was acquired, in seconds; or nil.
local function acquired_at(value)
  return tonumber(string.match(value, '"acquired_at":([%d.]+)'))
end

-- The value of a lock that is kept on after its run: without a token nobody extends or releases it. If
-- the run has ended, it has the done note, and the ms at which that was left. If it did not run to its
-- end, the pause is no reason to turn that attempt away: it takes it again.
local function cooling_down(value, note, now, is_unfinished)
  local rest = string.gsub(string.sub(value, #opening_of(value) + 1), ',"held":true', '')
  local cooling = '{"token":"","cooling":true' .. string.gsub(rest, ',"queued":true', '')
  cooling = is_unfinished and with(cooling, ',"unfinished":true') or cooling
  return note and with(cooling, string.format(',"done":[%s,%.0f]', cjson.encode(note), now)) or cooling
end

-- The ms for which a run of the task has asked that others must not have the lock; or 0.
local function rest_of_pause(value, now)
  local _, last = string.find(value, PAUSED, 1, true)
  return last and math.max(string.match(value, '^(%d+)', last + 1) - now, 0) or 0
end

-- The value with such a pause of so many ms, unless it has a longer one.
local function paused(value, ms, now)
  if ms <= rest_of_pause(value, now) then
    return value
  end
  return with(string.gsub(value, PAUSED .. '%d+', ''), string.format('%s%.0f', PAUSED, now + ms))
end

-- The value with what the run's body says of itself.
local function described(value, description)
  return with(string.gsub(value, ',"description":"[^"]*"', ''), ',"description":' .. description)
end

-- What history.lua writes if the run with this value ends now.
local function ended_now(value, how, time)
  local seconds = time[1] + time[2] / 1000000 - (acquired_at(value) or time[1])
  return string.format('%s|%.0f|%s', fence_of(value), math.max(seconds * 1000, 0), how)
end

-- When the run must end for a newer one, in ms; or nil.
local function replaced_at(value)
  return string.find(value, REPLACED, 1, true) and tonumber(string.match(value, REPLACED .. '(%d+)'))
end

-- The newest successor is named; `successor` is JSON with exactly four quotes.
local function to_be_replaced(value, at, successor)
  local alone = string.gsub(value, ',"replaced":%d+,"by":%["[^"]*","[^"]*"%]', '')
  return with(alone, string.format(',"replaced":%.0f,"by":%s', at, successor))
end

-- The text to add to the key `broken`: how the value begins, and who broke the lock, as JSON with
-- exactly two quotes; "" if not known.
local function broken_text(value, by)
  return (opening_of(value) or '') .. (by ~= '' and ',"by":' .. by or '')
end

-- Who broke the lock with this opening, from `broken_text`; "" if not known; nil if nobody did.
local function broken_by(broken_by_whom, opening)
  local _, last = string.find(broken_by_whom or '', opening, 1, true)
  return last and (string.match(broken_by_whom, '^,"by":("[^"]*")', last + 1) or '')
end
