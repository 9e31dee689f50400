"""Lua scripts in which one thing is changed, in this process only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from celery_redislock.protocol.keys import LockKeys
from celery_redislock.servers import scripts


def rewrite(script: str, old: str, new: str) -> None:
    """Have this process, and those that it forks, send a script with one thing changed."""
    text_of = scripts.text_of
    text = text_of(script)
    assert old in text, f"{script} has changed: it has no {old!r}"  # a part may be in it twice
    changed = text.replace(old, new)
    scripts.text_of = lambda name: changed if name == script else text_of(name)  # type: ignore
    forget()


@contextmanager
def rewritten(script: str, old: str, new: str) -> Iterator[None]:
    """In here this process sends that script with one thing changed."""
    text_of = scripts.text_of
    rewrite(script, old, new)
    try:
        yield
    finally:
        scripts.text_of = text_of
        forget()


def forget() -> None:
    """What was made of the texts is made anew."""
    scripts.sha_of.cache_clear()
    scripts._packed_head.cache_clear()


#: Before a script: a `redis` that names each key that is touched and was not declared. All keys of
#: DEL and EXISTS are keys, TIME has none, and other commands have one, which comes first.
WATCH = """
local redis = (function(real)
  local declared, count = {}, {DEL = 1000, EXISTS = 1000, TIME = 0}
  for _, key in ipairs(KEYS) do declared[key] = true end
  local function look(command, ...)
    for i = 1, math.min(count[command] or 1, select('#', ...)) do
      local key = select(i, ...)
      if not declared[key] then
        error('undeclared key: ' .. command .. ' ' .. tostring(key))
      end
    end
  end
  local function watched(does)
    return function(...) look(...) return does(...) end
  end
  return setmetatable({call = watched(real.call), pcall = watched(real.pcall)}, {__index = real})
end)(redis)
"""


#: Before a script: a `redis` whose TIME is what `set_clock` set for the script's lock. Keys expire
#: by the real time, of which a test takes a little: so a PTTL is rounded up to whole seconds.
CLOCK = """
local redis = (function(real)
  local bucket, name = string.match(KEYS[1] or '', '^([^}]*}):%a+:(.*)$')
  local told = bucket and real.call('GET', bucket .. ':clock:' .. name)
  if not told then
    return real
  end
  local function call(command, ...)
    if command == 'TIME' then
      return {string.match(told, '^(%d+)[.](%d+)$')}
    end
    local reply = real.call(command, ...)
    return command == 'PTTL' and reply > 0 and math.ceil(reply / 1000) * 1000 or reply
  end
  return setmetatable({call = call}, {__index = real})
end)(redis)
"""


def set_clock(client: redis.Redis, keys: LockKeys, ms: int) -> None:
    """Say what time it is to the scripts that ask about this lock in `stopped_clock`."""
    clock = keys.lock.replace("}:lock:", "}:clock:", 1)
    client.set(clock, f"{ms // 1000}.{ms % 1000 * 1000}", px=600_000)


@contextmanager
def stopped_clock() -> Iterator[None]:
    """In here the time of a lock for which `set_clock` was called is what that said."""
    with _all_begin_with(CLOCK):
        yield


@contextmanager
def declared_keys() -> Iterator[None]:
    """In here a script fails that touches a key which is not in its KEYS, and names it."""
    with _all_begin_with(WATCH):
        yield


@contextmanager
def _all_begin_with(prefix: str) -> Iterator[None]:
    text_of = scripts.text_of
    scripts.text_of = lambda name: prefix + text_of(name)  # type: ignore[assignment]
    forget()
    try:
        yield
    finally:
        scripts.text_of = text_of
        forget()
