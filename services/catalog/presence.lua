-- Notes what one process has in force, and forgets processes that have said nothing for long. Redis' own clock counts,
-- so that machines whose clocks differ see each other right.
-- KEYS[1]: hash, process -> "<seconds since 1970> <JSON>"
-- ARGV[1]: process; ARGV[2]: JSON; ARGV[3]: seconds of silence after which a process is gone
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2])
local entries = redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  if now - tonumber(string.match(entries[i + 1], '^%d+')) > tonumber(ARGV[3]) then
    redis.call('HDEL', KEYS[1], entries[i])
  end
end
redis.call('EXPIRE', KEYS[1], 86400)
return redis.status_reply('OK')
