-- Takes up to ARGV[1] tokens from the bucket KEYS[1] (a hash: tokens, at).
-- ARGV: wanted, burst, rate per second. Time is Redis's own, so that every process sees one clock.
-- Returns {granted, milliseconds until the next token}.
local wanted = tonumber(ARGV[1])
local burst = tonumber(ARGV[2])
local rate = tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = burst
if bucket[1] then
    tokens = math.min(burst, tonumber(bucket[1]) + math.max(0, now - tonumber(bucket[2])) * rate)
end
local granted = math.min(wanted, math.floor(tokens))
tokens = tokens - granted
redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', tokens), 'at', string.format('%.6f', now))
-- A bucket that nobody used for as long as it takes to fill is full: it need not be kept.
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
local wait = 0
if granted < wanted then
    wait = math.ceil((1 - (tokens - math.floor(tokens))) / rate * 1000)
end
return {granted, wait}
