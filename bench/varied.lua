-- For wrk: varies this header field over 10,000 values, each once per 10,000 requests, without neighbours in
-- sequence.
local requests = {}
local sent = 0

function init(args)
  for i = 0, 9999 do
    wrk.headers[args[1]] = "k" .. i
    requests[i] = wrk.format("GET")
  end
end

function request()
  sent = sent + 1
  return requests[sent * 7919 % 10000]
end
