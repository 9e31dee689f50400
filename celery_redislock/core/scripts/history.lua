-- Part of other scripts, behind values.lua: how a run ended, for the history. `core/past.py` has it in
-- Python; tests/core/test_formats.py compares the two.
--
-- Of all keys of a bucket that begin so there are:
--   history           the tasks with runs that are kept -> the time at which that was last noted
--   history ":" task  the runs of that task ("": of none) in this bucket, as a list:
--       <the lock's value>, <the lock's mark>                    one has begun: two elements
--       <fence>|<ms for which it had the lock>|<how>             and has ended; or with
--       <fence>|<ms>|<how>|<how many duplicates it turned away>
-- What is for the history must not fail a script, or be its first write: the server may be without
-- memory, the user without the right.

-- `runs` is the list's key, `ended` the record, "" for none. Without a value, the lock was not the
-- run's own any more.
local function note_end(runs, ended, value)
  if ended == '' then
    return
  end
  if not value then
    ended = string.match(ended, '^.*|') .. 'lost'
  elseif string.find(value, REPLACED, 1, true) then
    ended = string.gsub(ended, 'terminated$', 'replaced')  -- by whom, its process may not know yet
  end
  if value and string.find(value, TURNED_AWAY, 1, true) then
    ended = ended .. '|' .. string.match(value, TURNED_AWAY .. '(%d+)')
  end
  redis.pcall('RPUSH', runs, ended)
end
