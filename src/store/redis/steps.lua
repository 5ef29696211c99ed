-- What the store does in one step, and so in one slot of a cluster. KEYS[1] is what the names of one bucket begin with.
-- ARGV: the step, the bucket's mark, the time (empty: the engine's), and what the step takes.
local base, step, mark = KEYS[1], ARGV[1], ARGV[2]
local now = tonumber(ARGV[3]) or tonumber(redis.call('TIME')[1])
local call, steps = redis.call, {}

-- Payloads are in two sets by lifetime, with the negative time of their last use, so that the last used come first.
local lifetimes = {'usual', 'chained'}

local function use_of(key)
  for _, lifetime in ipairs(lifetimes) do
    local score = call('ZSCORE', base .. lifetime, key)
    if score then return -tonumber(score), lifetime end
  end
end

local function use(key, lifetime)
  call('ZADD', base .. lifetime, -now, key)
  if lifetime == 'chained' then call('ZREM', base .. 'usual', key) end
end

local function count(what, n)
  if n ~= 0 then call('HINCRBY', base .. 'counts', what, n) end
end

local function count_owner(owner, n)
  if owner and call('HINCRBY', base .. 'owners', owner, n) <= 0 then call('HDEL', base .. 'owners', owner) end
end

-- A payload's body has its time of creation, its length and its owner before it. These, the length of the body, and the owner;
-- none if it is of another type.
local function head_of(key)
  local name = base .. 'p:' .. key
  local start = redis.pcall('GETRANGE', name, 0, 40)
  local head = type(start) == 'string' and string.match(start, '^%d+ %d+ ?%d*\n')
  if head then return head, call('STRLEN', name) - #head, string.match(head, '^%d+ %d+ (%d+)') end
end

local function is_before(one, other)
  for n = 1, #one do
    local a, b = string.byte(one, n), string.byte(other, n)
    if a ~= b then return a < b end
  end
  return false
end

