-- Executes a list of operations on buckets as one atomic step: decides requests, charges those admitted, and more.
--
-- Rust side: crates/limiter/src/store/script.rs, which puts lua/lone.lua and the algorithms' files before this one.
--
-- KEYS     the buckets, each once for each of its quotas; then the further keys of buckets that have several (lua/redisson.lua).
-- ARGV[1]  a list in MessagePack, which is read ten times as fast as the same number of arguments.
--       For each run of buckets with the same quota: the algorithm (sw, sc, fw, ca, gc, cc, rs or rl), its permits
--       (0 to 2^31-1), its window in microseconds (a whole number of milliseconds), the algorithm's
--       parameter, and the number of buckets in the run (runs of one algorithm are consecutive). Then the
--       operations, each one of
--         <count> <charges> (<bucket> <cost>)…   equal requests: their number, the number of charges of
--              each, and for each charge its bucket (an index into KEYS, negative if the limit is in
--              shadow mode) and its cost (0 to 2^31-1; with 0, one permit must fit and none is recorded);
--              a request has one charge per bucket: several costs have been added up. If it names a bucket with
--              several quotas, or charges it and shadows there, one charge records. The others come behind it and
--              look: their cost is negative, and must fit, too. The count is 1 then
--         -<count> <bucket> <cost>               the same with one charge, on an index that no other
--              operation uses
--         close <bucket> 0                       writes the bucket, since the next operation names it with another
--              quota, and thus another index. It isn't counted as an operation
--         record <bucket> <cost>                 charges permits, whether they fit or not
--         report <bucket> <cost>                 the same, and says whether they fitted
--         renew <bucket> <lease>, release <bucket> <lease>   a lease of a concurrency bucket
--         refund <bucket> <what>                 gives permits back: see lua/refundable.lua
--         peek <bucket> <cost>                   reads the bucket and writes nothing
--         reset <bucket> 0                       deletes the bucket
--
-- Returns integers in MessagePack, as a list or one after the other, since Redis and its client take longer for an array
-- of their protocol: this server's time in microseconds; then for equal requests the number admitted, and for
-- each charge: how often it was made, the room left, the microseconds until there is more room, and the
-- microseconds until its cost fits (0: now, -1: never); for peek the permits in use, the microseconds until
-- there is more room, and those until the cost fits; for report the same after it, but instead of the cost's delay 0
-- if it fitted, or else the microseconds until one permit does; for refund the number of permits that came back; for
-- other operations nothing. A failed operation has none of these. Behind them, for each bucket of rs: the permits and
-- the milliseconds of the rate that it is held to, and the milliseconds by which its newest grant is ahead of this
-- clock if that is more than an interval, else 0. The position of each failed operation (from 0) and the error's text
-- follow at the end.
--
-- Operations are executed in order, and a rejection doesn't stop the walk: the replies are those of as many single
-- calls. A request is admitted iff every enforcing limit has room. Then each of these is charged, and so is each
-- shadowing limit that has room itself. A rejected request isn't recorded.
--
-- An operation fails if one of its buckets can't be read, because somebody else has written the key. It changes
-- nothing then, and the others are executed. A problem that prevents the script from writing (no memory, a replica)
-- affects the whole call, and fails it before anything is written.

-- The quota of each bucket, by its index in KEYS.
local quotas, known, derived, at = {}, 0, 0, 1
local algorithm, made_for
while known + derived < #KEYS do
  local tag = words[at]
  if tag ~= made_for then
    local make = tag == 'sw' and sliding_window or tag == 'sc' and sliding_cells or tag == 'fw' and fixed_window
      or tag == 'gc' and gcra or tag == 'rl' and refundable or tag == 'rs' and redisson
      or tag == 'ca' and calendar_window or concurrency
    algorithm, made_for = make(), tag
  end
  local quota = algorithm.quota(words[at + 1], words[at + 2], words[at + 3], time)
  quota.algorithm = algorithm
  local last = known + words[at + 4]
  local of_bucket = algorithm.of_bucket
  for i = known + 1, last do quotas[i] = of_bucket and of_bucket(KEYS[i], quota) or quota end
  if of_bucket then derived = derived + algorithm.derived_keys * words[at + 4] end
  known, at = last, at + 5
