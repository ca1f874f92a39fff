-- Counts the gateways that share the limits. Each gateway runs this every few seconds, as its sign of life.
--
-- Rust side: crates/limiter/src/store/redis/instances.rs.
--
-- The key is a sorted set. It has a member for each gateway; its score is the time of the gateway's last sign of life, in
-- microseconds of this server's clock. The set expires with its newest member.
--
-- KEYS  the set.
-- ARGV  <gateway> <lifetime in microseconds>
--
-- Returns the number of gateways that have given a sign of life within the lifetime, with this one.
local call, format = redis.call, string.format
local key, gateway, lifetime = KEYS[1], ARGV[1], tonumber(ARGV[2])

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local time = format('%d', now)

-- After the clock was set back, gateways that have ended would count until it has caught up.
for _, ahead in ipairs(call('ZRANGE', key, '(' .. time, '+inf', 'BYSCORE')) do call('ZADD', key, time, ahead) end
call('ZADD', key, time, gateway)
local ended = call('ZCOUNT', key, '-inf', format('%d', now - lifetime))
if ended > 0 then call('ZREMRANGEBYRANK', key, '0', format('%d', ended - 1)) end
call('PEXPIRE', key, format('%d', lifetime / 1000))
return call('ZCARD', key)
