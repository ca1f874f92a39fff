-- Returns which of these commands the gateway's user may not run. Each argument is a command with arguments, separated
-- by spaces. It runs none of them, and writes nothing. Before Redis 7, which can't tell, it returns an empty list.
local missing = {}
if redis.acl_check_cmd then
  for _, command in ipairs(ARGV) do
    local words = {}
    for word in string.gmatch(command, '%S+') do words[#words + 1] = word end
    local known, allowed = pcall(redis.acl_check_cmd, (table.unpack or unpack)(words))
    if not (known and allowed) then missing[#missing + 1] = words[1] end
  end
end
return missing
