-- Decides requests and charges those that are admitted, and does what else there is to do to buckets:
-- a list of operations as one atomic step.
-- Rust side: src/store/script.rs, which puts the algorithms' files before this one.
--
-- KEYS  the buckets, each once.
-- ARGV  for each run of buckets with the same quota: the algorithm (sw, sc, fw, gc or cc), its permits
--       (0 to 2^31-1), its window in microseconds (a whole number of milliseconds), the algorithm's
--       parameter, and how many buckets the run has; then the operations, each one of
--         <count> <charges> (<bucket> <cost>)…   equal requests: how many they are, how many charges each
--              has, and for each charge its bucket (an index into KEYS, negative if the limit only
--              shadows) and its cost (0 to 2^31-1; with 0, one permit must fit and none is recorded);
--              a request names a bucket once
--         record <bucket> <cost>                 permits, whether they fit or not
--         renew <bucket> <lease>, release <bucket> <lease>   a lease of a concurrency bucket
--         peek <bucket> <cost>                   a look that writes nothing
--         reset <bucket> 0                       all of the bucket forgotten
--
-- Returns integers: this server's time in microseconds; then for equal requests how many are admitted,
-- and for each charge: how often it was made, the room left, the microseconds until there is more
-- room, and the microseconds until its cost fits (0: now, -1: never); for peek the permits in use, the
-- microseconds until there is more room, and those until the cost fits; for others nothing.
--
-- Operations are walked in order, and a refusal doesn't stop the walk: the answers are those of as many
-- single calls. A request is admitted iff every limit that enforces has room; then each of these is
-- charged, and so is each shadowing limit that has room itself. A refused request is not recorded.
local algorithms = { sw = sliding_window, sc = sliding_cells, fw = fixed_window, gc = gcra, cc = concurrency }

-- Once: a second TIME in one script may differ.
local clock = call('TIME')
local time = clock[1] * 1000000 + clock[2]

local buckets, opened, at = {}, 0, 1
while opened < #KEYS do
  local algorithm = algorithms[ARGV[at]]
  local quota = algorithm.quota(tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3])
  quota.algorithm = algorithm
  local last = opened + ARGV[at + 4]
  for i = opened + 1, last do buckets[i] = algorithm.open(KEYS[i], quota, time) end
  opened, at = last, at + 5
end

local reply, filled = { time }, 1

-- How many requests of this cost there is room for.
local function room(bucket, cost)
  local left = bucket.quota.capacity - bucket.used
  if left < 1 then return 0 end
  return cost == 0 and math.huge or floor(left / cost)
end

local function delay(bucket, cost)
  if cost > bucket.quota.capacity then return -1 end
  if bucket.used + cost <= bucket.quota.capacity then return 0 end
  return bucket.quota.algorithm.delay(bucket, cost, time)
end

local function take(count, charges)
  local first, last = at + 2, at + 2 * charges
  local granted, rooms = count, {}
  for i = first, last, 2 do
    local index = tonumber(ARGV[i])
    rooms[i] = room(buckets[abs(index)], tonumber(ARGV[i + 1]))
    if index > 0 then granted = min(granted, rooms[i]) end
  end
  filled = filled + 1
  reply[filled] = granted
  for i = first, last, 2 do
    local bucket, cost, made = buckets[abs(ARGV[i])], tonumber(ARGV[i + 1]), min(granted, rooms[i])
    local algorithm = bucket.quota.algorithm
    if made * cost > 0 then algorithm.charge(bucket, made * cost, time) end
    bucket.asked = true
    reply[filled + 1] = made
    reply[filled + 2] = max(0, bucket.quota.capacity - bucket.used)
    reply[filled + 3] = algorithm.grow(bucket, time)
    reply[filled + 4] = made < count and delay(bucket, max(cost, 1)) or 0
    filled = filled + 4
  end
  at = last + 2
end

local operations = {}

function operations.record(bucket, cost)
  bucket.quota.algorithm.charge(bucket, tonumber(cost), time)
  bucket.asked = true
end

function operations.renew(bucket, lease)
  concurrency.renew(bucket, lease, time)
  bucket.asked = true
end

function operations.release(bucket, lease)
  concurrency.release(bucket, lease)
end

function operations.peek(bucket, cost)
  reply[filled + 1] = bucket.used
  reply[filled + 2] = bucket.quota.algorithm.grow(bucket, time)
  reply[filled + 3] = delay(bucket, tonumber(cost))
  filled = filled + 3
end

function operations.reset(bucket, _, index)
  call('UNLINK', bucket.key)
  buckets[index] = bucket.quota.algorithm.open(bucket.key, bucket.quota, time)
  -- The turns of a call's leases go on.
  buckets[index].turn = bucket.turn
end

while at <= #ARGV do
  local count = tonumber(ARGV[at])
  if count then
    take(count, tonumber(ARGV[at + 1]))
  else
    local index = tonumber(ARGV[at + 1])
    operations[ARGV[at]](buckets[index], ARGV[at + 2], index)
    at = at + 3
  end
end

for i = 1, #buckets do
  local bucket = buckets[i]
  if bucket.asked then bucket.quota.algorithm.close(bucket, time) end
end
return reply
