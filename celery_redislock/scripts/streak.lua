-- Count a duplicate that is turned away: the how many-th in a row, since the last run began.
--
-- KEYS  1 lock  2.. the lock's further slots
-- Reply how many, this one included | 0 no run of ours is in its way any more
--
-- The count stands in the value of the newest holder: it dies with that one's lock, however long
-- the lock lives, and the next run starts with none.

local slot, newest, value = nil, -1, nil
for _, key in ipairs(KEYS) do
  local current = redis.pcall('GET', key)
  -- One that cools down holds nobody up who is to be warned of.
  if type(current) == 'string' and string.match(current, '^{"token":"')
      and not string.find(current, '"cooling":true', 1, true) then
    local fence = tonumber(string.match(current, '"fence":(%d+)') or -1)
    if fence > newest then
      slot, newest, value = key, fence, current
    end
  end
end
if not slot then
  return 0
end
local count = (tonumber(string.match(value, ',"streak":(%d+)')) or 0) + 1
value = string.gsub(value, ',"streak":%d+', '')
value = string.format('%s,"streak":%.0f}', string.sub(value, 1, -2), count)
redis.call('SET', slot, value, 'KEEPTTL')
return count
