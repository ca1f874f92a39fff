-- The generic cell rate algorithm (ITU-T I.371), as the leaky bucket that is a meter: each permit adds to
-- a level that drains evenly, and the level has a bound. A token bucket of B tokens, seen from below.
-- Rust twin: src/algorithm/gcra.rs. Up to B + L permits can pass within W.
--
-- The level is in units of which a permit adds W (as many as its microseconds) and a microsecond drains
-- L; it may not exceed B * W, which is at most 2^53. A bucket is a string: the level, ":", its time in
-- microseconds of this server's clock, ":" and the W of its units. When W changes, the permits
-- outstanding stay, whole ones and the fraction.
--
-- The parameter is B, the burst.
local MOST_LEVEL = 9007199254740992

local fmod = math.fmod

-- Exact for integers up to 2^53, as a division of doubles isn't.
local function ceil_div(value, by)
  local rest = fmod(value, by)
  return (value - rest) / by + (rest > 0 and 1 or 0)
end

local gcra = {}

function gcra.quota(permits, window_us, burst)
  -- Where nothing passes, what is there drains as slowly as it can.
  return { capacity = tonumber(burst), permits = max(1, permits), window_us = window_us }
end

function gcra.open(key, quota, time)
  local bucket = { key = key, quota = quota, used = 0, level = 0, at = time, charged = false }
  local stored = call('GET', key)
  if stored then
    local level, at, window_us = match(stored, '^(%d+):(%d+):(%d+)$')
    level, at, window_us = tonumber(level), tonumber(at), tonumber(window_us)
    if window_us ~= quota.window_us then
      local rest = fmod(level, window_us)
      level = (level - rest) / window_us * quota.window_us + ceil(rest / window_us * quota.window_us)
      level = min(level, MOST_LEVEL)
    end
    -- A clock that stepped back drains nothing.
    bucket.at = max(time, at)
    bucket.level = max(0, level - quota.permits * (bucket.at - at))
    bucket.used = ceil_div(bucket.level, quota.window_us)
  end
  return bucket
end

function gcra.charge(bucket, cost)
  bucket.level = min(bucket.level + cost * bucket.quota.window_us, MOST_LEVEL)
  bucket.used = ceil_div(bucket.level, bucket.quota.window_us)
  bucket.charged = true
end

-- Microseconds until no more than `used` permits are in use.
local function until_used(bucket, used, time)
  local excess = bucket.level - used * bucket.quota.window_us
  return ceil_div(excess, bucket.quota.permits) + bucket.at - time
end

function gcra.grow(bucket, time)
  if bucket.used == 0 then return 0 end
  return until_used(bucket, max(1, min(bucket.used, bucket.quota.capacity)) - 1, time)
end

function gcra.delay(bucket, cost, time)
  return until_used(bucket, bucket.quota.capacity - cost, time)
end

function gcra.close(bucket, time)
  local lasts_us = until_used(bucket, 0, time)
  if bucket.charged then
    local stored = format('%d:%d:%d', bucket.level, bucket.at, bucket.quota.window_us)
    call('SET', bucket.key, stored, 'PX', format('%d', max(1, ceil(lasts_us / 1000))))
  elseif bucket.used > 0 then
    keep(bucket.key, time, lasts_us, time)
  end
end
