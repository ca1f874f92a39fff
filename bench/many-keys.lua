-- For wrk: 10,000 keys, each once in 10,000 requests, in an order without neighbours.
local requests = {}
local sent = 0

function init()
  for i = 0, 9999 do
    requests[i] = wrk.format("GET", nil, { ["X-Key"] = "k" .. i })
  end
end

function request()
  sent = sent + 1
  return requests[sent * 7919 % 10000]
end
