-- The sliding window, exactly: at most L permits in any window of length W, wherever it starts. This file tells what is in use, and
-- when there will be room. Whether a cost fits is decided by its callers, lua/walk.lua and lua/lone.lua.
-- Rust twin: crates/limiter/src/algorithm/sliding_window.rs. An entry is alive iff its time > now - W.
--
-- A bucket is a sorted set, the log of its grants. An entry's score is its time in microseconds of Redis's
-- clock. Its member contains everything, big-endian, so that no score needs to be read: Redis prints a score with 17
-- digits, which takes longer than finding it.
--
--     7 bytes  the time
--     4 bytes  the running total of permits before it, modulo 2^32
--     4 bytes  the cost
--     7 bytes  the time of the oldest entry that was alive then: its own if no other was, 0 if not known
--     4 bytes  the running total before that entry
--     1 byte   its rank: the number of dead entries before it
--     1 byte   the life that the bucket's expiry covers: see `life_of` (lua/lone.lua)
--     6 bytes  only in cells: the time from its first grant to its last
--
-- The permits in use are the total after the newest entry minus the total before the oldest alive one, so no second
-- counter can drift. A decision reads the newest entry and adds another. Only if the oldest entry that it refers to has
-- left the window, the next ones are read by rank, then by score. Dead entries are removed with a grant when there are 8
-- of them, within the bound of a call (`removals_left`, lua/lone.lua). No two entries have the same time: a grant less
-- than a cell after the first grant of the newest entry is added to that entry, which gets the later time. Here a cell
-- is one microsecond; in lua/sliding_cells.lua it is a fraction of the window.
--
-- Each algorithm is a table of functions of values, created only in the calls that need it. A bucket becomes a table
-- only if several operations use it (lua/walk.lua). `time` is Redis's clock:
--     quota(permits, window_us, parameter, time)      the quota in the form that the other functions use
--     open(key, quota, time)     reads a bucket: the permits used, the microseconds until there is more room
--                                (0 if all is free), and other values read; nil and an error's text if the key
--                                has another type, or its content isn't the algorithm's
--     charge(key, quota, time, cost, charged, used, grow_us, read...)    returns used and grow_us after a grant;
--                                `charged` are the permits that this call of the script has charged before it
--     delay(key, quota, time, cost, charged, used, grow_us, read...)     returns the microseconds until a cost
--                                fits that doesn't fit now, but can
--     close(key, quota, time, charged, used, grow_us, read...)           writes what was charged, and ensures
--                                that the bucket expires. Nothing is written before it
--
-- Most calls decide one request, and then creating objects takes longer than deciding. Each function is an object,
-- and so is each local of an outer function that it uses. So functions are created only where they are needed, and
-- use the libraries directly instead of through locals.
--
-- Numbers are passed to redis.call as text, since it would format them as doubles, which is slow.

-- Returns the expiry of a bucket that is needed for this time, as text. It is a second longer: if the clock is set back
-- a little, entries that had ended count again.
local function milliseconds(needed_us)
  return string.format('%d', math.ceil(needed_us / 1000) + 1000)
end

-- Ensures that a bucket expires, but not until half a second after it is last needed. If the expiry must be set, it is
-- set `spare_us` later.
local function keep(key, needed_us, spare_us)
  if redis.call('PTTL', key) < math.max(0, math.ceil(needed_us / 1000) + 500) then
    redis.call('PEXPIRE', key, milliseconds(math.max(0, needed_us) + spare_us))
  end
end

