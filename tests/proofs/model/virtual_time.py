"""A virtual clock for a real Redis and the real store.

A server's time cannot be set. So the locks live for hours, as real ttls go: a tick is an hour. No
real time to speak of passes in a test, and virtual time passes by taking hours off every expiry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redislock.errors import LockUnavailable
from celery_redislock.lock import lease, right, upkeep, waiting
from celery_redislock.protocol import wire
from celery_redislock.protocol.claims import Extension
from celery_redislock.protocol.keys import LockKeys
from celery_redislock.servers import locks, lua, restarts, server
from celery_redislock.servers.locks import Locks
from celery_redislock.servers.server import Server
from celery_redislock.servers.store import Store

from .lock_model import RESERVE, WAITER_TTL

#: The modules that go by the clock.
CLOCKED: Final = (lease, right, upkeep, waiting, locks, server, restarts)
#: Seconds that a tick stands for.
TICK: Final = 3600.0

# What a tick takes off: each expiry, the time until which a waiter is believed in, and, as if it
# had been earlier, the time of the acquisition. What has half a tick or less is over.
_PASS: Final = """
local passed, half = tonumber(ARGV[1]), tonumber(ARGV[2])
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left, kind = redis.call('PTTL', key), redis.call('TYPE', key).ok
  if left >= 0 and left - passed <= half then
    redis.call('DEL', key)
  elseif left >= 0 then
    if kind == 'zset' then
      for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
        redis.call('ZINCRBY', key, -passed, member)
      end
    elseif kind == 'string' then
      local value = string.gsub(redis.call('GET', key), '"acquired_at":([%d.]+)', function(at)
        return string.format('"acquired_at":%.6f', at - passed / 1000)
      end)
      redis.call('SET', key, value)
    end
    redis.call('PEXPIRE', key, left - passed)
  end
