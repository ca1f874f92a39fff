-- Decides a batch of requests and charges those that are admitted, as one atomic step.
-- Rust side: src/store/script.rs, which puts the algorithms' files before this one.
--
-- KEYS  the buckets, each once.
-- ARGV  for each run of buckets with the same quota: the algorithm's tag, its permits (1 to 2^31-1),
--       its window in microseconds (a whole number of milliseconds), and how many buckets the run has;
--       then for each group of equal requests: how many they are, how many charges each of them has,
--       and for each charge its bucket (an index into KEYS, negative if the limit only shadows) and
--       its cost (1 to 2^31-1). A group names a bucket once.
--
-- Returns integers: this server's time in microseconds; then for each group how many of its requests
-- are admitted, and for each of its charges: how often it was made, the room left, the microseconds
-- until there is more room, and the microseconds until its cost fits (0: now, -1: never).
--
-- The requests are walked in order, and a refusal doesn't stop the walk: the answers are those of as
-- many single calls. A request is admitted iff every limit that enforces has room; then each of these
-- is charged, and so is each shadowing limit that has room itself. A refused request is not recorded.
local abs = math.abs
local algorithms = { sw = sliding_window }

-- Once: a second TIME in one script may differ.
local clock = call('TIME')
local time = clock[1] * 1000000 + clock[2]

local buckets, opened, at = {}, 0, 1
while opened < #KEYS do
  local quota = {
    algorithm = algorithms[ARGV[at]], permits = tonumber(ARGV[at + 1]), window_us = tonumber(ARGV[at + 2]),
  }
  local last = opened + ARGV[at + 3]
  for i = opened + 1, last do buckets[i] = quota.algorithm.open(KEYS[i], quota, time) end
  opened, at = last, at + 4
end

local reply, filled = { time }, 1
while at <= #ARGV do
  local count, charges = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local first, last = at + 2, at + 2 * charges
  local granted, rooms = count, {}
  for i = first, last, 2 do
    local index = tonumber(ARGV[i])
    local bucket = buckets[abs(index)]
    rooms[i] = max(0, floor((bucket.quota.permits - bucket.used) / ARGV[i + 1]))
    if index > 0 then granted = min(granted, rooms[i]) end
  end
  filled = filled + 1
  reply[filled] = granted
  for i = first, last, 2 do
    local bucket, cost = buckets[abs(ARGV[i])], tonumber(ARGV[i + 1])
    local algorithm, made = bucket.quota.algorithm, min(granted, rooms[i])
    if made > 0 then algorithm.charge(bucket, made * cost) end
    reply[filled + 1] = made
    reply[filled + 2] = max(0, bucket.quota.permits - bucket.used)
    reply[filled + 3] = algorithm.grow(bucket, time)
    reply[filled + 4] = made < count and algorithm.delay(bucket, cost, time) or 0
    filled = filled + 4
  end
  at = last + 2
end

for i = 1, #buckets do
  local bucket = buckets[i]
  bucket.quota.algorithm.close(bucket, time)
end
return reply
