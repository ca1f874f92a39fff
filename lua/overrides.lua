-- The rates that hold in place of the file's, kept for all gateways in one key, which may lack an expiry.
-- Rust side: src/store/overrides.rs.
--
-- The table is a hash. A field names a limit, "<limit>", or one key of it, "<limit> <key>"; its value is
-- "<permits> <window> <scope> <end>": the window in microseconds, 0 for the limit's own; the scope "shared",
-- "instance", or "-" for the limit's own; and the end in microseconds of this server's clock, 0 for none. What
-- has ended counts as absent, and is removed with the next change; what isn't written so counts as absent, too,
-- but stays: a newer version may have written it. The field "#version" is the time of the last change, which no
-- other change has.
--
-- KEYS  the table.
-- ARGV  set <field> <value without the end> <lasting microseconds, 0 for good> <1: only if absent> <channel>
--           <the most fields>
--       unset <field> <channel>
--       list
--
-- Returns for set and unset 1 if that changed anything, else 0, and tells the channel of a change; for a field
-- too many -1; for list the time and the hash, as it is.
local call, match, tonumber = redis.call, string.match, tonumber
local table_key, operation, field = KEYS[1], ARGV[1], ARGV[2]
local MOST_EXACT = 9007199254740992

local clock = call('TIME')
local time = clock[1] * 1000000 + clock[2]

-- When what a value says ends; nothing if it isn't one of ours.
local function end_of(value)
  return value and tonumber(match(value, '^%d+ %d+ [%l-]+ (%d+)$'))
end

local function is_alive(value)
  local ends_at = end_of(value)
  return ends_at and (ends_at == 0 or ends_at > time)
end

-- Removes what has ended, and says how many fields are left.
local function sweep()
  local entries = call('HGETALL', table_key)
  local left = #entries / 2
  for i = 1, #entries, 2 do
    local value = entries[i + 1]
    if end_of(value) and not is_alive(value) then left = left - call('HDEL', table_key, entries[i]) end
  end
  return left
end

local function changed(channel)
  local last = tonumber(match(call('HGET', table_key, '#version') or '', '^%d+$')) or 0
  local version = math.max(time, last < MOST_EXACT and last + 1 or 0)
  call('HSET', table_key, '#version', string.format('%d', version))
  -- Who may not publish is heard of by the version.
  redis.pcall('PUBLISH', channel, 'overrides')
  return 1
end

if operation == 'set' then
  local lasts_us = tonumber(ARGV[4])
  if ARGV[5] == '1' and is_alive(call('HGET', table_key, field)) then return 0 end
  -- The version is a field, too.
  if sweep() > tonumber(ARGV[7]) and not call('HGET', table_key, field) then return -1 end
  local ends_at = lasts_us > 0 and time + lasts_us or 0
  call('HSET', table_key, field, string.format('%s %d', ARGV[3], ends_at))
  return changed(ARGV[6])
elseif operation == 'unset' then
  local was_alive = is_alive(call('HGET', table_key, field))
  if call('HDEL', table_key, field) == 0 or not was_alive then return 0 end
  sweep()
  return changed(ARGV[3])
end

return { time, call('HGETALL', table_key) }