-- How old a use is written; then lifetime, key, length, owner and body of each.
function steps.put()
  local grain, written, bytes, stored = tonumber(ARGV[4]), 0, 0, 0
  for n = 5, #ARGV, 5 do
    local lifetime, key, length, owner, body = ARGV[n], ARGV[n + 1], ARGV[n + 2], ARGV[n + 3], ARGV[n + 4]
    local used, before = use_of(key)
    if call('EXISTS', base .. 'p:' .. key) == 0 then
      call('SET', base .. 'p:' .. key, now .. ' ' .. length .. ' ' .. owner .. '\n' .. body)
      count_owner(owner, #body)
      call('ZREM', base .. 'swept', key)
      use(key, lifetime)
      written, bytes, stored = written + 1, bytes + length, stored + #body
    elseif not used or used < now - grain or (lifetime == 'chained' and before == 'usual') then
      use(key, before == 'chained' and before or lifetime)
    end
  end
  count('bytes', bytes)
  count('stored', stored)
  return {written, bytes}
end

-- The keys that need not be written: how old a use is written; then lifetime and key of each.
function steps.fresh()
  local found = {}
  for n = 5, #ARGV, 2 do
    local key, used, lifetime = ARGV[n + 1], use_of(ARGV[n + 1])
    local is_kept = used and used >= now - tonumber(ARGV[4]) and (lifetime == 'chained' or ARGV[n] == 'usual')
    if is_kept and call('EXISTS', base .. 'p:' .. key) == 1 then found[#found + 1] = key end
  end
  return found
end

-- A body with its head, and whether its use is to be written: how old a use is written, the key.
function steps.get()
  local used = use_of(ARGV[5])
  return {call('GET', base .. 'p:' .. ARGV[5]), (not used or used < now - tonumber(ARGV[4])) and 1 or 0}
end

-- Removes a payload that has this body, and was not swept: key, body.
function steps.remove()
  local head, _, owner = head_of(ARGV[4])
  head = head or ''
  local stored = call('GET', base .. 'p:' .. ARGV[4]) or ''
  if string.sub(stored, -#ARGV[5]) ~= ARGV[5] or #stored > #head + #ARGV[5] + 41 then return end
  call('DEL', base .. 'p:' .. ARGV[4])
  for _, lifetime in ipairs(lifetimes) do call('ZREM', base .. lifetime, ARGV[4]) end
  count('bytes', -(tonumber(string.match(head, ' (%d+)')) or 0))
  count('stored', -#ARGV[5])
  count_owner(owner, -#ARGV[5])
end

function steps.was_swept()
  return call('ZSCORE', base .. 'swept', ARGV[4]) and call('EXISTS', base .. 'p:' .. ARGV[4]) == 0 and 1 or 0
end

-- How old a use is written, keys.
function steps.touch()
  for n = 5, #ARGV do
    local used, lifetime = use_of(ARGV[n])
    if used and used < now - tonumber(ARGV[4]) then use(ARGV[n], lifetime) end
  end
end

-- How many; the place that they are behind, as the negative time of the use and the key; the first and the last key.
function steps.list()
  local most, least, after, first, last = tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7], ARGV[8]
  local found = {}
  for _, lifetime in ipairs(lifetimes) do
    local offset, n, part = 0, 0, nil
    repeat
      part = call('ZRANGEBYSCORE', base .. lifetime, least, '+inf', 'WITHSCORES', 'LIMIT', offset, 500)
      for i = 1, #part, 2 do
        local key, score = part[i], part[i + 1]
        local is_behind = score ~= least or is_before(after, key)
        if n < most and is_behind and not is_before(key, first) and not is_before(last, key) then
          local head, length = head_of(key)
          if head and tonumber(score) <= 0 then
            n = n + 1
            found[#found + 1] = {key, -tonumber(score), head, length}
          end
        end
      end
      offset = offset + 500
    until #part == 0 or n >= most
  end
  return found
end

-- Removes payloads: for each lifetime the age from which they go, how many at most, until they have so many bytes, and perhaps
-- of which owner alone.
function steps.sweep()
  local n, stored, bytes, most, enough, only = 0, 0, 0, tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
  for i, lifetime in ipairs(lifetimes) do
    local from = '(' .. (tonumber(ARGV[3 + i]) - now)
    local stale = call('ZREVRANGEBYSCORE', base .. lifetime, '+inf', from, 'LIMIT', 0, only and -1 or most - n)
    for _, key in ipairs(stale) do
      if n >= most or stored >= enough then break end
      local head, length, owner = head_of(key)
      if not only or owner == only then
        if head then
          stored, bytes = stored + length, bytes + string.match(head, ' (%d+)')
          call('DEL', base .. 'p:' .. key)
          count_owner(owner, -length)
        end
        call('ZREM', base .. lifetime, key)
        call('ZADD', base .. 'swept', now, key)
        n = n + 1
      end
    end
  end
  count('bytes', -bytes)
  count('stored', -stored)
  return {n, stored}
end

-- Each owner, and its bytes.
function steps.owners() return call('HGETALL', base .. 'owners') end

-- Forgets swept payloads: from which age, and how many stay.
function steps.trim_swept()
  call('ZREMRANGEBYSCORE', base .. 'swept', '-inf', '(' .. (now - tonumber(ARGV[4])))
  call('ZREMRANGEBYRANK', base .. 'swept', 0, -tonumber(ARGV[5]) - 1)
end

function steps.totals()
  local n = call('HMGET', base .. 'counts', 'bytes', 'stored', 'summaries', 'summary_bytes', 'inspected_bytes')
  local payloads = call('ZCARD', base .. 'usual') + call('ZCARD', base .. 'chained')
  local totals = {payloads, call('ZCARD', base .. 'inspected'), call('ZCARD', base .. 'swept')}
  for i = 1, 5 do totals[3 + i] = math.max(tonumber(n[i] or 0) or 0, 0) end
  return totals
end

-- A summary's state is a hash, by its beginning; a conversation's beginnings are a set, with the times of their last use.
local function use_summary(root, beginning)
  call('ZADD', base .. 'r:' .. root, now, beginning)
  call('ZADD', base .. 'summaries', now, root .. beginning)
end

-- Unless there is one: root, beginning, body. The one that was there.
function steps.offer()
  local name = base .. 's:' .. ARGV[5]
  local theirs = call('HGET', name, 'body')
  if theirs then return theirs end
  call('HSET', name, 'body', ARGV[6])
  call('HDEL', name, 'holder', 'until')
  use_summary(ARGV[4], ARGV[5])
  count('summaries', 1)
  count('summary_bytes', #ARGV[6])
  return false
end

-- The body, and whether its use is to be written: how old a use is written, root, beginning.
function steps.summary()
  local used = tonumber(call('ZSCORE', base .. 'r:' .. ARGV[5], ARGV[6]) or 0)
  return {call('HGET', base .. 's:' .. ARGV[6], 'body'), used < now - tonumber(ARGV[4]) and 1 or 0}
end

local function remove_summary(root, beginning, length)
  call('DEL', base .. 's:' .. beginning)
  call('ZREM', base .. 'r:' .. root, beginning)
  call('ZREM', base .. 'summaries', root .. beginning)
  count('summaries', length and -1 or 0)
  count('summary_bytes', -(length or 0))
end

-- Removes a summary that has this body: root, beginning, body.
function steps.remove_summary()
  if call('HGET', base .. 's:' .. ARGV[5], 'body') == ARGV[6] then remove_summary(ARGV[4], ARGV[5], #ARGV[6]) end
end

-- How old a use is written, root, beginning.
function steps.touch_summary()
  local used = tonumber(call('ZSCORE', base .. 'r:' .. ARGV[5], ARGV[6]) or now)
  if used < now - tonumber(ARGV[4]) then use_summary(ARGV[5], ARGV[6]) end
end

function steps.summaries()
  local found = {}
  for _, name in ipairs(call('ZRANGE', base .. 'summaries', 0, -1)) do
    local beginning = string.sub(name, 17)
    if call('HEXISTS', base .. 's:' .. beginning, 'body') == 1 then found[#found + 1] = beginning end
  end
  return found
end

-- What is known of a beginning: its state, and how long that goes on.
local function state_of(beginning)
  local name = base .. 's:' .. beginning
  if call('HEXISTS', name, 'body') == 1 then return 'stored', 0 end
  local held = call('HMGET', name, 'holder', 'until')
  local left = tonumber(held[2] or 0) - now
  if left > 0 then return held[1] and 'held' or 'paused', left, held[1] end
end

-- Root, how many at most.
function steps.look()
  local seen = {}
  for _, beginning in ipairs(call('ZREVRANGE', base .. 'r:' .. ARGV[4], 0, -1)) do
    local state, left = state_of(beginning)
    if state and #seen < tonumber(ARGV[5]) then seen[#seen + 1] = {beginning, state, left} end
  end
  return seen
end

-- Root, beginning, who claims, for how long.
function steps.claim()
  local state, left, holder = state_of(ARGV[5])
  if state and holder ~= ARGV[6] then return {state, left} end
  call('HSET', base .. 's:' .. ARGV[5], 'holder', ARGV[6], 'until', now + tonumber(ARGV[7]))
  use_summary(ARGV[4], ARGV[5])
  return {'yours', 0}
end

-- Root, beginning, who releases, for how long nobody gets it.
function steps.release()
  local name = base .. 's:' .. ARGV[5]
  if call('HGET', name, 'holder') ~= ARGV[6] then return end
  call('HDEL', name, 'holder')
  call('HSET', name, 'until', now + tonumber(ARGV[7]))
end

-- Removes summaries: the age from which they go. How many, and their beginnings and those of claims.
function steps.sweep_summaries()
  local n, gone = 0, {}
  for _, name in ipairs(call('ZRANGEBYSCORE', base .. 'summaries', '-inf', '(' .. (now - tonumber(ARGV[4])))) do
    local beginning = string.sub(name, 17)
    local body, till = unpack(call('HMGET', base .. 's:' .. beginning, 'body', 'until'))
    if body or tonumber(till or 0) <= now then
      remove_summary(string.sub(name, 1, 16), beginning, body and #body)
      n, gone[#gone + 1] = n + (body and 1 or 0), beginning
    end
  end
  return {n, gone}
end

-- Removes summaries that begin beyond so many bytes: those that are the most bytes with all that their owner, whom the last two
-- bytes of a beginning tell, has used since. How many, and their beginnings.
function steps.crowd_summaries()
  local most, total, taken, all, gone = tonumber(ARGV[4]), 0, {}, {}, {}
  if tonumber(call('HGET', base .. 'counts', 'summary_bytes') or 0) <= most then return {0, gone} end
  for _, name in ipairs(call('ZREVRANGE', base .. 'summaries', 0, -1)) do
    local owner, length = string.sub(name, 31), call('HSTRLEN', base .. 's:' .. string.sub(name, 17), 'body')
    taken[owner] = (taken[owner] or 0) + length
    all[#all + 1] = {name, length, taken[owner]}
  end
  table.sort(all, function(one, other) return one[3] < other[3] end)
  for _, summary in ipairs(all) do
    local name, length = summary[1], summary[2]
    total = total + length
    if length > 0 and total - length >= most then
      gone[#gone + 1] = string.sub(name, 17)
      remove_summary(string.sub(name, 1, 16), gone[#gone], length)
    end
  end
  return {#gone, gone}
end

-- Name, value, for how long, the group.
function steps.note()
  local value = now .. ' ' .. (now + tonumber(ARGV[6])) .. ' ' .. ARGV[5]
  call('HSET', base .. ARGV[7], ARGV[4], value)
end

-- Of the notes of a group that have not expired: when they were written, names and values. Expired ones are removed, and those
-- without times, which are damaged.
function steps.notes()
  local found, all = {}, call('HGETALL', base .. ARGV[4])
  for n = 1, #all, 2 do
    local written, till, value = string.match(all[n + 1], '^(%d+) (%d+) (.*)$')
    if ARGV[5] ~= 'sweep' and not till or till and tonumber(till) > now then
      found[#found + 1] = {tonumber(written or 0), all[n], value or all[n + 1]}
    elseif ARGV[5] == 'sweep' then
      call('HDEL', base .. ARGV[4], all[n])
    end
  end
  return found
end

local function remove_inspected(entry, id, length)
  call('DEL', base .. 'i:' .. id)
  call('ZREM', base .. 'inspected', entry)
  count('inspected_bytes', -length)
end

-- Id, body.
function steps.put_inspected()
  local place = call('HINCRBY', base .. 'counts', 'inspected', 1)
  call('SET', base .. 'i:' .. ARGV[4], ARGV[5])
  call('ZADD', base .. 'inspected', place, now .. ' ' .. #ARGV[5] .. ' ' .. ARGV[4])
  count('inspected_bytes', #ARGV[5])
end

-- Keeps the last requests: how many, their bytes, and their age.
function steps.trim_inspected()
  local place, total = 0, 0
  for _, entry in ipairs(call('ZREVRANGE', base .. 'inspected', 0, -1)) do
    local at, length, id = string.match(entry, '^(%d+) (%d+) (.*)$')
    place, total = place + 1, total + (length or 0)
    if not id then
      call('ZREM', base .. 'inspected', entry)
    elseif place > tonumber(ARGV[4]) or total > tonumber(ARGV[5]) or tonumber(at) < now - tonumber(ARGV[6]) then
      remove_inspected(entry, id, length)
    end
  end
end

-- Name, seconds. Whether it is taken. A turn that ends later is of before the clock was set back.
function steps.turn()
  local till, left = tonumber(call('HGET', base .. 'meta', ARGV[4]) or 0) or 0, tonumber(ARGV[5])
  if till > now and till <= now + left then return 0 end
  call('HSET', base .. 'meta', ARGV[4], now + left)
  return 1
end

-- Name, old value, new value.
function steps.replace()
  if call('HGET', base .. 'meta', ARGV[4]) == ARGV[5] then call('HSET', base .. 'meta', ARGV[4], ARGV[6]) end
end

-- Where the summary of a beginning is: the beginning, and its conversation.
function steps.point() call('SET', base .. 'b:' .. ARGV[4], ARGV[5]) end
function steps.root() return call('GET', base .. 'b:' .. ARGV[4]) end
function steps.unpoint() call('DEL', base .. 'b:' .. ARGV[4]) end

function steps.inspected() return call('GET', base .. 'i:' .. ARGV[4]) end
function steps.meta() return call('HGET', base .. 'meta', ARGV[4]) end
function steps.set_meta() call('HSET', base .. 'meta', ARGV[4], ARGV[5]) end
function steps.put_meta()
  if call('HEXISTS', base .. 'meta', ARGV[4]) == 0 then call('HSET', base .. 'meta', ARGV[4], ARGV[5]) end
end

-- Marks the bucket, unless it is marked; the mark that it has.
function steps.mark()
  if call('EXISTS', base .. 'mark') == 0 then
    call('SET', base .. 'mark', ARGV[4])
    call('SET', base .. 'written', '')
  end
  return call('GET', base .. 'mark')
end

-- A bucket that has lost its mark has lost all that was in it.
if mark ~= '' and call('GET', base .. 'mark') ~= mark then return redis.error_reply('ABRIDGELOST the data is gone') end
return steps[step]()
