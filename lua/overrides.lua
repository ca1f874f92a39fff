-- The rates that hold in place of the file's, kept for all gateways in one key, which may lack an expiry.
-- Rust side: src/store/overrides.rs.
--
-- The table is a hash. A field names a limit, "<limit>", or one key of it, "<limit> <key>"; its value is
-- "<permits> <window> <scope> <end>": the window in microseconds, 0 for the limit's own; the scope "shared",
-- "instance", or "-" for the limit's own; and the end in microseconds of this server's clock, 0 for none. What
-- has ended counts as absent, and is removed with the next change. The field "#version" is the time of the last
-- change, which no other change has.
--
-- KEYS  the table.
-- ARGV  set <field> <value without the end> <lasting microseconds, 0 for good> <1: only if absent> <channel>
--       unset <field> <channel>
--       list
--
-- Returns for set and unset 1 if that changed anything, else 0, and tells the channel of a change; for list
-- the time, the version, and for each field its name and value.
local call, match, tonumber = redis.call, string.match, tonumber
local table_key, operation, field = KEYS[1], ARGV[1], ARGV[2]
local clock = call('TIME')
local time = clock[1] * 1000000 + clock[2]

local function is_alive(value)
  local ends_at = value and tonumber(match(value, '%d+$'))
  return ends_at and (ends_at == 0 or ends_at > time)
end

local function changed(channel)
  local entries = call('HGETALL', table_key)
  for i = 1, #entries, 2 do
    if entries[i] ~= '#version' and not is_alive(entries[i + 1]) then call('HDEL', table_key, entries[i]) end
  end
  local version = math.max(time, (tonumber(call('HGET', table_key, '#version')) or 0) + 1)
  call('HSET', table_key, '#version', string.format('%d', version))
  call('PUBLISH', channel, 'overrides')
  return 1
end

if operation == 'set' then
  local lasts_us = tonumber(ARGV[4])
  if ARGV[5] == '1' and is_alive(call('HGET', table_key, field)) then return 0 end
  local ends_at = lasts_us > 0 and time + lasts_us or 0
  call('HSET', table_key, field, string.format('%s %d', ARGV[3], ends_at))
  return changed(ARGV[6])
elseif operation == 'unset' then
  local was_alive = is_alive(call('HGET', table_key, field))
  if call('HDEL', table_key, field) == 0 or not was_alive then return 0 end
  return changed(ARGV[3])
end

local reply = { time, tonumber(call('HGET', table_key, '#version')) or 0 }
local entries = call('HGETALL', table_key)
for i = 1, #entries, 2 do
  if entries[i] ~= '#version' and is_alive(entries[i + 1]) then
    reply[#reply + 1] = entries[i]
    reply[#reply + 1] = entries[i + 1]
  end
end
return reply
