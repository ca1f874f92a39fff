-- Windows one after the other: the first grant begins one, and all of it is free W after it.
-- Rust twin: src/algorithm/fixed_window.rs. Up to 2L - 1 permits can pass within W, across an end.
--
-- A bucket is a string: the window's beginning in microseconds of this server's clock, ":" and the
-- permits in use. It decides by these alone, never by what is left of the key's expiry.
local fixed_window = {}

function fixed_window.quota(permits, window_us)
  return { capacity = permits, window_us = window_us }
end

function fixed_window.open(key, quota, time)
  local bucket = { key = key, quota = quota, used = 0, start_at = false, charged = false }
  local stored = call('GET', key)
  if stored then
    local start_at, used = match(stored, '^(%d+):(%d+)$')
    start_at = tonumber(start_at)
    if start_at + quota.window_us > time then
      bucket.start_at, bucket.used = start_at, tonumber(used)
    end
  end
  return bucket
end

function fixed_window.charge(bucket, cost, time)
  bucket.start_at = bucket.start_at or time
  bucket.used = min(bucket.used + cost, MOST_USED)
  bucket.charged = true
end

function fixed_window.grow(bucket, time)
  return bucket.start_at and bucket.start_at + bucket.quota.window_us - time or 0
end

function fixed_window.delay(bucket, _, time)
  return fixed_window.grow(bucket, time)
end

function fixed_window.close(bucket, time)
  local key, window_us = bucket.key, bucket.quota.window_us
  if bucket.charged then
    local lasts_ms = max(1, ceil((bucket.start_at + window_us - time) / 1000))
    call('SET', key, format('%d:%d', bucket.start_at, bucket.used), 'PX', format('%d', lasts_ms))
  elseif bucket.start_at then
    keep(key, bucket.start_at, window_us, time)
  end
end