local function sliding_window()
  local function quota(permits, window_us, _, time)
    local life, life_began_at, life_us = life_of(window_us, time)
    return {
      capacity = permits, window_us = window_us, cell_us = 1, time_text = string.format('%d', time),
      life = life, life_us = life_us, life_began_at = life_began_at,
    }
  end

  -- The functions that read entries behind the newest one, created on demand.
  local behind

  local function look_behind()
    local ranks = {}

    -- Returns the entry of a rank; nil if there is none.
    local function ranked(key, rank)
      local text = ranks[rank] or string.format('%d', rank)
      ranks[rank] = text
      return redis.call('ZRANGE', key, text, text)[1]
    end

    -- Returns the rank of the oldest alive entry, its time and the total before it; nil if the log is invalid.
    -- Entries below `low` are dead, and the newest one is alive. Usually one or two entries end between grants, so
    -- the next ones are tried first.
    local function oldest_alive(key, low, dead_at)
      for rank = low, low + 2 do
        local entry = ranked(key, rank)
        -- Somebody has shortened the log, so the search must begin at its start.
        if not entry or #entry < 28 then break end
        local at, first = struct.unpack('>I7I4', entry)
        if at > dead_at then return rank, at, first end
      end
      local rank = redis.call('ZCOUNT', key, '-inf', string.format('%d', dead_at))
      local entry = ranked(key, rank)
      if not entry or #entry < 28 then return nil end
      return rank, struct.unpack('>I7I4', entry)
    end

    return { ranked = ranked, oldest_alive = oldest_alive }
  end

  -- Returns, beside the permits used: the newest entry's time, and the entry (false if there is none); the time of
  -- the oldest alive entry (false if there is none), the total before it, and its rank.
  local function open(key, quota, time)
    local NOT_OURS = 'the bucket is not a log of grants'
    local last = redis.pcall('ZRANGE', key, '-1', '-1')
    local newest = last[1]
    if not newest then
      if last.err then return nil, last.err end
      return 0, 0, 0, false, false, 0, 0
    end
    if #newest ~= 28 and #newest ~= 34 then return nil, NOT_OURS end
    local newest_at, before, cost, oldest_at, first, rank = struct.unpack('>I7I4I4I7I4B', newest)
    -- If the clock has stepped back, the newest entry's time counts as now, for new grants, too: entries stay in order.
    local dead_at = (newest_at > time and newest_at or time) - quota.window_us
    if newest_at <= dead_at then return 0, 0, newest_at, newest, false, 0, 0 end
    if oldest_at <= dead_at then
      behind = behind or look_behind()
      rank, oldest_at, first = behind.oldest_alive(key, rank + 1, dead_at)
      if not rank then return nil, NOT_OURS end
    end
    local used = (before + cost - first) % 2 ^ 32
    return used, oldest_at + quota.window_us - time, newest_at, newest, oldest_at, first, rank
  end

  -- Returns the span of the newest entry after the current grant is added to it; nil if it is too old for that.
  local function joined_span(quota, time, newest_at, newest)
    local before_us = #newest > 28 and struct.unpack('>I6', newest, 29) or 0
    local span_us = math.max(time, newest_at) - newest_at + before_us
    return span_us < quota.cell_us and span_us or nil
  end

  local function charge(_, quota, time, cost, charged, used, grow_us, newest_at, newest, oldest_at)
    if used == 0
      or (charged == 0 and newest_at == oldest_at and joined_span(quota, time, newest_at, newest)) then
      grow_us = math.max(time, newest_at) + quota.window_us - time
    end
    return used + cost, grow_us
  end

  -- Returns the time until enough of the oldest permits have left the window.
  local function delay(
    key, quota, time, cost, charged, used, grow_us, newest_at, newest, oldest_at, first, low)
    local excess, older = used + cost - quota.capacity, used - charged
    if charged > 0 and oldest_at and joined_span(quota, time, newest_at, newest) then
      older = older - struct.unpack('>I4', newest, 12)
    end
    if excess > older then return math.max(time, newest_at) + quota.window_us - time end
    if excess == 1 or newest_at == oldest_at then return grow_us end
    -- Finds the first entry after which at least `excess` permits have left the window. The first guess is right if all
    -- grants cost 1.
    behind = behind or look_behind()
    local high = math.min(low + excess, redis.call('ZCARD', key)) - 1
    local rank = high
    while low <= high do
      local entry = behind.ranked(key, rank)
      -- Can't happen in a valid log.
      if not entry or #entry < 28 then return grow_us end
      local at, before, count = struct.unpack('>I7I4I4', entry)
      local missing = excess - (before + count - first) % 2 ^ 32
      if missing > 0 then
        low = rank + 1
      elseif missing > -count then
        return at + quota.window_us - time
      else
        high = rank - 1
      end
      rank = math.floor((low + high) / 2)
    end
    return grow_us
  end

  local function close(key, quota, time, charged, used, _, newest_at, newest, oldest_at, first, rank)
    if charged == 0 then
      if newest then keep(key, newest_at + quota.window_us - time, 0) end
      return
    end
    local ENTRY, CELL = '>I7I4I4I7I4BB', '>I7I4I4I7I4BBI6'
    if not oldest_at then
      if newest then redis.call('UNLINK', key) end
      local entry = struct.pack(ENTRY, time, 0, charged, time, 0, 0, quota.life)
      redis.call('ZADD', key, quota.time_text, entry)
      redis.call('PEXPIRE', key, milliseconds(quota.life_began_at + 2 * quota.life_us - time))
      return
    end
    local at, score, before, cost = time, quota.time_text, (first + used - charged) % 2 ^ 32, charged
    if newest_at > time then
      at, score = newest_at, string.format('%d', newest_at)
    end
    local span_us = at - newest_at < quota.cell_us and joined_span(quota, time, newest_at, newest)
    if span_us then
      before, cost = struct.unpack('>I4I4', newest, 8)
      cost = cost + charged
      if newest_at == oldest_at then oldest_at = at end
    end
    local TRIM_AT = 8
    -- The greatest rank that fits into an entry.
    local MOST_RANK = 255
    local trimmed = rank >= TRIM_AT and math.min(rank, removals_left) or 0
    rank, removals_left = rank - trimmed, removals_left - trimmed
    -- The next call has to search for the oldest entry.
    if rank > MOST_RANK then rank, oldest_at = MOST_RANK, 0 end
    -- The commands are in an order in which any one may fail, as when a user of Redis loses the right to it. An entry is added only if the
    -- expiry is what it promises, and a rank that is too small only costs a search.
    local is_promised = newest_at >= quota.life_began_at and at == time and string.byte(newest, 28) == quota.life
    if not is_promised then
      local began_at = at == time and quota.life_began_at or at
      keep(key, began_at + 2 * quota.life_us - time, 0)
    end
    local pattern = span_us and span_us > 0 and CELL or ENTRY
    local entry = struct.pack(pattern, at, before, cost, oldest_at, first, rank, quota.life, span_us)
    redis.call('ZADD', key, score, entry)
    -- In this order, because Redis deletes an empty sorted set with its expiry.
    if span_us then redis.call('ZREM', key, newest) end
    if trimmed > 0 then redis.call('ZREMRANGEBYRANK', key, '0', string.format('%d', trimmed - 1)) end
  end

  return { quota = quota, open = open, charge = charge, delay = delay, close = close }
end
