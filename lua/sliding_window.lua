-- The sliding window, exactly: at most L permits in any window of length W, wherever it starts.
-- Rust twin: src/algorithm/sliding_window.rs. An entry is alive iff its time > now - W.
--
-- A bucket is a sorted set, the log of its grants. An entry's score is its time in microseconds of this
-- server's clock. Its member holds all that is known of it, big-endian, so that no score need be read
-- (Redis prints one with 17 digits, which takes longer than to find it):
--
--     7 bytes  the time
--     4 bytes  the running total of permits before it, modulo 2^32
--     1 byte   the life that the bucket was promised: see `quota`
--     1 byte   how many dead entries the log began with then, or ALONE
--     4 bytes  the cost
--     6 bytes  only in cells: the time from its first grant to its last
--
-- What is used is then the newest entry's end less the oldest alive entry's beginning: no second
-- counter that could drift, and no entry is read that needn't be. Dead entries are skipped by rank, as far
-- as the newest entry knows of them, then by score; with a grant they are removed when they are 16, at
-- most 1,000 a call. No two entries have the same time: what is granted less than a cell (here of one
-- microsecond) after the newest one began is added to it, and it gets that time.
--
-- Each algorithm is a table of functions of values, made only in the calls that need it; a bucket becomes
-- a table only where several operations name it (lua/walk.lua). `time` is this server's:
--     quota(permits, window_us, parameter, time)      what the functions need to know of a limit
--     open(key, quota, time)     reads a bucket: the permits used, the microseconds until there is more room
--                                (0 if all is free), and what else was seen
--     charge(key, quota, time, cost, charged, used, grow_us, seen...)    the first two after a grant;
--                                `charged` are the permits that this call has charged before it
--     delay(key, quota, time, cost, charged, used, grow_us, seen...)     microseconds until a cost fits that
--                                doesn't now, but can
--     close(key, quota, time, charged, used, grow_us, seen...)           writes what was charged, and sees to
--                                it that the bucket expires
--
-- Numbers go to redis.call as text, since it would format them as doubles, which is slow.
local TOTAL_MODULUS = 4294967296
-- The most that can be in use, debts included: any limit and nearly as much again.
local MOST_USED = 4000000000
local TRIM_AT, TRIM_MOST = 16, 1000
-- In place of a count of dead entries: no other entry was alive.
local ALONE = 255

local call, format, pack, parse = redis.call, string.format, struct.pack, struct.unpack
local abs, ceil, floor, frexp, max, min = math.abs, math.ceil, math.floor, math.frexp, math.max, math.min

-- For how long a bucket is kept that is needed for so many microseconds, as text. A millisecond longer, since
-- Redis may count from the one in which the script began.
local function milliseconds(needed_us)
  return format('%d', ceil(needed_us / 1000) + 1)
end

-- Sees to it that a bucket expires, but not before it is needed no more; if that must be set, then to
-- `spare_us` later.
local function keep(key, needed_us, spare_us)
  needed_us = max(0, needed_us)
  if call('PTTL', key) < ceil(needed_us / 1000) then
    call('PEXPIRE', key, milliseconds(needed_us + spare_us))
  end
end

