-- Concurrency: at most C requests in flight, each with a lease.
--
-- Rust twin: crates/limiter/src/algorithm/concurrency.rs.
--
-- A bucket is a sorted set of leases. A score is the time at which the lease ends unless it is renewed, in
-- microseconds of this server's clock, so the leases of a gateway that died end by themselves. It is unknown when
-- there will be room; a rejection states one second.
--
-- A quota's window is the duration of a lease. The parameter is the name of this call, "<process>.<call>.", which is
-- unique among all gateways. A lease is named by that and its number among the bucket's grants.
local function concurrency()
  local COME_BACK_US = 1000000
  -- The size of Lua's stack is limited.
  local LEASES_A_COMMAND = 1000

  local turns = {}

  local function quota(permits, lease_us, name, time)
    return { capacity = permits, lease_us = lease_us, name = name,
      time_text = string.format('%d', time), ends_at = string.format('%d', time + lease_us) }
  end

  -- Returns the leases in use, and counts those that have ended.
  local function open(key, quota)
    local ended = redis.pcall('ZCOUNT', key, '-inf', quota.time_text)
    if type(ended) == 'table' then return nil, ended.err end
    local used = redis.call('ZCARD', key) - ended
    return used, used > 0 and COME_BACK_US or 0, ended
  end

  local function charge(_, _, _, count, _, used)
    return used + count, COME_BACK_US
  end

  -- Ensures that the bucket stays for the length of a lease. Where the bucket exists, this comes before a lease is added, which would end
  -- too early if PEXPIRE failed.
  local function extend(key, quota)
    keep(key, quota.lease_us, quota.lease_us / 2)
  end

  -- Extends a lease from now, even one that has ended.
  local function renew(key, quota, lease)
    extend(key, quota)
    -- The bucket may have begun with it.
    if redis.call('ZADD', key, quota.ends_at, lease) == 1 then extend(key, quota) end
  end

  local function release(key, _, lease)
    redis.call('ZREM', key, lease)
  end

  local function delay()
    return COME_BACK_US
  end

  -- Adds the granted leases, named in the order of their grants, and removes some that have ended.
  local function close(key, quota, _, charged, used, _, ended)
    local turn, last = turns[key] or 0, (turns[key] or 0) + charged
    turns[key] = last
    local is_new = used == charged and ended == 0
    if used > 0 and not is_new then extend(key, quota) end
    while turn < last do
      local leases = {}
      for lease = turn + 1, math.min(last, turn + LEASES_A_COMMAND) do
        leases[#leases + 1] = quota.ends_at
        leases[#leases + 1] = quota.name .. string.format('%d', lease)
      end
      redis.call('ZADD', key, unpack(leases))
      turn = turn + LEASES_A_COMMAND
    end
    if charged > 0 and ended > 0 and removals_left > 0 then
      local removed = math.min(ended, removals_left)
      redis.call('ZREMRANGEBYRANK', key, '0', string.format('%d', removed - 1))
      removals_left = removals_left - removed
    end
    if used > 0 and is_new then extend(key, quota) end
  end

  return {
    quota = quota, open = open, charge = charge, renew = renew, release = release, delay = delay, close = close,
  }
end
