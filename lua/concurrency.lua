-- Concurrency: at most C requests in flight, each with a lease that ends when it does.
-- Rust twin: src/algorithm/concurrency.rs.
--
-- A bucket is a sorted set of leases, each with the time in microseconds of this server's clock at which
-- it ends unless it is renewed: so the leases of a gateway that died go away. There is no telling when
-- there will be room; a refusal says a second.
--
-- A quota's window is how long a lease lasts. The parameter is the name of this call, which no other
-- call of any gateway has: "<process>.<call>."; a lease is that and its turn among the bucket's grants.
local COME_BACK_US = 1000000

local concurrency = {}

function concurrency.quota(permits, lease_us, name)
  return { capacity = permits, window_us = lease_us, name = name }
end

function concurrency.open(key, quota, time)
  call('ZREMRANGEBYSCORE', key, '-inf', format('%d', time))
  return { key = key, quota = quota, used = call('ZCARD', key), turn = 0 }
end

function concurrency.charge(bucket, count, time)
  for turn = bucket.turn + 1, bucket.turn + count do
    concurrency.renew(bucket, bucket.quota.name .. format('%d', turn), time)
  end
  bucket.turn = bucket.turn + count
end

-- Makes a lease last from now, also one that had ended.
function concurrency.renew(bucket, lease, time)
  local ends_at = format('%d', time + bucket.quota.window_us)
  bucket.used = bucket.used + call('ZADD', bucket.key, ends_at, lease)
end

function concurrency.release(bucket, lease)
  bucket.used = bucket.used - call('ZREM', bucket.key, lease)
end

function concurrency.grow(bucket)
  return bucket.used > 0 and COME_BACK_US or 0
end

function concurrency.delay()
  return COME_BACK_US
end

function concurrency.close(bucket, time)
  if bucket.used > 0 then keep(bucket.key, time, bucket.quota.window_us, time) end
end
