-- Part of other scripts: by a hold, an operator keeps new runs from locks for a while.
-- `protocol/holds.py` is the same in Python.
--
-- Whoever asks for such a lock puts the hold's value into its free slots, until the hold ends. So the
-- lock is as taken as by a run: to its waiting room, to those that wait in pool slots, to people, and
-- to older releases, which do not know of holds.
--
-- Needs the locals `now`, in ms, and `holds`, a hash of the bucket: what is held, as the operator
-- named it -> JSON: the ms at which the hold ends, a Lua pattern of the locks' names, one of the
-- tasks' names, and the value. A pattern is "" for none. All but the first three functions need
-- `slots`, `lock_id`, and the caller's `value`, too.

local MOST_HOLDS = 1000

local ours  -- what `hold_on_us` found out, once

local function is_on_hold(current)
  return is_under(current, '{"token":"","hold":')
end

-- The version comes last, so that no plain case meets such a lock: see acquire.lua.
local function hold_text(ends, names, tasks, its_value, time)
  local whole = with(its_value, acquired_now(time) .. ',"v":' .. VERSION)
  return cjson.encode({ends, names, tasks, whole})
end

-- All holds: {what is held, the ms at which it ends, the two patterns, the value}. Workers have no
-- right to HGETALL.
local function all_holds()
  local found, all = {}, redis.call('HRANDFIELD', holds, MOST_HOLDS, 'WITHVALUES') or {}
  for i = 1, #all, 2 do
    found[#found + 1] = {all[i], unpack(cjson.decode(all[i + 1]))}
  end
  return found
end

-- The value of the hold that keeps us from this lock for longest, and the ms at which it ends; or nil.
local function hold_on_us()
  if ours then
    return ours[1], ours[2]
  end
  local longest, until_ms, name, task = nil, now, nil, nil
  for _, hold in ipairs(all_holds()) do
    local target, ends, names, tasks, its_value = unpack(hold)
    name = name or string.match(lock_id, '|(.*)$')
    task = task or task_of(value) or ''
    if ends > until_ms and (target == 'lock ' .. name or names ~= '' and string.find(name, names)
        or tasks ~= '' and string.find(task, tasks)) then
      longest, until_ms = its_value, ends
    end
  end
  ours = {longest, until_ms}
  return longest, until_ms
end

-- The slot's value. Frees the slot if it is on hold, but for others only.
local function value_in(slot)
  local current = redis.pcall('GET', slot)
  if is_on_hold(current) and not hold_on_us() then
    redis.call('DEL', slot)
    return false
  end
  return current
end

-- If we are held off, put the hold into the slots that no run has; `current` has the slots' values.
-- Reply the number of one that is on hold, or nil.
local function put_on_hold(current)
  local hold, until_ms = hold_on_us()
  local number
  for i, slot in ipairs(hold and slots or {}) do
    if not current[i] or current[i] == RESERVED then
      redis.call('SET', slot, hold, 'PX', until_ms - now)
      current[i], number = hold, i
    elseif is_on_hold(current[i]) then
      number = number or i
    end
  end
  return number
end
