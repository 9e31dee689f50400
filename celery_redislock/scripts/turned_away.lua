-- Part of other scripts. The count stands in the value of the newest holder: it dies with that one's
-- lock, however long the lock lives, and the next run starts with none.
local function count_turned_away(slots, values)
  local slot, newest, value = nil, -1, nil
  for i, current in pairs(values) do
    -- One that cools down holds nobody up who is to be warned of.
    if type(current) == 'string' and string.match(current, '^{"token":"')
        and not string.find(current, '"cooling":true', 1, true) then
      local fence = tonumber(string.match(current, '"fence":(%d+)') or -1)
      if fence > newest then
        slot, newest, value = slots[i], fence, current
      end
    end
  end
  if not slot then
    return 0
  end
  local count = (tonumber(string.match(value, ',"streak":(%d+)')) or 0) + 1
  value = string.gsub(value, ',"streak":%d+', '')
  value = string.format('%s,"streak":%.0f}', string.sub(value, 1, -2), count)
  -- It is turned away all the same if the server has no memory for this.
  local reply = redis.pcall('SET', slot, value, 'KEEPTTL')
  return reply.err and 0 or count
end
