-- What all calls begin with, and the most frequent one: equal requests on one sliding window, all of which
-- pass. The walk (lua/walk.lua, which tells what the words are) would decide the same by lua/sliding_window.lua,
-- and does where anything is otherwise than here: nothing is written then. But a call that decides once takes
-- longer to make the walk's functions than to decide.

-- Once: a second TIME in one script may differ.
local clock = redis.call('TIME')
local time = clock[1] * 1000000 + clock[2]
local words = cmsgpack.unpack(ARGV[1])

-- A bucket's life is W, rounded up to one of four steps an octave, so that it has a code of a byte. Time is
-- divided into lives. The first grant in one sees to it that the bucket is kept to the end of the next, and leaves
-- the code in its entry: later grants in the same life needn't ask Redis for the expiry, also if W has changed
-- meanwhile.
-- Returns the code, when the life began that is now, and its length.
local function life_of(window_us, time)
  local fraction, exponent = math.frexp(window_us)
  local eighths = math.ceil(fraction * 8)
  local life_us = eighths * 2 ^ (exponent - 3)
  return exponent * 4 + eighths - 5, time - time % life_us, life_us
end

-- A run's five words, and three of one operation on its only bucket.
if #words == 8 and words[1] == 'sw' and type(words[6]) == 'number' then
  local newest = redis.call('ZRANGE', KEYS[1], '-1', '-1')[1]
  if newest then
    local permits, window_us, count, charged = words[2], words[3], -words[6], -words[6] * words[8]
    local newest_at, before, cost, oldest_at, first, rank, promised = struct.unpack('>I7I4I4I7I4BB', newest)
    -- Where entries die, it is mostly one or two between grants.
    local dead_at, tries = time - window_us, 2
    while oldest_at <= dead_at and newest_at > dead_at and tries > 0 do
      rank, tries = rank + 1, tries - 1
      local text = string.format('%d', rank)
      local entry = redis.call('ZRANGE', KEYS[1], text, text)[1]
      if entry then oldest_at, first = struct.unpack('>I7I4', entry) end
    end
    local left = permits - (before + cost - first) % 2 ^ 32 - charged
    local life, life_began_at = life_of(window_us, time)
    if charged > 0 and left >= 0 and newest_at < time and oldest_at > dead_at and rank < 8
      and promised == life and newest_at >= life_began_at then
      -- No entry to join, too few dead ones to remove (TRIM_AT), and no expiry to set.
      local total = (before + cost) % 2 ^ 32
      local entry = struct.pack('>I7I4I4I7I4BB', time, total, charged, oldest_at, first, rank, life)
      redis.call('ZADD', KEYS[1], string.format('%d', time), entry)
      return { time, count, count, left, oldest_at + window_us - time, 0 }
    end
  end
end

