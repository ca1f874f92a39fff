-- The sliding window of a limit with refunds, in cells or not: a grant can become cheaper after it was made.
--
-- Rust twin: crates/limiter/src/algorithm/sliding_window.rs, with the cells of algorithm/refundable.rs.
--
-- A bucket is a string, big-endian, so that an entry can be changed and all behind it moved: the time at which the
-- newest entry began (7 bytes; 0 if it takes no more grants), the running total of permits (4, modulo 2^32), and for
-- each entry, oldest first, its time (7) and the total before it (4).
--
-- What is used is the total minus the one before the oldest alive entry, so a refund lowers the total, and those of
-- the entries behind its own. That is cheap since there are few entries: a grant less than a cell after the beginning
-- of the newest entry is added to that entry, which gets the later time. Where no number of cells is given, the first
-- 128 alive entries have a time each, and further ones are cells of W / 128. So a permit frees late by less than a
-- cell, and never early.
--
-- The parameter is the number of cells in a window, or 0. The table of functions is that of lua/sliding_window.lua,
-- with `refund(key, quota, argument, time)` beside it: it gives back permits of the grant at a time, or if the time is
-- 0 of the oldest ones that are alive, and returns how many fewer are used. The argument is packed: the permits
-- (4 bytes) and the time (7).
local function refundable()
  local HEADER, ENTRY = 11, 11
  local EXACT, CELLS = 128, 128

  local function quota(permits, window_us, cells)
    return { capacity = permits, window_us = window_us, cells = cells }
  end

  -- Returns the time of an entry and the total before it.
  local function entry_of(log, index)
    return struct.unpack('>I7I4', log, HEADER + index * ENTRY + 1)
  end

  local function count_of(log)
    return (#log - HEADER) / ENTRY
  end

  local function total_of(log)
    return (struct.unpack('>I4', log, 8))
  end

  -- Returns the total after an entry.
  local function end_of(log, index)
    if index + 1 == count_of(log) then return total_of(log) end
    local _, before = entry_of(log, index + 1)
    return before
  end

  -- Returns the first entry from `low` on, if any, whose time is at least this.
  local function first_from(log, low, time)
    local high = count_of(log)
    while low < high do
      local middle = math.floor((low + high) / 2)
      if entry_of(log, middle) >= time then high = middle else low = middle + 1 end
    end
    return low
  end

  -- Returns, beside the permits used: the log (false if nothing is alive), and the index of its oldest alive entry.
  local function open(key, quota, time)
    local log = redis.pcall('GET', key)
    if not log then return 0, 0, false, 0 end
    if type(log) == 'table' then return nil, log.err end
    local count = count_of(log)
    if count < 1 or count % 1 ~= 0 then return nil, 'the bucket is not a log of grants with refunds' end
    -- If the clock stepped back, the limiter becomes stricter, and entries stay in order.
    local dead_at = math.max(entry_of(log, count - 1), time) - quota.window_us
    local oldest = first_from(log, 0, dead_at + 1)
    if oldest == count then return 0, 0, false, 0 end
    local at, before = entry_of(log, oldest)
    return (total_of(log) - before) % 2 ^ 32, at + quota.window_us - time, log, oldest
  end

  -- Returns the time of a grant now, and whether it is added to the newest entry.
  local function grant(quota, time, log, oldest)
    if not log then return time, false end
    local alive = count_of(log) - oldest
    local at, cell_us = math.max(time, entry_of(log, count_of(log) - 1)), 1
    if quota.cells > 0 then
      cell_us = math.max(1, math.floor(quota.window_us / quota.cells))
    elseif alive >= EXACT then
      cell_us = math.max(1, math.floor(quota.window_us / CELLS))
    end
    return at, at - struct.unpack('>I7', log) < cell_us
  end

  local function charge(_, quota, time, cost, charged, used, grow_us, log, oldest)
    local at, joins = grant(quota, time, log, oldest)
    if used == 0 or (charged == 0 and joins and count_of(log) - oldest == 1) then
      grow_us = at + quota.window_us - time
    end
    return used + cost, grow_us
  end

  -- Returns the time until enough of the oldest permits have left the window.
  local function delay(_, quota, time, cost, charged, used, _, log, oldest)
    local excess, older = used + cost - quota.capacity, used - charged
    local at, joins = grant(quota, time, log, oldest)
    if charged > 0 and joins then
      local _, before = entry_of(log, count_of(log) - 1)
      older = older - (total_of(log) - before) % 2 ^ 32
    end
    if excess > older then return at + quota.window_us - time end
    local _, first = entry_of(log, oldest)
    local low, high = oldest, count_of(log) - 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      if (end_of(log, middle) - first) % 2 ^ 32 >= excess then high = middle else low = middle + 1 end
    end
    return entry_of(log, low) + quota.window_us - time
  end

  -- Writes a log that is needed until its newest entry has ended.
  local function write(key, quota, time, began, total, entries, newest_at)
    local log = struct.pack('>I7I4', began, total % 2 ^ 32) .. entries
    redis.call('SET', key, log, 'PX', milliseconds(newest_at + quota.window_us - time))
  end

  local function close(key, quota, time, charged, _, _, log, oldest)
    if charged == 0 then
      if log then keep(key, entry_of(log, count_of(log) - 1) + quota.window_us - time, 0) end
      return
    end
    local at, joins = grant(quota, time, log, oldest)
    local began, total, entries = at, 0, ''
    if log then
      total, entries = total_of(log), string.sub(log, HEADER + oldest * ENTRY + 1)
    end
    local before = total
    if joins then
      began = struct.unpack('>I7', log)
      _, before = entry_of(log, count_of(log) - 1)
      entries = string.sub(entries, 1, -ENTRY - 1)
    end
    write(key, quota, time, began, total + charged, entries .. struct.pack('>I7I4', at, before), at)
  end

  -- Returns the log without the oldest permits, and its entries.
  local function without_oldest(log, oldest, permits)
    local _, first = entry_of(log, oldest)
    while (end_of(log, oldest) - first) % 2 ^ 32 <= permits do oldest = oldest + 1 end
    local at = entry_of(log, oldest)
    local rest = string.sub(log, HEADER + (oldest + 1) * ENTRY + 1)
    return struct.pack('>I7I4', at, (first + permits) % 2 ^ 32) .. rest
  end

  local function refund(key, quota, argument, time)
    local permits, granted_at = struct.unpack('>I4I7', argument)
    local used, fault, log, oldest = open(key, quota, time)
    if not used then error(fault, 0) end
    if used == 0 then return 0 end
    local began, total, count = struct.unpack('>I7', log), total_of(log), count_of(log)
    local newest_at = entry_of(log, count - 1)
    local given, entries = math.min(permits, used), nil
    if granted_at > 0 then
      if granted_at + quota.window_us <= math.max(newest_at, time) then return 0 end
      local index = first_from(log, oldest, granted_at)
      if index == count then return 0 end
      local _, before = entry_of(log, index)
      local cost = (end_of(log, index) - before) % 2 ^ 32
      given = math.min(permits, cost)
      -- An entry that is given back whole goes. The one before the newest takes no more.
      local kept = given < cost and index + 1 or index
      if given == cost and index == count - 1 then began = 0 end
      local parts = { string.sub(log, HEADER + oldest * ENTRY + 1, HEADER + kept * ENTRY) }
      for behind = index + 1, count - 1 do
        local at, total_before = entry_of(log, behind)
        parts[#parts + 1] = struct.pack('>I7I4', at, (total_before - given) % 2 ^ 32)
      end
      total, entries = total - given, table.concat(parts)
    elseif given < used then
      entries = without_oldest(log, oldest, given)
    end
    if given == used then
      redis.call('UNLINK', key)
    else
      write(key, quota, time, began, total, entries, newest_at)
    end
    return given
  end

  return { quota = quota, open = open, charge = charge, delay = delay, close = close, refund = refund }
end
