-- The quota of one channel, or of one tenant, on the running UTC day.
--
-- KEYS[1]  hash of the channel or tenant: `day` (days since 1970, by Redis TIME) and `count`.
-- ARGV[1]  how many places to take; negative gives some back.
-- ARGV[2]  the quota; -1 sets no limit.
-- Returns {places taken, count before}: the first so many of the asked ones have a place.

local DAY_SECONDS = 86400

local key = KEYS[1]
local wanted, quota = tonumber(ARGV[1]), tonumber(ARGV[2])
local day = tostring(math.floor(redis.call('TIME')[1] / DAY_SECONDS))
local stored = redis.call('HMGET', key, 'day', 'count')
local count = stored[1] == day and tonumber(stored[2]) or 0
local taken = wanted
if wanted > 0 and quota >= 0 then
  taken = math.min(wanted, math.max(0, quota - count))
elseif wanted < 0 then
  taken = math.max(wanted, -count)
end
if taken == 0 then
  return {0, count}
end
redis.call('HSET', key, 'day', day, 'count', count + taken)
redis.call('EXPIRE', key, 2 * DAY_SECONDS)
return {taken, count}
