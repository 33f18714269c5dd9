"""The scripts that count what projects use, in Redis (ADR 0040).

A project has four keys. All of them expire a month after its last request; they are then made
again from the database. So a full Redis evicts cached answers first, which expire sooner
(`volatile-ttl`), and a project that is idle for some hours keeps what was measured.

- numbers (a hash): `requests` and `tokens`, the two rates (below); `day:…`, `month:…`, `stored`,
  `conversations`, sums of the database; `reserved`, the sum of the reserved tokens of all open
  responses; `corrected`, when they were last compared with the database.
- open (a hash): the responses that have not ended. Id -> reserved tokens, the time when these no
  longer count in the rate, the time of the create.
- waiting (a set): those of them that no worker has claimed.
- connections (a hash): kind and web process -> how many it has open, and until when that is valid.

A rate is the generic cell rate algorithm, which keeps one number: the time at which everything that
was used until now no longer counts. Times are milliseconds of Redis' clock.
"""

KEPT_SECONDS = 30 * 24 * 3600
"""Much longer than the answer cache keeps anything (`cache.longest_ttl`)."""

_BEGIN = f"""
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local numbers, open, waiting = KEYS[1], KEYS[2], KEYS[3]
local function number(name)
  return tonumber(redis.call('HGET', numbers, name) or '0') or 0
end
local function keep()
  for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, {KEPT_SECONDS}) end
end
"""

ADMIT = (
    _BEGIN
    + """
local connections = KEYS[4]
local q = cjson.decode(ARGV[1])
local limits, demand = q.limits, q.demand
if q.counted then
  local age = now - number('corrected')
  if age > q.stale and not q.forced then return {'uncorrected'} end
  if age > q.correct_after and now > number('correcting') then
    redis.call('HSET', numbers, 'correcting', now + q.correct_after)
    q.due = 1
  end
end
local stored = number('stored')
if limits.stored_bytes > 0 and now - number('measured') > q.measure_after and now > number('measuring') then
  redis.call('HSET', numbers, 'measuring', now + q.measure_after, 'stored_before', stored)
  q.measure = 1
end
local requests = math.max(now, number('requests'))
local tokens = math.max(now, number('tokens'))
local function answer(refused, wait)
  return {refused, math.ceil(wait), math.ceil(requests - now), math.ceil(tokens - now), q.due or 0, q.measure or 0, stored}
end
local function opened(kind)
  local sum = 0
  local fields = redis.call('HGETALL', connections)
  for i = 1, #fields, 2 do
    local count, expires = fields[i + 1]:match('^(%d+):(%d+)$')
    if tonumber(expires) < now then
      redis.call('HDEL', connections, fields[i])
    elseif fields[i]:sub(1, #kind + 1) == kind .. ':' and fields[i] ~= kind .. ':' .. q.web then
      sum = sum + tonumber(count)
    end
  end
  return sum + demand.own[kind]
end
local function exceeds(name, used, more)
  local limit = limits[name]
  return limit > 0 and more > 0 and used + more > limit
end
local reserved = number('reserved')
if demand.tokens > 0 then
  for _, name in ipairs({'day', 'month'}) do
    local limit = limits['tokens_per_' .. name]
    if limit > 0 and number(name .. ':' .. q[name]) + reserved >= limit then
      return answer('tokens_per_' .. name, 0)
    end
  end
end
if exceeds('stored_bytes', stored, demand.bytes) then return answer('stored_bytes', 0) end
if exceeds('conversations', number('conversations'), demand.conversations) then return answer('conversations', 0) end
local responses = demand.response and 1 or 0
local ended, left = 0, 0
for _, id in ipairs(q.ended) do
  ended = ended + redis.call('HEXISTS', open, id)
  left = left + redis.call('SISMEMBER', waiting, id)
end
if exceeds('running', redis.call('HLEN', open) - ended, responses) then return answer('running', 0) end
if exceeds('queued', redis.call('SCARD', waiting) - left, responses) then return answer('queued', 0) end
for _, kind in ipairs({'open_streams', 'open_sockets'}) do
  if demand[kind] > 0 and limits[kind] > 0 and opened(kind) + demand[kind] > limits[kind] then return answer(kind, 0) end
end
local request_cost = limits.requests_per_minute > 0 and demand.requests * q.window / limits.requests_per_minute or 0
if request_cost > 0 and requests + request_cost - now > q.window then
  return answer('requests_per_minute', requests + request_cost - now - q.window)
end
local token_cost = limits.tokens_per_minute > 0 and demand.tokens * q.window / limits.tokens_per_minute or 0
if token_cost > 0 and tokens + token_cost - now > q.window then
  return answer('tokens_per_minute', tokens + token_cost - now - q.window)
end
requests = requests + request_cost
tokens = tokens + token_cost
redis.call('HSET', numbers, 'requests', requests, 'tokens', tokens)
if demand.response then
  redis.call('HSET', open, demand.response, string.format('%.0f:%.0f:%.0f', demand.tokens, tokens, now))
  redis.call('SADD', waiting, demand.response)
  redis.call('HINCRBY', numbers, 'reserved', demand.tokens)
end
if demand.bytes > 0 then redis.call('HINCRBY', numbers, 'stored', demand.bytes) end
if demand.conversations > 0 then redis.call('HINCRBY', numbers, 'conversations', demand.conversations) end
for _, kind in ipairs({'open_streams', 'open_sockets'}) do
  if demand[kind] > 0 then
    local field = kind .. ':' .. q.web
    redis.call('HSET', connections, field, string.format('%.0f:%.0f', demand.own[kind] + demand[kind], now + q.connection_time))
  end
end
keep()
return answer('', 0)
"""
)
"""Decides whether a request is admitted, and counts it if it is. Returns the name of the quota that
refuses it, or nothing; for how many milliseconds; how long until each rate is unused; whether this
process is to correct the numbers now, and to measure what is stored; and the bytes that are. `uncorrected`: nothing was decided, the numbers must be
compared with the database first."""

