-- Calendar windows: one hour, day, ISO week, month or year by the clock on the wall, UTC or at a fixed offset.
--
-- Rust twin: crates/limiter/src/algorithm/calendar.rs. Across a boundary, up to 2L - 1 permits can pass within W.
--
-- A bucket is a string, big-endian: the beginning of the window in microseconds of this server's clock (7 bytes) and
-- the permits in use (4). Beginning and end of a window follow from a time alone, so all agree on them.
--
-- The parameter is a letter, h, d, w, m or y, and the minutes by which the clock on the wall is ahead of UTC.
--
-- Divisions are of integers below 2^53, so math.floor makes them exact, in Lua 5.1 as in 5.4.
local function calendar_window()
  local floor = math.floor
  local HOUR_US, DAY_US = 3600000000, 86400000000
  local LONGEST = { d = 1, w = 7, m = 31, y = 366 }

  -- Returns the first day of the unit that a day lies in. Days count from 1970-01-01.
  local function first_day(unit, day)
    if unit == 'd' then return day end
    -- The first day of 1970 was a Thursday.
    if unit == 'w' then return day - (day + 3) % 7 end
    -- In years that begin in March, so that the leap day is the last one: eras of 400 years, the year of the era, the
    -- day of the year, and the month.
    local day_of_era = (day + 719468) % 146097
    local year_of_era = floor(
      (day_of_era - floor(day_of_era / 1460) + floor(day_of_era / 36524) - floor(day_of_era / 146096)) / 365)
    local day_of_year = day_of_era - (365 * year_of_era + floor(year_of_era / 4) - floor(year_of_era / 100))
    local month = floor((5 * day_of_year + 2) / 153)
    if unit == 'm' then return day - (day_of_year - floor((153 * month + 2) / 5)) end
    if month >= 10 then return day - (day_of_year - 306) end
    local is_leap = year_of_era % 4 == 0 and (year_of_era % 100 ~= 0 or year_of_era == 0)
    return day - (day_of_year + (is_leap and 60 or 59))
  end

  -- Returns the beginning and the end of the window at a time.
  local function window(unit, offset_us, time)
    local local_us = time + offset_us
    if unit == 'h' then
      local began_at = local_us - local_us % HOUR_US
      return began_at - offset_us, began_at - offset_us + HOUR_US
    end
    local first = first_day(unit, floor(local_us / DAY_US))
    -- The longest unit later, the next one has begun, and no other.
    local next_first = first_day(unit, first + LONGEST[unit])
    return first * DAY_US - offset_us, next_first * DAY_US - offset_us
  end

  local function quota(permits, _, parameter, time)
    local unit, offset_us = string.sub(parameter, 1, 1), tonumber(string.sub(parameter, 2)) * 60000000
    local began_at, ends_at = window(unit, offset_us, time)
    return { capacity = permits, unit = unit, offset_us = offset_us, began_at = began_at, ends_at = ends_at }
  end

  -- Beside the permits in use and the time until there is more room, returns the window.
  local function open(key, quota, time)
    local began_at, ends_at = quota.began_at, quota.ends_at
    local bucket = redis.pcall('GET', key)
    if bucket then
      if type(bucket) == 'table' then return nil, bucket.err end
      if #bucket ~= 11 then return nil, 'the bucket is not a calendar window' end
      local bucket_began_at, used = struct.unpack('>I7I4', bucket)
      if bucket_began_at > began_at then
        -- The clock stepped back over the boundary.
        began_at, ends_at = window(quota.unit, quota.offset_us, bucket_began_at)
      end
      if bucket_began_at == began_at then return used, ends_at - time, began_at, ends_at end
    end
    return 0, 0, began_at, ends_at
  end

  local function charge(_, _, time, cost, _, used, _, _, ends_at)
    return used + cost, ends_at - time
  end

  local function delay(_, _, time, _, _, _, _, _, ends_at)
    return ends_at - time
  end

  local function write(key, time, used, began_at, ends_at)
    redis.call('SET', key, struct.pack('>I7I4', began_at, used), 'PX', milliseconds(ends_at - time))
  end

  local function close(key, _, time, charged, used, _, began_at, ends_at)
    if charged > 0 then
      write(key, time, used, began_at, ends_at)
    elseif used > 0 then
      keep(key, ends_at - time, 0)
    end
  end

  -- Gives back permits of the current window: see lua/refundable.lua.
  local function refund(key, quota, argument, time)
    local permits, granted_at = struct.unpack('>I4I7', argument)
    local used, fault, began_at, ends_at = open(key, quota, time)
    if not used then error(fault, 0) end
    if used == 0 or (granted_at > 0 and granted_at < began_at) then return 0 end
    local given = math.min(permits, used)
    if given == used then
      redis.call('UNLINK', key)
    else
      write(key, time, used - given, began_at, ends_at)
    end
    return given
  end

  return { quota = quota, open = open, charge = charge, delay = delay, close = close, refund = refund }
end
