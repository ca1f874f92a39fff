-- The sliding window in the layout of Redisson's RRateLimiter, so that Java services and gateways share one limiter.
-- Rust twin: crates/limiter/src/algorithm/sliding_window.rs, in milliseconds.
--
-- The bucket of a name N is five keys. `at(N, s)` is N:s if N contains a brace, else {N}:s, so that they share a slot:
--
--     N                   hash     rate, interval (ms), type (0 overall, 1 per client), keepAliveTime (ms, 0: none)
--     at(N, value)        string   the permits left
--     at(N, permits)      zset     a member for each grant; its score is the grant's time in milliseconds
--     at(N, value:<id>), at(N, permits:<id>)    the same for the type per client; the id is a process's
--
-- A member is 21 bytes: the length 16, so many random bytes, and the permits (4 bytes, little-endian).
--
-- What the hash says holds, and the limit's own rate only if there is none: then it is written with the first grant.
-- `value` is what remains: whatever removes members adds their permits to it in the same step. It may be more than
-- the rate less the permits of the members, since release() adds to it alone. So it is never lowered here.
--
-- The parameter is 14 random bytes of this call, the type that a new hash gets (a digit), and the process's id.
-- The table of functions is that of lua/sliding_window.lua, with `of_bucket`, `reset`, `held_to` and `derived_keys` beside
-- it.
local function redisson()
  -- How many members are read at first, and at most at once.
  local FEW, MANY = 3, 500
  -- A call removes at most so many members of all buckets together, and sums as many, beside a few of each.
  local MOST, FEW_OF_EACH = 5000, 20
  local dead_seen, summed = 0, 0
  -- The delays of a call look through at most so many members together, and sum as many, because clients may choose costs for
  -- which each has to.
  local DELAYS_MOST, delays_seen, delays_summed = 1000, 0, 0
  -- A hash that is written here gets a time to live of two windows, but not less than this.
  local KEEP_ALIVE_MS = 60000
  -- What others have written is cut to this, up to which numbers are exact. Java's limiters without a bound have more.
  local GREATEST = 9007199254740991

  local function integer_text(number)
    return string.format('%d', number)
  end

  -- Returns the number that others have written, cut, or false if it isn't one with which Redis and Java count.
  local function number_of(text)
    local number = (text == '0' or string.find(text, '^%-?[1-9]%d*$')) and tonumber(text)
    return number and number >= -GREATEST and number <= 2 ^ 63 and math.min(number, GREATEST)
  end

  -- Returns the permits of a member, or raises an error.
  local function permits_of(member)
    if #member ~= 21 or string.byte(member) ~= 16 then
      error('the permits have members of another layout than Redisson 3.21 and later writes: reset the key', 0)
    end
    return (struct.unpack('<I4', member, 18))
  end

  local function quota(permits, window_us, parameter, time)
    return {
      capacity = permits, interval_ms = window_us / 1000, now_ms = math.floor(time / 1000),
      -- A grant is written a part of a millisecond late, so that it never ends early.
      grant_ms = math.ceil(time / 1000),
      random = string.sub(parameter, 1, 14), type = string.sub(parameter, 15, 15), id = string.sub(parameter, 16),
    }
  end

  -- Returns the quota of a bucket by its hash. Its `fault` says why the hash can't be read.
  local function of_bucket(key, own)
    local held = {
      algorithm = own.algorithm, now_ms = own.now_ms, grant_ms = own.grant_ms, random = own.random,
      capacity = own.capacity, interval_ms = own.interval_ms, keep_alive_ms = 0,
    }
    local fields = redis.pcall('HMGET', key, 'rate', 'interval', 'type', 'keepAliveTime')
    if fields.err then
      held.fault = fields.err
      return held
    end
    local rate = number_of(fields[1] or integer_text(own.capacity))
    local interval_ms = number_of(fields[2] or integer_text(own.interval_ms))
    local type, keep_alive_ms = fields[3] or own.type, number_of(fields[4] or '0')
    if not (rate and interval_ms and keep_alive_ms) or rate < 0 or interval_ms < 1 or (type ~= '0' and type ~= '1') then
      held.fault = 'the hash is not the configuration of a Redisson limiter: delete the key'
      return held
    end
    if not (fields[1] and fields[2] and fields[3]) then
      held.new_type = own.type
      if not fields[4] then keep_alive_ms = math.max(2 * interval_ms, KEEP_ALIVE_MS) end
    end
    held.capacity, held.interval_ms, held.keep_alive_ms = rate, interval_ms, keep_alive_ms
    local prefix = string.find(key, '{', 1, true) and key or '{' .. key .. '}'
    local suffix = type == '1' and ':' .. own.id or ''
    held.value_key, held.permits_key = prefix .. ':value' .. suffix, prefix .. ':permits' .. suffix
    return held
  end

  -- Calls a function with the permits and the score of each member from a rank on, oldest first, until it returns true.
  local function each_member(quota, rank, visit)
    local count = FEW
    while true do
      local last = integer_text(rank + count - 1)
      local found = redis.call('ZRANGE', quota.permits_key, integer_text(rank), last, 'WITHSCORES')
      for i = 1, #found, 2 do
        if visit(permits_of(found[i]), tonumber(found[i + 1])) then return end
      end
      if #found < 2 * count then return end
      rank, count = rank + count, math.min(5 * count, MANY)
    end
  end

  -- Returns the permits of `count` members from a rank on.
  local function sum_from(quota, rank, count)
    local sum = 0
    each_member(quota, rank, function(permits) sum = sum + permits end)
    return sum
  end

  -- Returns the permits left once the oldest `removed` members, of `released` permits in all, are gone and
  -- `remaining` members stay: of these, `sum()` returns the permits.
  local function left_without(quota, left, released, remaining, sum)
    if remaining == 0 then return math.max(left, quota.capacity) end
    if released == 0 then return left end
    local more = left + released
    -- Each member has at least one permit. Only after a release, or with a lowered rate, this is less.
    local most = quota.capacity - remaining
    if more <= quota.capacity or left >= most then return math.max(left, math.min(more, most)) end
    return math.max(left, quota.capacity - sum())
  end

  -- Sees, beside the permits used: how many members are dead, how many are alive, the permits left as they are
  -- written (false if they aren't), and the oldest alive member's score.
  local function see(quota)
    local written = redis.call('GET', quota.value_key)
    if written then
      -- An error of INCRBY would come too late: other buckets of the call may have been written by then.
      written = number_of(written) or error('the permits left are not a whole number: reset the key', 0)
    end
    local dead_at = quota.now_ms - quota.interval_ms
    local members = redis.call('ZCARD', quota.permits_key)
    local dead, released, oldest = 0, 0, nil
    if members > 0 then
      local newest = redis.call('ZRANGE', quota.permits_key, '-1', '-1', 'WITHSCORES')
      permits_of(newest[1])
      quota.newest = tonumber(newest[2])
      if quota.newest <= dead_at then
        -- All of it has ended, and all is free whatever it was.
        dead = members
      else
        each_member(quota, 0, function(permits, score)
          if score > dead_at or (dead >= FEW_OF_EACH and dead_seen >= MOST) then
            oldest = score
            return true
          end
          dead, released, dead_seen = dead + 1, released + permits, dead_seen + 1
        end)
      end
    end
    local alive = members - dead
    quota.awaits_sum = false
    local function sum()
      if alive > FEW_OF_EACH then
        -- If a bucket has more than any call sums, its whole rate counts as taken.
        if alive > MOST then return quota.capacity end
        quota.awaits_sum = summed + alive > MOST
        if quota.awaits_sum then return quota.capacity end
        summed = summed + alive
      end
      return sum_from(quota, dead, alive)
    end
    local left = written and left_without(quota, written, released, alive, sum)
    -- Without a value, somebody has deleted it, or it has expired before the members. Otherwise it stays at the least what is
    -- written: release() makes value and members exceed the rate together, and what it gave isn't taken back. But neither it
    -- nor anything else leaves a value that exceeds the rate alone. Such a value was left by a higher rate, when the
    -- configuration was replaced without it. Only the rate of it is granted.
    left = math.min(left or quota.capacity - (alive > 0 and sum() or 0), quota.capacity)
    if quota.awaits_sum then
      -- What these free depends on the sum, so they stay for the next call.
      dead, alive, oldest = 0, members, dead_at
    end
    return quota.capacity - left, dead, alive, written, oldest
  end

  -- Microseconds until the members with a score end. Some that have ended may have been too many for this call.
  local function ends_us(quota, score, time)
    return math.max(1, (score + quota.interval_ms) * 1000 - time)
  end

  local function open(_, quota, time)
    if quota.fault then return nil, quota.fault end
    local is_seen, used, dead, alive, written, oldest = pcall(see, quota)
    if not is_seen then return nil, type(used) == 'table' and used.err or used end
    local grow_us = used > 0 and oldest and ends_us(quota, oldest, time) or 0
    return used, grow_us, dead, alive, written
  end

  local function charge(_, quota, time, cost, _, used, grow_us)
    if grow_us == 0 then grow_us = ends_us(quota, quota.grant_ms, time) end
    return used + cost, grow_us
  end

  -- Until enough of the oldest members have ended, by the same rule as when they are removed. Where these are too
  -- many, until all have.
  local function delay(_, quota, time, cost, charged, used, _, dead, alive, written)
    -- A later call knows.
    if quota.awaits_sum then return 1 end
    local left, released, remaining, at = quota.capacity - used, 0, alive + (charged > 0 and 1 or 0), nil
    local newest = math.max(quota.newest or 0, charged > 0 and quota.grant_ms or 0)
    -- Nobody knows what these many have taken.
    if not written and alive > MOST then at = newest end
    local all
    local function sum()
      if not all then
        if delays_summed + alive > DELAYS_MOST then return quota.capacity end
        delays_summed, all = delays_summed + alive, sum_from(quota, dead, alive) + charged
      end
      return all - released
    end
    -- A member of another layout behind the oldest one is found only here, when this call may have charged other buckets: an
    -- error would come too late. Once all members have ended, none of them can be in the way.
    local is_readable = pcall(each_member, quota, dead, function(permits, score)
      released, remaining, delays_seen = released + permits, remaining - 1, delays_seen + 1
      if delays_seen > DELAYS_MOST then at = newest end
      if not at and left_without(quota, left, released, remaining, sum) >= cost then at = score end
      return at
    end)
    if not is_readable then at = newest end
    return ends_us(quota, at or newest, time)
  end

  -- Gives all keys the time to live that the hash says or, if it says none, has.
  local function keep_alive(key, quota)
    local ttl = quota.keep_alive_ms
    if ttl > 0 then
      redis.call('PEXPIRE', key, integer_text(ttl))
    else
      ttl = math.min(redis.call('PTTL', key), GREATEST)
      if ttl <= 0 then return end
    end
    redis.call('PEXPIRE', quota.value_key, integer_text(ttl))
    redis.call('PEXPIRE', quota.permits_key, integer_text(ttl))
  end

  local function write_configuration(key, quota)
    redis.call('HSETNX', key, 'rate', integer_text(quota.capacity))
    redis.call('HSETNX', key, 'interval', integer_text(quota.interval_ms))
    redis.call('HSETNX', key, 'type', quota.new_type)
    redis.call('HSETNX', key, 'keepAliveTime', integer_text(quota.keep_alive_ms))
  end

  -- Removes the members that have ended, adds the new one, and writes what is left.
  local function write_permits(quota, charged, left, dead, alive, written)
    if alive == 0 and dead > 0 then
      redis.call('UNLINK', quota.permits_key)
    elseif dead > 0 then
      redis.call('ZREMRANGEBYRANK', quota.permits_key, '0', integer_text(dead - 1))
    end
    if written and written < GREATEST then
      -- Keeps its time to live, which SET would end.
      redis.call('INCRBY', quota.value_key, integer_text(left - written))
    elseif written or not quota.awaits_sum and (charged > 0 or alive <= MOST) then
      -- It may have been cut, or there is none. If it isn't known yet, a later call writes it.
      redis.call('SET', quota.value_key, integer_text(left))
    end
    if charged > 0 then
      -- A call may write a bucket again after it was reset, or recorded.
      quota.members = (quota.members or 0) + 1
      local member = struct.pack('<Bc14I2I4', 16, quota.random, quota.members, charged)
      redis.call('ZADD', quota.permits_key, integer_text(quota.grant_ms), member)
    end
  end

  local function close(key, quota, _, charged, used, _, dead, alive, written)
    if charged > 0 and quota.new_type then write_configuration(key, quota) end
    -- A value that was missing is written, so that the members aren't summed again. Without a hash it would outlast them.
    if charged > 0 or dead > 0 or not (written or quota.new_type) and alive > 0 then
      write_permits(quota, charged, quota.capacity - used, dead, alive, written)
    end
    if charged > 0 or not quota.new_type then keep_alive(key, quota) end
  end

  -- Adds to the reply the rate that a bucket is held to, and by how much its newest grant is ahead.
  local function held_to(quota, reply)
    local ahead_ms = quota.newest and quota.newest - quota.now_ms or 0
    if ahead_ms <= quota.interval_ms then ahead_ms = 0 end
    local filled = #reply
    reply[filled + 1] = quota.capacity
    reply[filled + 2] = quota.interval_ms
    reply[filled + 3] = math.floor(math.min(ahead_ms, GREATEST))
  end

  -- Forgets what was counted. The hash is others', too, and stays.
  local function reset(_, quota)
    if quota.value_key then redis.call('UNLINK', quota.value_key, quota.permits_key) end
  end

  return {
    quota = quota, of_bucket = of_bucket, open = open, charge = charge, delay = delay, close = close, reset = reset,
    held_to = held_to,
    -- Beside the hash: the value and the permits, overall and of this process.
    derived_keys = 4,
  }
end
