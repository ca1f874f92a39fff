-- Reads and changes the rate and the time to live of a limiter in the layout of Redisson: lua/redisson.lua tells what
-- its keys hold.
-- Rust side: crates/limiter/src/store/redis/redisson.rs.
--
-- KEYS  the hash; the value and the permits of this process; the value and the permits overall.
-- ARGV  get                                             nothing is written
--       set <rate> <interval> <type> <keep alive> <1: what was counted for the type stays>
--       set-if-absent <rate> <interval> <type> <keep alive>
--       update <rate> <interval> <type> <keep alive> <1: what was counted stays>
--       release <permits>
--       delete                                          all five keys
--       expire <time>                                   all five keys; 0: they stay
--       keep-alive <time>                               from each call on; 0: they stay
--       ttl                                             nothing is written
-- Times are milliseconds. `-` for the time to keep it alive is what the hash has, 0 if it has a rate without one, or, if
-- there isn't a rate or the time is less than an interval, two intervals and at least a minute. `-0` or `-1` for the
-- type is what the hash has, or this one.
--
-- Returns for get the rate and the interval, or nothing if there is no whole configuration; for ttl what PTTL returns;
-- for others 1 if something was changed, else 0.
local unpack = table.unpack or unpack
-- Numbers are exact up to this one.
local GREATEST = 9007199254740991
local operation = ARGV[1]
local held = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local is_set = held[1] and held[2] and held[3]

local function keys_of(type)
  if type == '1' then return KEYS[2], KEYS[3] end
  return KEYS[4], KEYS[5]
end

if operation == 'get' then
  if not is_set or not (string.find(held[1], '^%d+$') and string.find(held[2], '^%d+$')) then return {} end
  return { math.min(tonumber(held[1]), GREATEST), math.min(tonumber(held[2]), GREATEST) }
end

if operation == 'release' then
  if not is_set then return 0 end
  local value_key = keys_of(held[3])
  local left = tonumber(redis.call('GET', value_key) or held[1])
  local more = math.min(tonumber(held[1]), left + tonumber(ARGV[2])) - left
  if more <= 0 then return 0 end
  redis.call('INCRBY', value_key, string.format('%d', more))
  return 1
end

if operation == 'delete' then return math.min(1, redis.call('UNLINK', unpack(KEYS))) end

if operation == 'ttl' then return redis.call('PTTL', KEYS[1]) end

-- Lets all keys expire after a time, or stay. Returns 1 if there is a hash.
local function expire(time)
  local is_there = redis.call('EXISTS', KEYS[1])
  for _, key in ipairs(KEYS) do
    if time == '0' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, time) end
  end
  return is_there
end

if operation == 'expire' then return expire(ARGV[2]) end

if operation == 'keep-alive' then
  if not is_set then return 0 end
  if ARGV[2] ~= '0' and tonumber(ARGV[2]) < tonumber(held[2]) then
    return redis.error_reply('ERR the time to keep a limiter alive is shorter than the window of its rate')
  end
  redis.call('HSET', KEYS[1], 'keepAliveTime', ARGV[2])
  return expire(ARGV[2])
end

local rate, interval, type, keep_alive = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if string.sub(type, 1, 1) == '-' then type = held[3] or string.sub(type .. '0', 2, 2) end
if keep_alive == '-' then
  -- Redisson before 3.37 writes none.
  keep_alive = held[4] or is_set and '0'
  local is_whole = keep_alive and (keep_alive == '0' or string.find(keep_alive, '^%-?[1-9]%d*$'))
  local ms = is_whole and tonumber(keep_alive)
  -- With a shorter one, what counts would be forgotten.
  if not ms or ms > GREATEST or (ms > 0 and ms < tonumber(interval)) then
    keep_alive = string.format('%d', math.max(2 * tonumber(interval), 60000))
  end
end
local fields = { 'rate', rate, 'interval', interval, 'type', type, 'keepAliveTime', keep_alive }

local function keep(...)
  local ttl = tonumber(keep_alive)
  if ttl <= 0 then ttl = redis.call('PTTL', KEYS[1]) end
  if ttl <= 0 then return end
  for _, key in ipairs({ ... }) do redis.call('PEXPIRE', key, string.format('%d', ttl)) end
end

if operation == 'set-if-absent' then
  for i = 1, #fields, 2 do redis.call('HSETNX', KEYS[1], fields[i], fields[i + 1]) end
  if held[3] then return 0 end
  if tonumber(keep_alive) > 0 then redis.call('PEXPIRE', KEYS[1], keep_alive) end
  return 1
end

local value_key, permits_key = keys_of(type)
if operation == 'set' and ARGV[6] ~= '1' then
  redis.call('HSET', KEYS[1], unpack(fields))
  if tonumber(keep_alive) > 0 then redis.call('PEXPIRE', KEYS[1], keep_alive) end
  redis.call('UNLINK', value_key, permits_key)
  return 1
end

if operation == 'update' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if held[3] and held[3] ~= type then
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
elseif ARGV[6] ~= '1' then
  redis.call('UNLINK', value_key, permits_key)
else
  local clock = redis.call('TIME')
  local dead_at = clock[1] * 1000 + math.floor(clock[2] / 1000) - tonumber(interval)
  local dead = redis.call('ZCOUNT', permits_key, '-inf', string.format('%d', dead_at))
  local MANY, rank, used = 500, dead, 0
  repeat
    local last = string.format('%d', rank + MANY - 1)
    local found = redis.call('ZRANGE', permits_key, string.format('%d', rank), last)
    for i = 1, #found do
      if #found[i] ~= 21 or string.byte(found[i]) ~= 16 then
        return redis.error_reply('ERR the permits have members of another layout than Redisson 3.21 and later writes')
      end
      used = used + struct.unpack('<I4', found[i], 18)
    end
    rank = rank + MANY
  until #found < MANY
  if dead > 0 then redis.call('ZREMRANGEBYRANK', permits_key, '0', string.format('%d', dead - 1)) end
  redis.call('SET', value_key, string.format('%d', math.max(0, tonumber(rate) - used)))
end
redis.call('HSET', KEYS[1], unpack(fields))
keep(KEYS[1], value_key, permits_key)
return 1