SETTLE = (
    _BEGIN
    + """
local id, used, rate = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local entry = redis.call('HGET', open, id)
redis.call('HDEL', open, id)
redis.call('SREM', waiting, id)
if entry then
  local estimate, drained = entry:match('^(%d+):(%d+):')
  estimate, drained = tonumber(estimate), tonumber(drained)
  redis.call('HINCRBY', numbers, 'reserved', -estimate)
  if used >= 0 and rate > 0 then
    local per_token = 60000 / rate
    local tokens = math.max(now, number('tokens'))
    if used < estimate then
      tokens = tokens - math.min((estimate - used) * per_token, math.max(0, drained - now))
    else
      tokens = math.max(tokens, math.min(tokens + (used - estimate) * per_token, now + 60000))
    end
    redis.call('HSET', numbers, 'tokens', tokens)
  end
end
if used > 0 then
  redis.call('HINCRBY', numbers, 'day:' .. ARGV[4], used)
  redis.call('HINCRBY', numbers, 'month:' .. ARGV[5], used)
end
return redis.status_reply('OK')
"""
)
"""A response has ended, or its create has failed. `ARGV`: its id; its tokens, or -1 if they are not
known; the rate of tokens, 0 if there is none; the day and the month. What was reserved too much is
given back, as far as it still counts; more than was reserved delays the project by a minute at
most."""

REPORT_CONNECTIONS = f"""
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if tonumber(ARGV[2]) > 0 then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%s:%.0f', ARGV[2], now + tonumber(ARGV[3])))
  redis.call('EXPIRE', KEYS[1], {KEPT_SECONDS})
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return redis.status_reply('OK')
"""
"""How many connections of a kind a web process has open, and for how long that is valid."""

MEASURED = f"""
local clock = redis.call('TIME')
local values = redis.call('HMGET', KEYS[1], 'stored', 'stored_before')
local added = math.max(0, (tonumber(values[1]) or 0) - (tonumber(values[2]) or 0))
redis.call('HSET', KEYS[1], 'stored', ARGV[1] + added, 'measured', clock[1] * 1000)
redis.call('EXPIRE', KEYS[1], {KEPT_SECONDS})
return redis.status_reply('OK')
"""
"""What a project stores was measured. What was added meanwhile is added: it may count twice until it
is measured again."""
