-- Changes the rates that override those of the configuration. All gateways share them in one key, which may have no
-- expiry.
--
-- Rust side: crates/limiter/src/store/redis/overrides.rs.
--
-- The table is a hash. A field names a limit, "<limit>", or one key of it, "<limit> <key>". Its value is "<permits>
-- <window> <scope> <end>": the window in microseconds, 0 for the limit's own; the scope "shared", "instance", or "-"
-- for the limit's own; and the end in microseconds of this server's clock, 0 for none. An override that has ended
-- counts as absent, and each change removes some of these. A value in another form counts as absent too, but is kept,
-- since a newer version may have written it. The field "#version" is the time of the last change, and unique.
--
-- KEYS  the table.
-- ARGV  set <field> <value without the end> <duration in microseconds, 0 for no end> <1: only if absent, 2: only if present> <channel>
--           <the most fields>
--       unset <field> <channel>
--
-- Returns the change, which is also published; 0 if nothing was changed, and -1 if there are too many fields. The
-- change is "overrides <version before> <version> <time> set <value> <field>", or "... unset <field>". A gateway that
-- knows the version before needn't read the table.
--
-- No change reads all fields, since a table of 10,000 takes 13 ms.
local call, match, tonumber = redis.call, string.match, tonumber
local table_key, operation, field = KEYS[1], ARGV[1], ARGV[2]
local MOST_EXACT = 9007199254740992

local clock = call('TIME')
local time = clock[1] * 1000000 + clock[2]

-- Returns the end of an override; nil if the value has another form.
local function end_of(value)
  return value and tonumber(match(value, '^%d+ %d+ [%l-]+ (%d+)$'))
end

local function is_alive(value)
  local ends_at = end_of(value)
  return ends_at and (ends_at == 0 or ends_at > time)
end

-- Removes overrides that have ended among `most` random fields. A small table is examined as a whole.
local function sweep(most)
  local entries = call('HRANDFIELD', table_key, most, 'WITHVALUES')
  for i = 1, #entries, 2 do
    local value = entries[i + 1]
    if end_of(value) and not is_alive(value) then call('HDEL', table_key, entries[i]) end
  end
end

-- Gives a change a version, and publishes it.
local function changed(channel, what)
  local last = tonumber(match(call('HGET', table_key, '#version') or '', '^%d+$')) or 0
  if last >= MOST_EXACT then last = 0 end
  local version = math.max(time, last + 1)
  call('HSET', table_key, '#version', string.format('%d', version))
  local change = string.format('overrides %d %d %d %s', last, version, time, what)
  -- If this user may not publish, gateways notice the version instead.
  redis.pcall('PUBLISH', channel, change)
  return change
end

local SWEEP, SWEEP_FULL = '20', '500'

if operation == 'set' then
  local lasts_us, most = tonumber(ARGV[4]), tonumber(ARGV[7])
  local held = call('HGET', table_key, field)
  if ARGV[5] == '1' and is_alive(held) or ARGV[5] == '2' and not is_alive(held) then return 0 end
  sweep(SWEEP)
  if not held then
    -- The version is a field, too.
    if call('HLEN', table_key) > most then sweep(SWEEP_FULL) end
    if call('HLEN', table_key) > most then return -1 end
  end
  local ends_at = lasts_us > 0 and time + lasts_us or 0
  local value = string.format('%s %d', ARGV[3], ends_at)
  call('HSET', table_key, field, value)
  return changed(ARGV[6], 'set ' .. value .. ' ' .. field)
end

local was_alive = is_alive(call('HGET', table_key, field))
if call('HDEL', table_key, field) == 0 or not was_alive then return 0 end
sweep(SWEEP)
return changed(ARGV[3], 'unset ' .. field)
