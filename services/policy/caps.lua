-- What one user got, and what is on its way to them: judged and changed in one step.
--
-- KEYS[1]  sorted set of the user. Score: Redis time in ms at which the place was taken. Member:
--          `loaded`                            the set is complete; without it, it must be rebuilt (score 0)
--          `<id> <channel> <cap date> <p|c>`   one message; p: pending, c: confirmed. <id> is `intent:hop`.
-- ARGV[1]  the command; the rest belongs to it:
--   reserve <id> <channel> <cap date> <user cap|-1> <channel cap|-1>
--       -> {0}                                 not loaded: load first, then reserve again
--       -> {1, user, channel}                  reserved; counts are those of the others on that date
--       -> {2, user, channel}                  it had this very place already; a pending one holds for 2 min more
--       -> {3, user, channel}                  refused; a pending place that it had is given back
--   confirm <id> <channel> <cap date>          -> 1
--   release <id>                               -> 1 when it had a place, 0 otherwise
--   load {<id> <channel> <cap date> <ms>} ...  adds confirmed messages that are not there, marks as loaded -> 1

local PENDING_MS = 120000
local KEEP_SECONDS = 180000 -- 50 h: a local date lasts that long around the world

local key = KEYS[1]
local command = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function keep()
  redis.call('EXPIRE', key, KEEP_SECONDS)
end

-- Reads the living messages; what is too old, or pending for too long, is removed on the way.
local function read()
  local loaded = false
  local messages = {}
  local dead = {}
  local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local member, at = rows[i], tonumber(rows[i + 1])
    if member == 'loaded' then
      loaded = true
    else
      local id, channel, date, state = string.match(member, '^(%S+) (%S+) (%S+) ([pc])$')
      if at <= now - KEEP_SECONDS * 1000 or (state == 'p' and at <= now - PENDING_MS) then
        dead[#dead + 1] = member
      else
        messages[#messages + 1] = {member = member, id = id, channel = channel, date = date, state = state, at = at}
      end
    end
  end
  if #dead > 0 then
    redis.call('ZREM', key, unpack(dead))
  end
  return loaded, messages
end

local function find(messages, id)
  for _, message in ipairs(messages) do
    if message.id == id then
      return message
    end
  end
  return nil
end

local function put(id, channel, date, state, at)
  redis.call('ZADD', key, at, id .. ' ' .. channel .. ' ' .. date .. ' ' .. state)
end

local loaded, messages = read()

if command == 'reserve' then
  local id, channel, date = ARGV[2], ARGV[3], ARGV[4]
  local user_cap, channel_cap = tonumber(ARGV[5]), tonumber(ARGV[6])
  if not loaded then
    return {0}
  end
  local user_count, channel_count = 0, 0
  for _, message in ipairs(messages) do
    if message.id ~= id and message.date == date then
      user_count = user_count + 1
      if message.channel == channel then
        channel_count = channel_count + 1
      end
    end
  end
  local own = find(messages, id)
  if own and own.channel == channel and own.date == date then
    if own.state == 'p' then
      redis.call('ZADD', key, now, own.member)
    end
    keep()
    return {2, user_count, channel_count}
  end
  if own and own.state == 'p' then
    redis.call('ZREM', key, own.member)
  end
  if (user_cap >= 0 and user_count >= user_cap) or (channel_cap >= 0 and channel_count >= channel_cap) then
    return {3, user_count, channel_count}
  end
  put(id, channel, date, 'p', now)
  keep()
  return {1, user_count, channel_count}
end

if command == 'confirm' then
  local id, channel, date = ARGV[2], ARGV[3], ARGV[4]
  local own = find(messages, id)
  local at = now
  if own then
    redis.call('ZREM', key, own.member)
    at = own.at
  end
  put(id, channel, date, 'c', at)
  keep()
  return 1
end

if command == 'release' then
  local own = find(messages, ARGV[2])
  if own then
    redis.call('ZREM', key, own.member)
    return 1
  end
  return 0
end

if command == 'load' then
  for i = 2, #ARGV, 4 do
    if not find(messages, ARGV[i]) then
      put(ARGV[i], ARGV[i + 1], ARGV[i + 2], 'c', ARGV[i + 3])
    end
  end
  redis.call('ZADD', key, 0, 'loaded')
  keep()
  return 1
end

return redis.error_reply('unknown command ' .. command)
