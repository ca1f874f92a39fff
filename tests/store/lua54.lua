-- Runs a script in Lua 5.4, as servers that have no Lua 5.1 would: lua5.4 lua54.lua <script> <argument> <key>…
-- The argument and the keys are in hexadecimal. Standard input and output are a connection to Redis, where the commands of
-- the script are executed. The reply goes to standard error, a line for each value.

-- Debian's Lua 5.4 still has what 5.3 left for compatibility.
math.frexp, math.pow, math.ldexp = nil, nil, nil

local function from_hex(text)
  return (string.gsub(text, '..', function(digits) return string.char(tonumber(digits, 16)) end))
end

local function receive()
  local line = io.read('L')
  local kind, rest = string.sub(line, 1, 1), string.sub(line, 2, -3)
  if kind == '+' then return { ok = rest } end
  if kind == '-' then return { err = rest } end
  local number = math.tointeger(tonumber(rest))
  if kind == ':' then return number end
  if number < 0 then return false end
  if kind == '$' then return string.sub(io.read(number + 2), 1, -3) end
  local list = {}
  for i = 1, number do list[i] = receive() end
  return list
end

local function pcall_redis(...)
  local words = { ... }
  io.write('*', #words, '\r\n')
  for _, word in ipairs(words) do
    assert(type(word) == 'string', 'numbers are passed as text')
    io.write('$', #word, '\r\n', word, '\r\n')
  end
  io.flush()
  return receive()
end

local function call_redis(...)
  local reply = pcall_redis(...)
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end

-- Reads a list in MessagePack with what crates/limiter/src/store/script/list.rs writes.
local function unpack_list(bytes)
  local list, count, at = {}, string.unpack('>I4', bytes, 2)
  for i = 1, count do
    local code = string.byte(bytes, at)
    local pattern = code == 0xd2 and '>xi4' or code == 0xd3 and '>xi8' or code == 0xd9 and '>xs1' or 'b'
    list[i], at = string.unpack(pattern, bytes, at)
  end
  return list
end

-- The values of a reply, which `cmsgpack.pack` would write: a list, or one after the other.
local function values_of(first, ...)
  return type(first) == 'table' and first or { first, ... }
end

redis = { call = call_redis, pcall = pcall_redis }
struct = { pack = string.pack, unpack = string.unpack }
cmsgpack = { pack = values_of, unpack = unpack_list }
ARGV, KEYS = { from_hex(arg[2]) }, {}
for i = 3, #arg do KEYS[i - 2] = from_hex(arg[i]) end

for _, value in ipairs(dofile(arg[1])) do
  io.stderr:write(math.tointeger(value) or value, '\n')
end
