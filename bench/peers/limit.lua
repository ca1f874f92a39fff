-- The OpenResty gateway's limit: one EVALSHA of zset.lua per request, counted by the header X-Key.
local redis = require "redis"
local M = {}

local script, sha
local requests = 0

-- Called once, before nginx forks its worker.
function M.load(path)
  local file = assert(io.open(path))
  script = file:read("*a")
  file:close()
end

-- Answers 429 unless the window has room, 503 if Redis fails.
function M.take(port, window_ms, permits)
  sha = sha or redis.call(port, "SCRIPT", "LOAD", script)
  requests = requests + 1
  local delay_ms, failure = redis.call(port, "EVALSHA", sha, 1, "rl:" .. ngx.var.http_x_key, window_ms, permits, requests)
  if not delay_ms then
    ngx.log(ngx.ERR, failure)
    return ngx.exit(503)
  end
  if delay_ms >= 0 then
    ngx.header["Retry-After"] = math.ceil(delay_ms / 1000)
    return ngx.exit(429)
  end
end

return M
