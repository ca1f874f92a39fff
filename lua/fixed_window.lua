-- Consecutive windows: the first grant begins a window, and all of it is free again W later.
--
-- Rust twin: crates/limiter/src/algorithm/fixed_window.rs. Across the end of a window, up to 2L - 1 permits can pass within W.
--
-- A bucket is a string, big-endian: the beginning of the window in microseconds of this server's clock (7 bytes) and
-- the permits in use (4). Decisions depend on these only, never on the expiry of the key.
local function fixed_window()
  local function quota(permits, window_us)
    return { capacity = permits, window_us = window_us }
  end

  -- The next room appears when the window ends.
  local function open(key, quota, time)
    local bucket = redis.pcall('GET', key)
    if bucket then
      if type(bucket) == 'table' then return nil, bucket.err end
      if #bucket ~= 11 then return nil, 'the bucket is not a fixed window' end
      local began_at, used = struct.unpack('>I7I4', bucket)
      local ends_us = began_at + quota.window_us - time
      if ends_us > 0 then return used, ends_us end
    end
    return 0, 0
  end

  local function charge(_, quota, _, cost, _, used, ends_us)
    return used + cost, used == 0 and quota.window_us or ends_us
  end

  local function delay(_, _, _, _, _, _, ends_us)
    return ends_us
  end

  local function close(key, quota, time, charged, used, ends_us)
    if charged > 0 then
      local began_at = time + ends_us - quota.window_us
      redis.call('SET', key, struct.pack('>I7I4', began_at, used), 'PX', milliseconds(ends_us))
    elseif used > 0 then
      keep(key, ends_us, 0)
    end
  end

  -- Gives back permits of the current window: see lua/refundable.lua.
  local function refund(key, quota, argument, time)
    local permits, granted_at = struct.unpack('>I4I7', argument)
    local used, ends_us = open(key, quota, time)
    if not used then error(ends_us, 0) end
    local began_at = time + ends_us - quota.window_us
    if used == 0 or (granted_at > 0 and granted_at < began_at) then return 0 end
    local given = math.min(permits, used)
    if given == used then
      redis.call('UNLINK', key)
    else
      redis.call('SET', key, struct.pack('>I7I4', began_at, used - given), 'PX', milliseconds(ends_us))
    end
    return given
  end

  return { quota = quota, open = open, charge = charge, delay = delay, close = close, refund = refund }
end
