-- The generic cell rate algorithm (ITU-T I.371), as a leaky bucket used as a meter: each permit raises a level that
-- drains evenly, and the level is limited. Equivalent to a token bucket of B tokens.
--
-- Rust twin: crates/limiter/src/algorithm/gcra.rs. Up to B + L permits can pass within W.
--
-- The level has units such that a permit adds W of them (the number of microseconds in W) and a microsecond drains L.
-- Without debts, it is at most B * W, which is at most 2^53. Debts can raise it to 4,000,000,000 permits, where a
-- double isn't exact, so it is counted as whole permits and remaining units.
--
-- A bucket is a string, big-endian: the level, or 2^53 if it is more (7 bytes), its time in microseconds of this
-- server's clock (7), and the W of its units (6). Only if the level exceeds 2^53, the whole permits (4) and the
-- remaining units (6) follow. If W changes, the outstanding permits are kept, including the fraction.
--
-- The parameter is B, the burst.
local function gcra()
  local MOST_EXACT = 2 ^ 53

  -- Exact for integers up to 2^53; a division of doubles isn't.
  local function div(value, by)
    local rest = math.fmod(value, by)
    return (value - rest) / by, rest
  end

  -- Returns a * b divided by a third number, and the remainder. Exact for b up to 2^32 and the others up to 366 days
  -- of microseconds: if the product isn't exact, b is processed byte by byte.
  local function mul_div(a, b, by)
    if a * b <= MOST_EXACT then return div(a * b, by) end
    local result, rest = 0, 0
    for shift = 24, 0, -8 do
      local carried, left = div(rest * 256, by)
      local more
      more, rest = div(left + a * (math.floor(b / 2 ^ shift) % 256), by)
      result = result * 256 + carried + more
    end
    return result, rest
  end

  local function quota(permits, window_us, burst)
    -- With a rate of 0, the level drains as slowly as possible.
    return { capacity = burst, permits = math.max(1, permits), window_us = window_us }
  end

  -- Returns the microseconds until at most `most` permits are in use, for a level above that; at most 2^53.
  local function until_used(quota, time, most, whole, rest, at)
    local windows, permits = div(whole - most, quota.permits)
    local drained_us, units = mul_div(quota.window_us, permits, quota.permits)
    local last_us, left = div(units + rest, quota.permits)
    local needed_us = windows * quota.window_us + drained_us + last_us + (left > 0 and 1 or 0)
    return math.min(needed_us, MOST_EXACT) + (at - time)
  end

  -- Returns the permits in use, and the microseconds until there is more room.
  local function standing(quota, time, whole, rest, at)
    local used = rest > 0 and whole + 1 or whole
    if used == 0 then return 0, 0 end
    return used, until_used(quota, time, math.max(1, math.min(used, quota.capacity)) - 1, whole, rest, at)
  end

  -- Returns the level of a bucket, in units of this W, and its time; nil if it isn't a meter's.
  local function read(bucket, window_us)
    if #bucket ~= 20 and #bucket ~= 30 then return nil end
    local level, at, own_us = struct.unpack('>I7I7I6', bucket)
    if own_us == 0 then return nil end
    local whole, rest
    if #bucket > 20 then
      whole, rest = struct.unpack('>I4I6', bucket, 21)
    else
      whole, rest = div(level, own_us)
    end
    if own_us ~= window_us then
      rest = math.ceil(rest / own_us * window_us)
      if rest >= window_us then whole, rest = whole + 1, rest - window_us end
    end
    return whole, rest, at
  end

  -- Returns a level of whole permits and units, less what has drained in a time; 0 at the least.
  local function drained(quota, whole, rest, us)
    local windows, part_us = div(us, quota.window_us)
    local permits, units = mul_div(part_us, quota.permits, quota.window_us)
    whole, rest = whole - windows * quota.permits - permits, rest - units
    if rest < 0 then whole, rest = whole - 1, rest + quota.window_us end
    if whole < 0 then return 0, 0 end
    return whole, rest
  end

  -- Reads the level, in permits and units, and its time.
  local function open(key, quota, time)
    local bucket = redis.pcall('GET', key)
    if not bucket then return 0, 0, 0, 0, time end
    if type(bucket) == 'table' then return nil, bucket.err end
    local whole, rest, drained_to = read(bucket, quota.window_us)
    if not whole then return nil, 'the bucket is not a meter' end
    -- If the clock stepped back, nothing drains.
    local at = math.max(time, drained_to)
    whole, rest = drained(quota, whole, rest, at - drained_to)
    local used, grow_us = standing(quota, time, whole, rest, at)
    return used, grow_us, whole, rest, at
  end

  local function charge(_, quota, time, cost, charged, _, _, whole, rest, at)
    return standing(quota, time, whole + charged + cost, rest, at)
  end

  local function delay(_, quota, time, cost, charged, _, _, whole, rest, at)
    return until_used(quota, time, quota.capacity - cost, whole + charged, rest, at)
  end

  local function write(key, quota, time, whole, rest, at)
    local needed_us = until_used(quota, time, 0, whole, rest, at)
    local level = whole * quota.window_us + rest
    local bucket = struct.pack('>I7I7I6', math.min(level, MOST_EXACT), at, quota.window_us)
    if level > MOST_EXACT then bucket = bucket .. struct.pack('>I4I6', whole, rest) end
    redis.call('SET', key, bucket, 'PX', milliseconds(needed_us))
  end

  local function close(key, quota, time, charged, used, _, whole, rest, at)
    if used == 0 then return end
    if charged == 0 then return keep(key, until_used(quota, time, 0, whole, rest, at), 0) end
    write(key, quota, time, whole + charged, rest, at)
  end

  -- Lowers the level by permits that are given back, but for what may have drained of them: see lua/refundable.lua.
  local function refund(key, quota, argument, time)
    local permits, granted_at = struct.unpack('>I4I7', argument)
    local used, fault, whole, rest, at = open(key, quota, time)
    if not used then error(fault, 0) end
    local left, left_rest = drained(quota, permits, 0, granted_at > 0 and math.max(0, at - granted_at) or 0)
    if left > whole or (left == whole and left_rest > rest) then left, left_rest = whole, rest end
    if left == 0 and left_rest == 0 then return 0 end
    whole, rest = whole - left, rest - left_rest
    if rest < 0 then whole, rest = whole - 1, rest + quota.window_us end
    local used_now = rest > 0 and whole + 1 or whole
    if used_now == 0 then
      redis.call('UNLINK', key)
    else
      write(key, quota, time, whole, rest, at)
    end
    return used - used_now
  end

  return { quota = quota, open = open, charge = charge, delay = delay, close = close, refund = refund }
end
