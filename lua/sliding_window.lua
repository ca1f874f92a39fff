-- The sliding window, exactly: at most L permits in any window of length W, wherever it starts.
-- Rust twin: src/algorithm/sliding_window.rs. An entry is alive iff its time > now - W.
--
-- A bucket is a sorted set, the log of its grants. An entry's score is its time in microseconds of
-- this server's clock. Its member is the running total of permits before it (modulo 10^12), and, unless
-- that is 1, ":" and its cost; sliding_cells.lua adds another ":" and the entry's span:
--
--     member 41        score 1763683200123456    1 permit
--     member 42:17     score 1763683200124001    17 permits, granted at one instant
--
-- What is used is then the newest entry's end less the oldest alive entry's beginning: no second
-- counter that could drift, and no entry is read that needn't be. Dead entries are skipped by score
-- and removed now and then, at most 1,000 a call. No two entries have the same time: what is granted less
-- than a cell (here of one microsecond) after the newest one began is added to it, and it gets that time.
--
-- A quota is { capacity = L, window_us = W, cell_us = the most that an entry spans }; `time` is this server's, and all times are integer
-- microseconds. A bucket is read once a call, by open, and written at most once, by close: ZADD,
-- PEXPIRE and the removal of dead entries. Numbers go to redis.call as text, since it would format
-- them as doubles, which is slow.
local TOTAL_MODULUS = 1000000000000
-- The most that can be in use, debts included: far more than any limit, far less than the modulus.
local MOST_USED = 100000000000
local TRIM_EVERY = 16
local TRIM_MOST = 1000

local call, format, match, tonumber = redis.call, string.format, string.match, tonumber
local abs, ceil, floor, max, min = math.abs, math.ceil, math.floor, math.max, math.min

-- The total before an entry, and its cost.
local function parse(member)
  local before = tonumber(member)
  if before then return before, 1 end
  local cost
  before, cost = match(member, '^(%d+):(%d+)')
  return tonumber(before), tonumber(cost)
end

-- Sees to it that a bucket expires, but not before what it holds at `newest_at` ends.
local function keep(key, newest_at, window_us, time)
  local needed_ms = max(1, ceil((newest_at + window_us - time) / 1000))
  if call('PTTL', key) < needed_ms then
    call('PEXPIRE', key, format('%d', needed_ms + ceil(window_us / 2000)))
  end
end

local sliding_window = {}

function sliding_window.quota(permits, window_us)
  return { capacity = permits, window_us = window_us, cell_us = 1 }
end

function sliding_window.open(key, quota, time)
  local bucket = { key = key, quota = quota, used = 0, charged = 0, total = 0 }
  local newest = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  if newest[1] then
    local newest_at = tonumber(newest[2])
    bucket.newest, bucket.newest_at = newest[1], newest_at
    -- A clock that stepped back makes the limiter stricter, and entries stay in order.
    local dead_at = max(time, newest_at) - quota.window_us
    if newest_at > dead_at then
      local oldest = call('ZRANGE', key, format('(%d', dead_at), '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
      local before, cost = parse(newest[1])
      bucket.total = before + cost
      bucket.oldest, bucket.oldest_at = oldest[1], tonumber(oldest[2])
      bucket.used = (bucket.total - parse(oldest[1])) % TOTAL_MODULUS
    end
  end
  return bucket
end

function sliding_window.charge(bucket, cost, time)
  local newest_at, cell_us = bucket.newest_at, bucket.quota.cell_us
  if bucket.charged == 0 and bucket.oldest and time - newest_at < cell_us then
    local span_us = max(time, newest_at) - newest_at + (match(bucket.newest, '^%d+:%d+:(%d+)') or 0)
    if span_us < cell_us then
      local before, newest_cost = parse(bucket.newest)
      bucket.span_us, bucket.charged, bucket.total = span_us, newest_cost, before
      if bucket.oldest == bucket.newest then bucket.oldest_at = false end
    end
  end
  cost = min(cost, MOST_USED - bucket.used)
  bucket.charged = bucket.charged + cost
  bucket.used = bucket.used + cost
end

-- Microseconds until the oldest alive entry ends, which is when there is more room; 0 if all is free.
function sliding_window.grow(bucket, time)
  if bucket.used == 0 then return 0 end
  return (bucket.oldest_at or max(time, bucket.newest_at or 0)) + bucket.quota.window_us - time
end

-- Microseconds until `cost` fits: until enough of the oldest permits have left.
function sliding_window.delay(bucket, cost, time)
  local key, quota, oldest = bucket.key, bucket.quota, bucket.oldest
  local excess = bucket.used + cost - quota.capacity
  if excess > bucket.used - bucket.charged then
    return max(time, bucket.newest_at or 0) + quota.window_us - time
  end
  local first, first_cost = parse(oldest)
  if first_cost >= excess then
    return bucket.oldest_at + quota.window_us - time
  end
  -- The lowest rank whose end lies at least `excess` permits behind the oldest alive one's beginning.
  local low, high = call('ZRANK', key, oldest) + 1, call('ZCARD', key) - 1
  while low < high do
    local middle = floor((low + high) / 2)
    local rank = format('%d', middle)
    local before, count = parse(call('ZRANGE', key, rank, rank)[1])
    if (before + count - first) % TOTAL_MODULUS >= excess then high = middle else low = middle + 1 end
  end
  local rank = format('%d', low)
  return call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + quota.window_us - time
end

-- Writes what was charged, and sees to it that the bucket expires.
function sliding_window.close(bucket, time)
  local key, charged, newest_at = bucket.key, bucket.charged, bucket.newest_at
  local window_us = bucket.quota.window_us
  if charged > 0 then
    local at, before, span_us = max(time, newest_at or 0), bucket.total % TOTAL_MODULUS, bucket.span_us
    if span_us then
      call('ZREM', key, bucket.newest)
    elseif newest_at and not bucket.oldest then
      call('UNLINK', key)
    elseif before % TRIM_EVERY + charged >= TRIM_EVERY then
      local dead = call('ZCOUNT', key, '-inf', format('%d', at - window_us))
      if dead > 0 then call('ZREMRANGEBYRANK', key, '0', format('%d', min(dead, TRIM_MOST) - 1)) end
    end
    local pattern = (span_us or 0) > 0 and '%d:%d:%d' or charged > 1 and '%d:%d' or '%d'
    call('ZADD', key, format('%d', at), format(pattern, before, charged, span_us))
    newest_at = at
  end
  if newest_at then keep(key, newest_at, window_us, time) end
end
