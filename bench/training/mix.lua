-- For wrk: 5,000 requests of many kinds, the same in each run. An argument is put before each path.
local seed = 1
local function random(most)
  seed = seed * 16807 % 2147483647
  return seed % most
end

-- Few keys are common, most are rare.
local function key(most)
  return math.floor(most * (random(10000) / 10000) ^ 3)
end

-- Weight, method, path, further fields, body.
local kinds = {
  { 30, "GET", function() return "/v1/orders/" .. random(100000) .. "?page=" .. random(9) end },
  { 10, "POST", function() return "/v1/orders" end, {}, 300 },
  { 1, "POST", function() return "/v1/orders" end, {}, 40000 },
  { 20, "GET", function() return "/v1/users/" .. key(2000) .. "/items/" .. random(50) end, { ["X-Internal"] = "1" } },
  { 2, "DELETE", function() return "/v1/users/u%20" .. key(2000) .. "/items/" .. random(50) end },
  { 8, "GET", function() return "/v1/search?q=tea%20" .. key(500) .. "&sort=price" end },
  { 6, "GET", function() return "/secure/" .. random(1000) .. "/a/b" end },
  { 2, "GET", function() return "/files/" .. random(100) .. ".txt" end },
  { 2, "GET", function() return "/stream/" .. random(100) end },
  { 4, "POST", function() return "/login" end, {}, 60 },
  { 8, "GET", function() return "/a/" .. random(1000) end, { Host = "shop.example.com" } },
  { 2, "GET", function() return "/old/page/" .. random(100) end },
  { 3, "GET", function() return "/status" end },
  { 2, "GET", function() return "/nothing/here" end },
}
local agents = {
  "curl/8.5.0",
  "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
  "okhttp/4.12.0",
}

local function choose()
  local at = random(100)
  for _, kind in ipairs(kinds) do
    at = at - kind[1]
    if at < 0 then return kind end
  end
end

local function make(prefix)
  local kind = choose()
  local headers = {
    ["User-Agent"] = agents[random(3) + 1],
    ["Accept"] = "application/json, text/plain;q=0.9, */*;q=0.1",
    ["X-API-Key"] = "key-" .. key(3000),
    ["X-Tenant"] = "tenant-" .. key(20),
    ["X-Request-Id"] = random(2) == 0 and string.format("%08x", random(2147483647)) or nil,
    ["Accept-Encoding"] = random(2) == 0 and "gzip, br" or nil,
    ["Cookie"] = random(3) == 0 and "theme=dark; session=" .. key(1000) or nil,
  }
  for name, value in pairs(kind[4] or {}) do headers[name] = value end
  return wrk.format(kind[2], prefix .. kind[3](), headers, kind[5] and string.rep("x", kind[5]))
end

local requests = {}
local sent = 0

function init(arguments)
  for number = 1, 5000 do requests[number] = make(arguments[1] or "") end
end

function request()
  sent = sent + 1
  return requests[sent % 5000 + 1]
end