end
"""
_LOOK: Final = """
local seen, now = {}, redis.call('TIME')
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, content = redis.call('TYPE', key).ok, false
  if kind == 'string' then content = redis.call('GET', key) end
  if kind == 'list' then content = redis.call('LRANGE', key, 0, -1) end
  if kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  seen[#seen + 1] = {key, redis.call('PTTL', key), content}
end
return {now[1] * 1000 + math.floor(now[2] / 1000), seen}
"""


def ticks(milliseconds: float) -> int:
    return round(milliseconds / 1000 / TICK)


def earlier(stored: str, ticks: int) -> str:
    """A lock's value as a holder keeps it, with the time of its acquisition so much earlier."""

    def shift(at: re.Match[str]) -> str:
        return f'"acquired_at":{float(at[1]) - ticks * TICK:.6f}'

    return re.sub(r'"acquired_at":([\d.]+)', shift, stored)


class VirtualTime:
    """The time of everybody but the server: the holders' clocks."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.now = 0

    def clock(self) -> float:
        return self.now * TICK

    def server_passes(self, ticks: int) -> None:
        """Time passes on the server only."""
        milliseconds = int(TICK * 1000)
        self.client.eval(_PASS, 0, ticks * milliseconds, milliseconds // 2)

    def picture(self, keys: LockKeys) -> dict[str, Any]:
        """All that stands on the server, as the model puts it. Every key but the fence's counter
        must have an expiry.
        """
        now, seen = self.client.eval(_LOOK, 0)
        names = dict(
            zip(
                (keys.lock, keys.fence, keys.waiters, keys.wake, keys.broken),
                ("lock", "fence", "waiters", "wake", "broken"),
                strict=True,
            )
        )
        picture = {}
        for key, left, content in seen:
            name = names.get(key) or key.replace(keys.done, "done")
            if name == "fence":
                assert left == -1, "the counter outlives its locks"
                picture[name] = int(content)
                continue
            assert left > 0, f"{key} has no expiry"
            picture[name] = _put(name, content, now, ticks(left))
        return picture


def _put(name: str, content: Any, now: int, left: int) -> Any:
    if name == "lock":
        record = json.loads(content)
        state = "reserved" if record.get("reserved") else "kept" if record.get("held") else "held"
        seen = record.get("redelivered", False)
        return (state, record["token"], record.get("fence", 0), seen, left)
    if name == "waiters":
        openings, scores = content[::2], content[1::2]
        until = (ticks(float(score) - now) for score in scores)
        return (dict(zip(_tokens("".join(openings)), until, strict=True)), left)
    if name == "wake":
        assert content == ["1"], "more than one wake-up"
        return left
    if name == "broken":
        return (set(_tokens(content)), left)
    return (content, left)


def _tokens(openings: str) -> list[str]:
    return re.findall(r'{"token":"([^"]*)"', openings)


class Way:
    """The way of one question to the server and of the answer back.

    Attributes:
        before: called before the server is asked; returns how many ticks pass on the way.
        mirror: called when it is asked.
        after: called when it has answered; may raise what the asker meets instead of the answer.
    """

    def __init__(self) -> None:
        self.before: Callable[[], int] = int
        self.mirror: Callable[[], None] = _nothing
        self.after: Callable[[], None] = _nothing


def _nothing() -> None: ...


class _WeatheredServer(Server):
    way = Way()
    contact: Callable[[], None] = staticmethod(_nothing)

    def connections(self, *arguments: Any) -> Any:
        self.contact()
        return super().connections(*arguments)

    def call(self, connection: Any, *question: Any) -> Any:
        return self._on_its_way(super().call, connection, *question)

    def call_when_woken(self, *question: Any) -> Any:
        return self._on_its_way(super().call_when_woken, *question)

    def _on_its_way(self, ask: Callable[..., Any], *question: Any) -> Any:
        """Ask, and the model once: a call may make another for a script that is not there."""
        way = self.way
        way.before()
        way.mirror()
        self.way = Way()
        try:
            reply = ask(*question)
        finally:
            self.way = way
        way.after()
        return reply


class _WeatheredLocks(Locks):
    _server: _WeatheredServer

    @property
    def _way(self) -> Way:
        return self._server.way

    def extend(self, extensions: Sequence[Extension], *arguments: Any, **options: Any) -> list[Any]:
        passed = self._way.before()
        self._way.mirror()
        extensions = [e._replace(stored=earlier(e.stored, passed)) for e in extensions]
        replies = super().extend(extensions, *arguments, **options)
        try:
            self._way.after()
        except RedisTimeoutError as exc:
            raise LockUnavailable("", None, "the answer is lost") from exc
        return replies


class WeatheredStore(Store):
    """The real store, on a way where things happen."""

    def __init__(self, pools: Any) -> None:
        super().__init__(pools, _WeatheredServer)
        self.locks = _WeatheredLocks(self.server)


@contextmanager
def virtual(time: VirtualTime) -> Iterator[None]:
    """In here the store and the leases go by virtual time, and the constants are whole ticks."""
    with ExitStack() as patched:
        for module in CLOCKED:
            patched.enter_context(mock.patch.object(module, "clock", time.clock))
        with _whole_ticks():
            yield


@contextmanager
def _whole_ticks() -> Iterator[None]:
    with (
        mock.patch.object(locks, "time", SimpleNamespace(sleep=lambda seconds: None)),
        mock.patch.object(server, "time", SimpleNamespace(sleep=lambda seconds: None)),
        # Real: the machine may be busy.
        mock.patch.object(server, "operation_timeout", return_value=60.0),
        mock.patch.object(wire, "RESERVE", RESERVE * TICK),
        mock.patch.object(wire, "WAITER_TTL", WAITER_TTL * TICK),
    ):
        yield


@contextmanager
def script(name: str, old: str, new: str) -> Iterator[None]:
    """In here the script of that name has one thing changed."""
    real = getattr(lua, name)
    assert old in real.text, f"{name} does not say {old!r} any more"
    changed = lua.Script(name)
    changed.text = real.text.replace(old, new, 1)
    with mock.patch.object(lua, name, changed):
        yield
