-- The sliding window, exactly: at most L permits in any window of length W, wherever it starts.
-- Rust twin: src/algorithm/sliding_window.rs. An entry is alive iff its time > now - W.
--
-- A bucket is a sorted set, the log of its grants. An entry's score is its time in microseconds of
-- this server's clock. Its member is the running total of permits before it (12 digits, modulo
-- 10^12, so that equal scores keep their order), then ":" and its cost, unless that is 1:
--
--     member 000000000041       score 1763683200123456    1 permit
--     member 000000000042:17    score 1763683200124001    17 permits, granted at one instant
--
-- What is used is then the newest entry's end less the oldest alive entry's beginning: no second
-- counter that could drift, and no entry is read that needn't be. Dead entries are skipped by score
-- and removed now and then, at most 1,000 a call.
--
-- A quota is { permits = L, window_us = W }; `time` is this server's, and all times are integer
-- microseconds. A bucket is read once a call, by open, and written at most once, by close: ZADD,
-- PEXPIRE and the removal of dead entries. Numbers go to redis.call as text, since it would format
-- them as doubles, which is slow.
local TOTAL_MODULUS = 1000000000000
local TRIM_EVERY = 16
local TRIM_MOST = 1000

local call, format, sub, tonumber = redis.call, string.format, string.sub, tonumber
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

local function total_before(member)
  return tonumber(sub(member, 1, 12))
end

local function total_after(member)
  return sub(member, 1, 12) + (#member > 12 and sub(member, 14) or 1)
end

local sliding_window = {}

function sliding_window.open(key, quota, time)
  local bucket = {
    key = key, quota = quota, used = 0, charged = 0, total = 0,
    newest_at = false, oldest = false, oldest_at = false,
  }
  local newest = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  if newest[1] then
    local newest_at = tonumber(newest[2])
    bucket.newest_at = newest_at
    -- A clock that stepped back makes the limiter stricter, and entries stay in order.
    local dead_at = max(time, newest_at) - quota.window_us
    if newest_at > dead_at then
      local alive = format('(%d', dead_at)
      local oldest = call('ZRANGEBYSCORE', key, alive, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
      bucket.total = total_after(newest[1])
      bucket.oldest = oldest[1]
      bucket.oldest_at = tonumber(oldest[2])
      bucket.used = (bucket.total - total_before(oldest[1])) % TOTAL_MODULUS
    end
  end
  return bucket
end

function sliding_window.charge(bucket, cost)
  bucket.charged = bucket.charged + cost
  bucket.used = bucket.used + cost
end

-- Microseconds until the oldest alive entry ends, which is when there is more room; 0 if all is free.
function sliding_window.grow(bucket, time)
  if bucket.used == 0 then return 0 end
  return (bucket.oldest_at or max(time, bucket.newest_at or 0)) + bucket.quota.window_us - time
end

-- Microseconds until `cost` fits: until enough of the oldest permits have left. -1 if it never can.
function sliding_window.delay(bucket, cost, time)
  local key, quota, oldest = bucket.key, bucket.quota, bucket.oldest
  local excess = bucket.used + cost - quota.permits
  if excess <= 0 then return 0 end
  if cost > quota.permits then return -1 end
  if excess > bucket.used - bucket.charged then
    return max(time, bucket.newest_at or 0) + quota.window_us - time
  end
  local first = total_before(oldest)
  if (total_after(oldest) - first) % TOTAL_MODULUS >= excess then
    return bucket.oldest_at + quota.window_us - time
  end
  -- The lowest rank whose end lies at least `excess` permits behind the oldest alive one's beginning.
  local low, high = call('ZRANK', key, oldest) + 1, call('ZCARD', key) - 1
  while low < high do
    local middle = floor((low + high) / 2)
    local member = call('ZRANGE', key, middle, middle)[1]
    if (total_after(member) - first) % TOTAL_MODULUS >= excess then high = middle else low = middle + 1 end
  end
  return call('ZRANGE', key, low, low, 'WITHSCORES')[2] + quota.window_us - time
end

-- Writes what was charged, and sees to it that the bucket expires, but not before its newest entry ends.
function sliding_window.close(bucket, time)
  local key, charged, newest_at = bucket.key, bucket.charged, bucket.newest_at
  local window_us = bucket.quota.window_us
  if charged > 0 then
    local at, before = max(time, newest_at or 0), bucket.total % TOTAL_MODULUS
    if newest_at and not bucket.oldest then
      call('UNLINK', key)
    elseif before % TRIM_EVERY + charged >= TRIM_EVERY then
      local dead = call('ZCOUNT', key, '-inf', format('%d', at - window_us))
      if dead > 0 then call('ZREMRANGEBYRANK', key, '0', format('%d', min(dead, TRIM_MOST) - 1)) end
    end
    -- Where the total has started over, entries of one instant would change places.
    if at == newest_at and bucket.total >= TOTAL_MODULUS then at = at + 1 end
    local member = format(charged > 1 and '%012d:%d' or '%012d', before, charged)
    call('ZADD', key, format('%d', at), member)
    newest_at = at
  end
  if newest_at then
    local needed_ms = max(1, ceil((newest_at + window_us - time) / 1000))
    if call('PTTL', key) < needed_ms then
      call('PEXPIRE', key, format('%d', needed_ms + ceil(window_us / 2000)))
    end
  end
end
