-- Part of acquire.lua, twice: the duplicate ends without a run. Leaves its note, and counts it.

local ms, note = string.match(note_if_busy, '^(%d+):(.*)$')
if ms and redis.pcall('SET', done_note, note, 'PX', ms).err then
  redis.call('DEL', done_note)  -- a full server takes the note only after this
  redis.pcall('SET', done_note, note, 'PX', ms)
end
if note_if_busy ~= '' and runs_kept ~= '0' then
  -- include turned.lua
  current = count_for_run(slot, current)
  count_for_task()
end
