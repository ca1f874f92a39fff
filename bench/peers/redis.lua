-- A Redis client for nginx's Lua module: one command over a pooled connection, as in typical OpenResty gateways.
local M = {}

local function encode(...)
  local arguments = { ... }
  local parts = { "*" .. #arguments .. "\r\n" }
  for i = 1, #arguments do
    local argument = tostring(arguments[i])
    parts[i + 1] = "$" .. #argument .. "\r\n" .. argument .. "\r\n"
  end
  return table.concat(parts)
end

-- Returns an integer or a string; nil and a message for an error.
local function read_reply(socket)
  local line, failure = socket:receive()
  if not line then
    return nil, failure
  end
  local kind, rest = line:sub(1, 1), line:sub(2)
  if kind == ":" then
    return tonumber(rest)
  elseif kind == "$" then
    local data = socket:receive(tonumber(rest))
    socket:receive(2)
    return data
  end
  return nil, rest
end

-- Sends the command and returns its reply, as read_reply does.
function M.call(port, ...)
  local socket = ngx.socket.tcp()
  socket:settimeout(1000)
  local connected, refused = socket:connect("127.0.0.1", port)
  if not connected then
    return nil, refused
  end
  local sent, broken = socket:send(encode(...))
  if not sent then
    return nil, broken
  end
  local reply, failure = read_reply(socket)
  if reply then
    socket:setkeepalive(60000, 256)
  end
  return reply, failure
end

return M