end

-- With room for the reply to one operation, which is often the only one.
local reply = { time, nil, nil, nil, nil, nil }

-- The decision: returns how many of `count` requests of this cost fit into what is left.
local function fitting(count, cost, left)
  if left < 1 then return 0 end
  return count * cost <= left and count or math.floor(left / cost)
end

-- Returns the microseconds until a cost fits: 0 now, -1 never. Limits for which it isn't 0 have refused.
local function delay(key, quota, time, cost, charged, used, ...)
  if cost > quota.capacity then return -1 end
  if used + cost <= quota.capacity then return 0 end
  return quota.algorithm.delay(key, quota, time, cost, charged, used, ...)
end

-- Returns the functions for buckets that several operations may use. It gets everything it uses as arguments, since
-- its functions are created only on demand.
local function shared_buckets(keys, quotas, words, time, reply, fitting, delay)
  -- The most permits in use, including debts: any limit, and nearly as much again.
  local MOST_USED = 4000000000
  -- The buckets as `open` returned them: [1] is used, [2] is grow_us.
  local buckets, charged, asked = {}, {}, {}
  local is_writing = false

  local function bucket_of(index)
    if not buckets[index] then
      local bucket = { quotas[index].algorithm.open(keys[index], quotas[index], time) }
      if not bucket[1] then error(bucket[2], 0) end
      buckets[index] = bucket
      charged[index] = charged[index] or 0
    end
    return buckets[index]
  end

  local function left_in(index)
    return quotas[index].capacity - bucket_of(index)[1]
  end

  local function close(index)
    local bucket, quota = bucket_of(index), quotas[index]
    is_writing = true
    quota.algorithm.close(keys[index], quota, time, charged[index], unpack(bucket))
    is_writing = false
  end

  -- Returns true if `close` has begun to write a bucket, and failed.
  local function has_failed_to_write()
    return is_writing
  end

  local function charge(index, cost)
    local bucket, quota = bucket_of(index), quotas[index]
    bucket[1], bucket[2] =
      quota.algorithm.charge(keys[index], quota, time, cost, charged[index], unpack(bucket))
    charged[index] = charged[index] + cost
  end

  local function delay_of(index, cost)
    return delay(keys[index], quotas[index], time, cost, charged[index], unpack(bucket_of(index)))
  end

  local function decide(count, first, last)
    local granted, delays = count, nil
    for i = first, last, 2 do
      -- All buckets are opened before any is charged, since this may fail.
      local index, cost, left = words[i], words[i + 1], left_in(math.abs(words[i]))
      if cost < 0 then
        cost, delays = -cost, delays or {}
        delays[i] = delay_of(math.abs(index), cost)
        buckets[math.abs(index)] = nil
      end
      if index > 0 then granted = fitting(granted, cost, left) end
    end
    local filled = #reply + 1
    reply[filled] = granted
    for i = first, last, 2 do
      local index, cost, made = math.abs(words[i]), words[i + 1], granted
      local looked_us = delays and delays[i]
      if looked_us then
        -- The charge beside it is written, so that this quota sees it.
        local is_enforced = false
        for j = first, last, 2 do
          local other = math.abs(words[j])
          if keys[other] == keys[index] then
            is_enforced = is_enforced or words[j] > 0
            if asked[other] then
              close(other)
              buckets[other], charged[other], asked[other] = nil, nil, nil
            end
          end
        end
        if words[i] < 0 and (is_enforced or looked_us ~= 0) then made = 0 end
      else
        if words[i] < 0 then made = fitting(made, cost, left_in(index)) end
        if made * cost > 0 then charge(index, made * cost) end
        asked[index] = true
      end
      reply[filled + 1] = made
      reply[filled + 2] = math.max(0, left_in(index))
      reply[filled + 3] = buckets[index][2]
      reply[filled + 4] = made < count and (looked_us or delay_of(index, math.max(cost, 1))) or 0
      if looked_us then buckets[index] = nil end
      filled = filled + 4
    end
  end

  -- Executes an operation other than deciding requests.
  local function act(word, index, argument)
    local key, quota = keys[index], quotas[index]
    if word == 'record' or word == 'report' then
      local left = left_in(index)
      local cost = math.min(argument, MOST_USED - buckets[index][1])
      if cost > 0 then charge(index, cost) end
      asked[index] = true
      if word == 'report' then
        local filled = #reply
        reply[filled + 1] = buckets[index][1]
        reply[filled + 2] = buckets[index][2]
        reply[filled + 3] = argument <= left and 0 or delay_of(index, 1)
      end
    elseif word == 'peek' then
      local bucket, filled = bucket_of(index), #reply
      reply[filled + 1] = bucket[1]
      reply[filled + 2] = bucket[2]
      reply[filled + 3] = delay_of(index, argument)
    elseif word == 'close' then
      if asked[index] then close(index) end
      buckets[index], charged[index], asked[index] = nil, nil, nil
    else
      -- Earlier charges are written first.
      if charged[index] and charged[index] > 0 then close(index) end
      buckets[index], charged[index] = nil, 0
      if word == 'reset' and not quota.algorithm.reset then
        redis.call('UNLINK', key)
      else
        -- Renews or releases a lease, deletes a bucket of several keys, or gives permits back.
        reply[#reply + 1] = quota.algorithm[word](key, quota, argument, time)
      end
    end
  end

  local function close_all()
    for index = 1, #quotas do
      if asked[index] then close(index) end
    end
  end

  return decide, act, close_all, has_failed_to_write
end

-- The errors of operations that failed, by their position.
local failed
local decide, act, close_all, has_failed_to_write
local place, end_of_words = 0, #words
while at <= end_of_words do
  local word, index = words[at], words[at + 1]
  local is_act = type(word) == 'string'
  if not is_act and word < 0 then
    -- The same as `decide`, for an index that no other operation of this call uses: it needs no table.
    local key, quota, count, cost, charged = KEYS[index], quotas[index], -word, words[at + 2], 0
    local algorithm, capacity = quota.algorithm, quota.capacity
    local used, grow_us, a, b, c, d, e = algorithm.open(key, quota, time)
    if used then
      local granted, delay_us = fitting(count, cost, capacity - used), 0
      if granted > 0 and cost > 0 then
        charged = granted * cost
        used, grow_us = algorithm.charge(key, quota, time, charged, 0, used, grow_us, a, b, c, d, e)
      end
      if granted < count then
        delay_us = delay(key, quota, time, cost > 0 and cost or 1, charged, used, grow_us, a, b, c, d, e)
      end
      algorithm.close(key, quota, time, charged, used, grow_us, a, b, c, d, e)
      local filled = #reply
      reply[filled + 1] = granted
      reply[filled + 2] = granted
      reply[filled + 3] = used < capacity and capacity - used or 0
      reply[filled + 4] = grow_us
      reply[filled + 5] = delay_us
    else
      failed = failed or {}
      failed[place] = grow_us
    end
    at = at + 3
  else
    if not decide then
      decide, act, close_all, has_failed_to_write =
        shared_buckets(KEYS, quotas, words, time, reply, fitting, delay)
    end
    local is_done, fault
    if is_act then
      is_done, fault = pcall(act, word, index, words[at + 2])
      at = at + 3
      if word == 'close' then place = place - 1 end
    else
      is_done, fault = pcall(decide, word, at + 2, at + 2 * index)
      at = at + 2 + 2 * index
    end
    if not is_done then
      -- A second attempt would write the bucket's charges twice, and none would lose them.
      if has_failed_to_write() then error(fault, 0) end
      failed = failed or {}
      failed[place] = fault
    end
  end
  place = place + 1
end
if close_all then close_all() end
if derived > 0 then
  for index = 1, #quotas do
    local held_to = quotas[index].algorithm.held_to
    if held_to then held_to(quotas[index], reply) end
  end
end
if failed then
  for place, fault in pairs(failed) do
    reply[#reply + 1] = place
    -- Redis 7 raises tables.
    reply[#reply + 1] = type(fault) == 'table' and fault.err or fault
  end
end
return cmsgpack.pack(reply)
