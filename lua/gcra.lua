-- The generic cell rate algorithm (ITU-T I.371), as the leaky bucket that is a meter: each permit adds to
-- a level that drains evenly, and the level has a bound. A token bucket of B tokens, seen from below.
-- Rust twin: src/algorithm/gcra.rs. Up to B + L permits can pass within W.
--
-- The level is in units of which a permit adds W (as many as its microseconds) and a microsecond drains
-- L; it may not exceed B * W, which is at most 2^53. A bucket is a string, big-endian: the level (7 bytes),
-- its time in microseconds of this server's clock (7) and the W of its units (6). When W changes, the
-- permits outstanding stay, whole ones and the fraction.
--
-- The parameter is B, the burst.
local function gcra()
  local MOST_LEVEL = 2 ^ 53

  -- Exact for integers up to 2^53, as a division of doubles isn't.
  local function ceil_div(value, by)
    local rest = math.fmod(value, by)
    return (value - rest) / by + (rest > 0 and 1 or 0)
  end

  local function quota(permits, window_us, burst)
    -- Where nothing passes, what is there drains as slowly as it can.
    return { capacity = burst, permits = math.max(1, permits), window_us = window_us }
  end

  -- Microseconds until no more than `most` permits are in use, of a level that is more.
  local function until_used(quota, time, most, level, at)
    return ceil_div(level - most * quota.window_us, quota.permits) + (at - time)
  end

  -- The permits that a level makes, and the microseconds until there is more room.
  local function standing(quota, time, level, at)
    if level == 0 then return 0, 0 end
    local used = ceil_div(level, quota.window_us)
    return used, until_used(quota, time, math.max(1, math.min(used, quota.capacity)) - 1, level, at)
  end

  -- Sees the level and its time.
  local function open(key, quota, time)
    local bucket = redis.call('GET', key)
    if not bucket then return 0, 0, 0, time end
    local level, drained_to, window_us = struct.unpack('>I7I7I6', bucket)
    if #bucket ~= 20 or window_us == 0 then error('the bucket is not a meter', 0) end
    if window_us ~= quota.window_us then
      local rest = math.fmod(level, window_us)
      level = (level - rest) / window_us * quota.window_us + math.ceil(rest / window_us * quota.window_us)
      level = math.min(level, MOST_LEVEL)
    end
    -- A clock that stepped back drains nothing.
    local at = math.max(time, drained_to)
    level = math.max(0, level - quota.permits * (at - drained_to))
    local used, grow_us = standing(quota, time, level, at)
    return used, grow_us, level, at
  end

  local function charged_level(quota, charged, level)
    return math.min(level + charged * quota.window_us, MOST_LEVEL)
  end

  local function charge(_, quota, time, cost, charged, _, _, level, at)
    return standing(quota, time, charged_level(quota, charged + cost, level), at)
  end

  local function delay(_, quota, time, cost, charged, _, _, level, at)
    return until_used(quota, time, quota.capacity - cost, charged_level(quota, charged, level), at)
  end

  local function close(key, quota, time, charged, used, _, level, at)
    if used == 0 then return end
    level = charged_level(quota, charged, level)
    local needed_us = until_used(quota, time, 0, level, at)
    if charged > 0 then
      redis.call('SET', key, struct.pack('>I7I7I6', level, at, quota.window_us), 'PX', milliseconds(needed_us))
    else
      keep(key, needed_us, 0)
    end
  end

  return { quota = quota, open = open, charge = charge, delay = delay, close = close }
end