local function sliding_window()
  local algorithm = {}

  -- A bucket's life is W, rounded up to one of four steps an octave, so that it has a code of a byte. Time
  -- is divided into lives. The first grant in one sees to it that the bucket is kept to the end of the next,
  -- and leaves the code in its entry: later grants in the same life needn't ask Redis for the expiry, also
  -- if W has changed meanwhile.
  function algorithm.quota(permits, window_us, _, time)
    local fraction, exponent = frexp(window_us)
    local eighths = ceil(fraction * 8)
    local life_us = eighths * 2 ^ (exponent - 3)
    local life_began_at = time - time % life_us
    return {
      capacity = permits, window_us = window_us, cell_us = 1,
      time_text = format('%d', time), life = exponent * 4 + eighths - 5,
      life_us = life_us, life_began_at = life_began_at, promised_us = life_began_at + 2 * life_us - time,
    }
  end

  local ranks = {}

  -- A rank as text, which is made once a call.
  local function text(rank)
    ranks[rank] = ranks[rank] or format('%d', rank)
    return ranks[rank]
  end

  -- Sees, beside the permits used: the newest entry's end and time, the newest entry and the oldest alive
  -- one (each false if there is none), and how many dead ones lie before that (nil: more than were looked at).
  function algorithm.open(key, quota, time)
    local newest = call('ZRANGE', key, '-1', '-1')[1]
    if not newest then return 0, 0, 0, 0, false, false, 0 end
    local newest_at, before, _, dead, cost = parse('>I7I4BBI4', newest)
    -- A clock that stepped back makes the limiter stricter, and entries stay in order.
    local dead_at = (newest_at > time and newest_at or time) - quota.window_us
    local total = before + cost
    if newest_at <= dead_at then return 0, 0, total, newest_at, newest, false, 0 end
    if dead == ALONE then return cost, newest_at + quota.window_us - time, total, newest_at, newest, newest, 0 end
    -- Where entries die, the next one may have died, too; the first one of a log seldom has.
    local next_ones = dead == 0 and call('ZRANGE', key, '0', '0') or call('ZRANGE', key, text(dead), text(dead + 2))
    local looked_at, oldest, oldest_at, first = 0
    repeat
      looked_at = looked_at + 1
      oldest = next_ones[looked_at]
        or call('ZRANGE', key, '(' .. format('%d', dead_at), '+inf', 'BYSCORE', 'LIMIT', '0', '1')[1]
      oldest_at, first = parse('>I7I4', oldest)
    until oldest_at > dead_at
    dead = looked_at <= #next_ones and dead + looked_at - 1 or nil
    return (total - first) % TOTAL_MODULUS, oldest_at + quota.window_us - time, total, newest_at, newest, oldest, dead
  end

  -- What the newest entry spans when what is granted now is added to it; nil if it is too old for that.
  local function joined_span(quota, time, newest_at, newest)
    local span_us = max(time, newest_at) - newest_at + (#newest > 17 and parse('>I6', newest, 18) or 0)
    return span_us < quota.cell_us and span_us or nil
  end

  function algorithm.charge(_, quota, time, cost, charged, used, grow_us, _, newest_at, newest, oldest)
    if used == 0 or (charged == 0 and newest == oldest and joined_span(quota, time, newest_at, newest)) then
      grow_us = max(time, newest_at) + quota.window_us - time
    end
    return used + cost, grow_us
  end

  -- Until enough of the oldest permits have left.
  function algorithm.delay(key, quota, time, cost, charged, used, grow_us, total, newest_at, newest, oldest, dead)
    local excess, older = used + cost - quota.capacity, used - charged
    if charged > 0 and oldest and joined_span(quota, time, newest_at, newest) then
      older = older - parse('>I4', newest, 14)
    end
    if excess > older then return max(time, newest_at) + quota.window_us - time end
    local _, first, _, _, first_cost = parse('>I7I4BBI4', oldest)
    if first_cost >= excess then return grow_us end
    -- The lowest rank whose end lies at least `excess` permits behind the oldest alive one's beginning. The first
    -- guess is right where all have cost 1.
    local low = 1 + (dead or call('ZRANK', key, oldest))
    local high = min(low + excess - 2, call('ZCARD', key) - 1)
    local rank = high
    while true do
      local entry = call('ZRANGE', key, text(rank), text(rank))[1]
      local at, before, _, _, count = parse('>I7I4BBI4', entry)
      local missing = excess - (before + count - first) % TOTAL_MODULUS
      if missing > 0 then
        low = rank + 1
      elseif missing > -count then
        return at + quota.window_us - time
      else
        high = rank - 1
      end
      rank = floor((low + high) / 2)
    end
  end

  function algorithm.close(key, quota, time, charged, _, _, total, newest_at, newest, oldest, dead)
    if charged == 0 then
      if newest then keep(key, newest_at + quota.window_us - time, 0) end
      return
    end
    local at, score, life, span_us, promised = time, quota.time_text, quota.life, nil, false
    if newest_at > time then
      at, score = newest_at, format('%d', newest_at)
    end
    if not oldest then
      if newest then call('UNLINK', key) end
      dead = ALONE
    else
      promised = newest_at >= quota.life_began_at and at == time and parse('B', newest, 12) == life
      if time - newest_at < quota.cell_us then span_us = joined_span(quota, time, newest_at, newest) end
      dead = dead or call('ZRANK', key, oldest)
      if dead >= TRIM_AT then
        local trimmed = min(dead, TRIM_MOST)
        call('ZREMRANGEBYRANK', key, '0', format('%d', trimmed - 1))
        dead = min(dead - trimmed, ALONE - 1)
      end
    end
    if span_us then
      local _, before, _, newest_dead, cost = parse('>I7I4BBI4', newest)
      if newest_dead == ALONE then dead = ALONE end
      local pattern = span_us > 0 and '>I7I4BBI4I6' or '>I7I4BBI4'
      -- In this order, since an empty sorted set is gone, and its expiry with it.
      call('ZADD', key, score, pack(pattern, at, before, life, dead, cost + charged, span_us))
      call('ZREM', key, newest)
    else
      call('ZADD', key, score, pack('>I7I4BBI4', at, total % TOTAL_MODULUS, life, dead, charged))
    end
    if not oldest then
      call('PEXPIRE', key, milliseconds(quota.promised_us))
    elseif not promised then
      keep(key, at == time and quota.promised_us or at + 2 * quota.life_us - time, 0)
    end
  end

  return algorithm
end
