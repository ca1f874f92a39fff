-- Windows one after the other: the first grant begins one, and all of it is free W after it.
-- Rust twin: src/algorithm/fixed_window.rs. Up to 2L - 1 permits can pass within W, across an end.
--
-- A bucket is a string, big-endian: the window's beginning in microseconds of this server's clock (7 bytes)
-- and the permits in use (4). It decides by these alone, never by what is left of the key's expiry.
local function fixed_window()
  local algorithm = {}

  function algorithm.quota(permits, window_us)
    return { capacity = permits, window_us = window_us }
  end

  -- When there is more room is when the window ends.
  function algorithm.open(key, quota, time)
    local bucket = call('GET', key)
    if bucket then
      local began_at, used = parse('>I7I4', bucket)
      local ends_at = began_at + quota.window_us
      if ends_at > time then return used, ends_at end
    end
    return 0, time
  end

  function algorithm.charge(_, quota, time, cost, _, used, ends_at)
    return used + cost, used == 0 and time + quota.window_us or ends_at
  end

  function algorithm.delay(_, _, time, _, _, _, ends_at)
    return ends_at - time
  end

  function algorithm.close(key, quota, time, charged, used, ends_at)
    if charged > 0 then
      local lasts_ms = ceil((ends_at - time) / 1000) + 1
      call('SET', key, pack('>I7I4', ends_at - quota.window_us, used), 'PX', format('%d', lasts_ms))
    elseif used > 0 then
      keep(key, ends_at, 0, time)
    end
  end

  return algorithm
end
