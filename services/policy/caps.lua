-- What one user got, what is on its way to them, and the zone they were judged in: judged and changed in one step.
--
-- KEYS[1]  sorted set of the user. Member and score:
--          `loading`                  somebody asks what it must hold; gone when the set was emptied meanwhile
--          `loaded`                   the set is complete, as far back as the score says (seconds); without it, or when
--                                     more is asked for, it must be rebuilt
--          `zone <name>`              the zone that was chosen; score: the judge's time in ms
--          `cleared`                  the set was cleared; score: Redis time in ms. What was sent before stays away
--          `<id> <channel> <cap date> <category> <p|c|u|r>`
--                                     one message; p: pending, c: confirmed, u: loaded while it was being handed over,
--                                     so that it counts for others and is no place of its own, r: given back while the
--                                     set was not loaded, so that loading does not bring it back; score: Redis time in ms at
--                                     which its place was taken. <id> is `intent:hop`.
-- ARGV[1]  the command; the rest belongs to it:
--   reserve <id> <channel> <cap date> <category> <reach> <zone> <now> <user cap|-1> <channel cap|-1>
--           {<window ms> <cap>} ...
--       -> {0}                          not loaded as far back as <reach> seconds: load first, then reserve again
--       -> {1, user, channel, windows…} reserved; counts are those of the others, on that date and in each window
--       -> {2, user, channel, windows…} it had this very place already; a pending one holds for 2 min more
--       -> {3, user, channel, windows…} refused; a pending place that it had elsewhere is given back
--       -> {4, zone}                    another zone was chosen within the last 2 h; nothing is reserved
--   zone <zone> <now>                   -> {4, zone} or {5}: as above, and nothing is reserved in any case
--       <zone> is kept from <now> (the judge's time in ms) on when none is kept; `-` keeps none, empty asks for none.
--   kept <moment>                       -> the zone that is kept at a moment (the judge's time in ms); empty where none is
--   confirm <id> <channel> <cap date>   -> 1, or 0 when it has no such place (any more): it must be judged again
--   release <id>                        -> 1 when it had a place, 0 otherwise
--   load <reach> {<id> <channel> <cap date> <category> <c|u> <ms>} ...
--                                       adds messages that are not there, marks as loaded -> 1; 0 when the set was
--                                       emptied since it was found not loaded: what is loaded may be out of date
--   loaded <reach>                      -> 1 when it is loaded that far back, 0 otherwise
--   show                                -> {id, channel, cap date, category, p|c|u, ms} of each message that counts
--   clear                               forgets the messages -> how many counted

local PENDING_MS = 120000
local ZONE_MS = 7200000
local LEAST_REACH = 180000 -- seconds, 50 h: a local date lasts that long around the world

local key = KEYS[1]
local command = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local reach, loading, cleared_at, zone, zone_at = 0, false, 0, nil, 0
local messages = {}

-- Reads the set; what is older than it reaches, and what was pending for too long, is removed on the way.
local function read()
  local dead = {}
  local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local member, at = rows[i], tonumber(rows[i + 1])
    if member == 'loaded' then
      reach = at
    elseif member == 'loading' then
      loading = true
    elseif member == 'cleared' then
      cleared_at = at
    elseif string.sub(member, 1, 5) == 'zone ' then
      zone, zone_at = string.sub(member, 6), at
    else
      local id, channel, date, category, state = string.match(member, '^(%S+) (%S+) (%S+) (%S+) ([pcur])$')
      if id and (state ~= 'p' or at > now - PENDING_MS) then
        messages[#messages + 1] = {
          member = member, id = id, channel = channel, date = date, category = category, state = state, at = at,
          counts = state ~= 'r'
        }
      else
        dead[#dead + 1] = member
      end
    end
  end
  local oldest = now - math.max(reach, LEAST_REACH) * 1000
  for i = #messages, 1, -1 do
    if messages[i].at <= oldest then
      dead[#dead + 1] = messages[i].member
      table.remove(messages, i)
    end
  end
  for i = 1, #dead, 1000 do
    redis.call('ZREM', key, unpack(dead, i, math.min(i + 999, #dead)))
  end
end

local function keep()
  redis.call('EXPIRE', key, math.max(reach, LEAST_REACH))
end

-- Says whether the set reaches back far enough; if not, it is about to be loaded.
local function loaded(wanted)
  if reach >= wanted then
    return true
  end
  redis.call('ZADD', key, now, 'loading')
  keep()
  return false
end

-- Returns the members of one message: mostly none or one.
local function find(id)
  local found = {}
  for _, message in ipairs(messages) do
    if message.id == id then
      found[#found + 1] = message
    end
  end
  return found
end

local function remove(found)
  for _, message in ipairs(found) do
    redis.call('ZREM', key, message.member)
  end
end

local function put(id, channel, date, category, state, at)
  redis.call('ZADD', key, at, id .. ' ' .. channel .. ' ' .. date .. ' ' .. category .. ' ' .. state)
end

local function kept_zone(moment)
  return zone and math.abs(moment - zone_at) < ZONE_MS and zone or nil
end

-- Returns the zone that goes before the wanted one, or nil; keeps the wanted one where none is kept.
local function other_zone(wanted, judged_at)
  if wanted == '' then
    return nil
  end
  if kept_zone(judged_at) then
    return zone ~= wanted and zone or nil
  end
  if zone then
    redis.call('ZREM', key, 'zone ' .. zone)
  end
  if wanted ~= '-' then
    redis.call('ZADD', key, judged_at, 'zone ' .. wanted)
    keep()
  end
  return nil
end

read()

if command == 'reserve' then
  local id, channel, date, category = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
  local user_cap, channel_cap = tonumber(ARGV[9]), tonumber(ARGV[10])
  local other = other_zone(ARGV[7], tonumber(ARGV[8]))
  if other then
    return {4, other}
  end
  if not loaded(tonumber(ARGV[6])) then
    return {0}
  end
  local answer = {0, 0, 0}
  for _ = 11, #ARGV, 2 do
    answer[#answer + 1] = 0
  end
  local place = nil
  local elsewhere = {}
  for _, message in ipairs(messages) do
    if message.id == id then
      if message.counts and message.state ~= 'u' and message.channel == channel and message.date == date then
        place = message
      elseif message.state ~= 'c' then
        elsewhere[#elsewhere + 1] = message
      end
    elseif message.counts then
      if message.date == date then
        answer[2] = answer[2] + 1
        if message.channel == channel then
          answer[3] = answer[3] + 1
        end
      end
      if message.category == category then
        for i = 11, #ARGV, 2 do
          if message.at > now - tonumber(ARGV[i]) then
            answer[(i - 3) / 2] = answer[(i - 3) / 2] + 1
          end
        end
      end
    end
  end
  keep()
  remove(elsewhere)
  if place then
    if place.state == 'p' then
      redis.call('ZADD', key, now, place.member)
    end
    answer[1] = 2
    return answer
  end
  local full = (user_cap >= 0 and answer[2] >= user_cap) or (channel_cap >= 0 and answer[3] >= channel_cap)
  for i = 11, #ARGV, 2 do
    full = full or answer[(i - 3) / 2] >= tonumber(ARGV[i + 1])
  end
  if full then
    answer[1] = 3
    return answer
  end
  put(id, channel, date, category, 'p', now)
  answer[1] = 1
  return answer
end

if command == 'zone' then
  local other = other_zone(ARGV[2], tonumber(ARGV[3]))
  return other and {4, other} or {5}
end

if command == 'kept' then
  return kept_zone(tonumber(ARGV[2])) or ''
end

if command == 'confirm' then
  local own = find(ARGV[2])
  for _, message in ipairs(own) do
    if (message.state == 'p' or message.state == 'c') and message.channel == ARGV[3] and message.date == ARGV[4] then
      remove(own)
      put(message.id, message.channel, message.date, message.category, 'c', message.at)
      keep()
      return 1
    end
  end
  -- It does not leave now: what was loaded on suspicion counts for nobody any more.
  for _, message in ipairs(own) do
    if message.state == 'u' then
      redis.call('ZREM', key, message.member)
    end
  end
  return 0
end

if command == 'release' then
  local own = find(ARGV[2])
  local counted = 0
  for _, message in ipairs(own) do
    counted = message.counts and 1 or counted
  end
  remove(own)
  if reach == 0 then
    put(ARGV[2], '-', '-', '-', 'r', now)
    keep()
  end
  return counted
end

if command == 'load' then
  if not loading and reach < tonumber(ARGV[2]) then
    return 0
  end
  for i = 3, #ARGV, 6 do
    local id, channel, date, category, state = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    local at = tonumber(ARGV[i + 5])
    local own = find(id)
    local known = at <= cleared_at
    for _, message in ipairs(own) do
      known = known or message.state == 'r' or message.state == 'c' or (state == 'u' and message.state ~= 'u')
    end
    if not known then
      remove(own)
      put(id, channel, date, category, state, at)
    end
  end
  redis.call('ZREM', key, 'loading')
  for _, message in ipairs(messages) do
    if message.state == 'r' then
      redis.call('ZREM', key, message.member)
    end
  end
  reach = math.max(reach, tonumber(ARGV[2]))
  redis.call('ZADD', key, reach, 'loaded')
  keep()
  return 1
end

if command == 'loaded' then
  return loaded(tonumber(ARGV[2])) and 1 or 0
end

if command == 'show' then
  local shown = {}
  for _, message in ipairs(messages) do
    if message.counts then
      for _, value in ipairs({message.id, message.channel, message.date, message.category, message.state}) do
        shown[#shown + 1] = value
      end
      shown[#shown + 1] = string.format('%d', message.at)
    end
  end
  return shown
end

if command == 'clear' then
  local cleared = 0
  for _, message in ipairs(messages) do
    cleared = cleared + (message.counts and 1 or 0)
  end
  remove(messages)
  redis.call('ZADD', key, now, 'cleared')
  keep()
  return cleared
end

return redis.error_reply('unknown command ' .. command)
