-- Part of other scripts: how a run ended, for the history. `protocol/past.py` is the same in Python.
--
-- Each bucket has these keys:
--   history           the tasks whose runs are kept -> the time at which a script last wrote this
--   history ":" task  the runs of that task ("" for no task) in this bucket, as a list:
--       <the lock's value>, <the lock's id>                    a run has begun: two elements
--       <fence>|<ms for which it had the lock>|<how>             a run has ended; or
--       <fence>|<ms>|<how>|<how many duplicates it turned away>
-- Writing the history must not make a script fail, or be its first write: the server may be out of
-- memory, or the user may lack the right.

-- include values.lua

-- Record the end of a run. `runs` is the list's key, `ended` the record, "" for none. Without a
-- value, the run no longer had the lock.
local function note_end(runs, ended, value)
  if ended == '' then
    return
  end
  if not value then
    ended = string.match(ended, '^.*|') .. 'lost'
  elseif string.find(value, REPLACED, 1, true) then
    ended = string.gsub(ended, 'terminated$', 'replaced')  -- the process may not know that yet
  end
  local _, last = string.find(value or '', TURNED_AWAY, 1, true)
  if last then
    ended = ended .. '|' .. string.match(value, '^(%d+)', last + 1)
  end
  redis.pcall('RPUSH', runs, ended)
end
