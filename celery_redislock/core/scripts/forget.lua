-- Forget done notes of attempts whose messages the broker gives to nobody again.
--
-- KEYS  done notes, all of one bucket
-- ARGV  1 the most ms that each has to live: one that has more was left later, by another run
-- Reply how many were forgotten

local done_notes, most, forgotten = KEYS, tonumber(ARGV[1]), 0

-- include values.lua

for _, done_note in ipairs(done_notes) do
  local left = redis.call('PTTL', done_note)
  if left >= 0 and left <= most then
    local kind = string.sub(redis.call('GET', done_note), 1, 1)
    if kind ~= LASTING and kind ~= REPLACED_NOTE then
      forgotten = forgotten + redis.call('DEL', done_note)
    end
  end
end
return forgotten
