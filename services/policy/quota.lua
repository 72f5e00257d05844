-- The quota of one channel, or of one tenant, on the running UTC day. A message has at most one place in it.
--
-- KEYS[1]  hash of the channel or tenant: `day` (days since 1970, by Redis TIME) and `count`, which hold together;
--          `asking`: since when (Redis time in ms) somebody counts what left on the running day; and a field for each
--          message that has a place: its name `intent:hop`. What left before the count was loaded has none.
-- ARGV[1]  the command; the rest belongs to it:
--   take <quota> <message> ...
--       -> {count before, 0|1|2, ...}  of each message: 0 it found no place, 1 it has one now, 2 it had one already.
--                                      One that is beyond a quota which was lowered loses its place
--       -> {-1, day}                   nobody knows the count of this day: count what left since it began, then load it
--       -> {-2, day}                   the same, and somebody is about to
--   give <message> ...    at least one; gives back the places of those that have one -> how many had
--   load <day> <count>    -> 1 when the count is known by now, 0 where it is not: the day is over, or Redis was emptied
--                         since it was asked for
--   leave                 has another one count: whoever asked could not -> 1

local DAY_SECONDS = 86400
local ASKING_MS = 10000 -- whoever asked for so long has died

local key = KEYS[1]
local command = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local day = math.floor(time[1] / DAY_SECONDS)
local stored = redis.call('HMGET', key, 'day', 'count', 'asking')
local count = tonumber(stored[1]) == day and tonumber(stored[2]) or nil
local asking = stored[3] and tonumber(stored[3]) > now - ASKING_MS

local function keep()
  redis.call('EXPIRE', key, DAY_SECONDS)
end

if command == 'take' then
  if not count then
    if asking then
      return {-2, day}
    end
    -- With it go the messages of the day before.
    redis.call('UNLINK', key)
    redis.call('HSET', key, 'asking', now)
    keep()
    return {-1, day}
  end
  local answer = {count}
  if #ARGV < 3 then
    return answer
  end
  local quota = tonumber(ARGV[2])
  local had = redis.call('HMGET', key, unpack(ARGV, 3))
  local new, gone, known = {}, {}, {}
  for i, place in ipairs(had) do
    local message = ARGV[i + 2]
    if known[message] then -- it stands twice in its batch
      answer[i + 1] = known[message]
    elseif place and count <= quota then
      answer[i + 1] = 2
    elseif place then
      gone[#gone + 1] = message
      count = count - 1
      answer[i + 1] = 0
    elseif count < quota then
      new[#new + 1] = message
      new[#new + 1] = ''
      count = count + 1
      answer[i + 1] = 1
    else
      answer[i + 1] = 0
    end
    known[message] = answer[i + 1] == 1 and 2 or answer[i + 1]
  end
  if #gone > 0 then
    redis.call('HDEL', key, unpack(gone))
  end
  if #new > 0 then
    redis.call('HSET', key, unpack(new))
  end
  if #gone + #new > 0 then
    redis.call('HSET', key, 'count', count)
    keep()
  end
  return answer
end

if command == 'give' then
  local given = count and redis.call('HDEL', key, unpack(ARGV, 2)) or 0
  if given > 0 then
    redis.call('HINCRBY', key, 'count', -given)
  end
  return given
end

if command == 'load' then
  if count then
    return 1
  end
  if not asking or tonumber(ARGV[2]) ~= day then
    redis.call('HDEL', key, 'asking') -- whoever comes next asks about the day that it is
    return 0
  end
  redis.call('HSET', key, 'day', day, 'count', ARGV[3])
  redis.call('HDEL', key, 'asking')
  keep()
  return 1
end

if command == 'leave' then
  redis.call('HDEL', key, 'asking')
  return 1
end

return redis.error_reply('unknown command ' .. command)
