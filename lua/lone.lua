-- The beginning of every call, and a fast path for the most frequent one: equal requests on one sliding window, all
-- of which are admitted. lua/walk.lua, which documents the words, would decide the same with lua/sliding_window.lua.
-- It does so if any condition here isn't met; nothing has been written then. The fast path exists because a call that
-- decides once takes longer to create the walk's functions than to decide.

-- Read once: a second TIME in the same script may differ.
local clock = redis.call('TIME')
local time = clock[1] * 1000000 + clock[2]
local words = cmsgpack.unpack(ARGV[1])

-- Lua 5.4 (not Redis, whose Lua is 5.1) has integers beside doubles, which wrap. There, numbers become doubles, so that
-- all is computed as in 5.1.
if math.type then
  time = time + 0.0
  for i, word in ipairs(words) do
    if math.type(word) == 'integer' then words[i] = word + 0.0 end
  end
end

-- A bucket's life is W, rounded up to one of four steps per octave, so that its code fits in a byte. Time is divided
-- into lives. The first grant in a life keeps the bucket until the end of the next one and stores the code in its
-- entry. Later grants in the same life needn't ask Redis for the expiry, even if W has changed meanwhile.
-- Returns the code, the beginning of the current life, and its length.
local function life_of(window_us, time)
  local fraction, exponent
  if math.frexp then
    fraction, exponent = math.frexp(window_us)
  else
    fraction, exponent = window_us, 0
    while fraction >= 1 do fraction, exponent = fraction / 2, exponent + 1 end
  end
  local eighths = math.ceil(fraction * 8)
  local life_us = eighths * 2 ^ (exponent - 3)
  return exponent * 4 + eighths - 5, time - time % life_us, life_us
end

-- Five words for a run, and three for a single operation on its only bucket.
if #words == 8 and words[1] == 'sw' and type(words[6]) == 'number' then
  local newest = redis.pcall('ZRANGE', KEYS[1], '-1', '-1')[1]
  if newest and #newest >= 28 then
    local permits, window_us, count, charged = words[2], words[3], -words[6], -words[6] * words[8]
    local newest_at, before, cost, oldest_at, first, rank, promised = struct.unpack('>I7I4I4I7I4BB', newest)
    -- Usually one or two entries end between grants.
    local dead_at, tries = time - window_us, 2
    while oldest_at <= dead_at and newest_at > dead_at and tries > 0 do
      rank, tries = rank + 1, tries - 1
      local text = string.format('%d', rank)
      local entry = redis.call('ZRANGE', KEYS[1], text, text)[1]
      if entry and #entry >= 28 then oldest_at, first = struct.unpack('>I7I4', entry) end
    end
    local left = permits - (before + cost - first) % 2 ^ 32 - charged
    local life, life_began_at = life_of(window_us, time)
    if charged > 0 and left >= 0 and newest_at < time and oldest_at > dead_at and rank < 8
      and promised == life and newest_at >= life_began_at then
      -- There is no entry to join, too few dead entries to remove (TRIM_AT), and no expiry to set.
      local total = (before + cost) % 2 ^ 32
      local entry = struct.pack('>I7I4I4I7I4BB', time, total, charged, oldest_at, first, rank, life)
      redis.call('ZADD', KEYS[1], string.format('%d', time), entry)
      return cmsgpack.pack(time, count, count, left, oldest_at + window_us - time, 0)
    end
  end
end

-- The dead entries that this call may still remove from sliding windows and leases together, since Redis does nothing
-- else meanwhile. It is more than a call adds.
local removals_left = math.max(1000, 2 * #KEYS)

-- Its name in Lua 5.4 comes first.
local unpack = table.unpack or unpack
