-- Part of other scripts: what an operator has suspended in this bucket. `protocol/suspensions.py` is
-- the same in Python.
--
-- A suspension is in the bucket's list and nowhere else. Whoever lets somebody take a lock, wait for
-- it or replace its holder asks `suspension_of`. The list is a JSON object: "task <name>" or
-- "lock <name>" -> what people are told, and "until": the ms at which it ends.

-- include runs.lua

-- The suspensions of a list that have not ended, and whether one has.
local function not_ended(text, now)
  local found, has_ended = {}, false
  for target, each in pairs(decoded(text)) do
    local ends = type(each) == 'table' and each['until']
    if type(ends) == 'number' and ends > now then
      found[target] = each
    else
      has_ended = true
    end
  end
  return found, has_ended
end

-- A suspension, or a list of them, as text.
local function as_text(suspensions)
  return cjson.encode(suspensions)
end

-- The suspension that begins now, for so many ms, with what people are told.
local function begun(told, time, ms)
  local suspension = cjson.decode(told)
  suspension.since = ms_of(time) / 1000
  suspension['until'] = ms_of(time) + ms
  return suspension
end

local in_force

-- What is in force in this bucket. Needs the locals `suspended`, the list's key, and `time`.
local function suspensions()
  if not in_force then
    local has_ended
    in_force, has_ended = not_ended(redis.pcall('GET', suspended), ms_of(time))
    if has_ended and not next(in_force) then
      redis.call('DEL', suspended)
    end
  end
  return in_force
end

-- The suspension that keeps this task, "" for a `RedisLock`, from this lock for longest; or nil.
-- Needs the local `lock_id`, too.
local function suspension_of(task)
  if next(suspensions()) then
    local of_task = in_force['task ' .. (task or '')]
    local of_lock = in_force['lock ' .. string.match(lock_id, '|(.*)$')]
    local is_longer = of_task and of_lock and of_task['until'] > of_lock['until']
    return is_longer and of_task or of_lock or of_task
  end
end

-- Count the task that ended without a run because of a suspension.
local function count_for_suspension()
  local suspension = suspension_of(task)
  if suspension then
    suspension.ended = (tonumber(suspension.ended) or 0) + 1
    redis.pcall('SET', suspended, as_text(in_force))
  end
end
