"""A virtual clock for a real Redis and the real store.

A server's time cannot be set. So the locks live for hours, as real ttls go: a tick is an hour. No
real time to speak of passes in a test, and virtual time passes by taking hours off every expiry.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import redis
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redislock.errors import LockUnavailable
from celery_redislock.lock import lease, right
from celery_redislock.protocol import calls, waiting
from celery_redislock.protocol.exchange import Call
from celery_redislock.protocol.keys import LockKeys
from celery_redislock.servers import node, restarts, server, talk
from celery_redislock.servers.node import Node
from celery_redislock.servers.talk import block, make_call
from tests.contract.changed_scripts import rewritten

from .lock_model import LATE_FOR, RESERVE, WAITER_TTL

#: The modules that go by the clock.
CLOCKED: Final = (right, lease, waiting, server, talk, restarts)
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
        local is_late = tonumber(redis.call('ZSCORE', key, member)) < 0
        redis.call('ZINCRBY', key, is_late and passed or -passed, member)
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
        scores = dict(zip(_tokens("".join(content[::2])), map(float, content[1::2]), strict=True))
        waiters = {token: ticks(at - now) for token, at in scores.items() if at > 0}
        late = {token: ticks(-at - now) for token, at in scores.items() if at < 0}
        return (waiters, late, left)
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


class WeatheredStore(Node):
    """The real server, on a way where things happen."""

    way = Way()
    contact: Callable[[], None] = staticmethod(_nothing)

    def exchange(self, key: str, ttl: float, purpose: str, begin: Any, *question: Any) -> Any:
        self.contact()
        if begin in (make_call, block):
            begin = partial(self._on_its_way, begin)
        return super().exchange(key, ttl, purpose, begin, *question)

    def _on_its_way(self, begin: Callable[..., Any], *question: Any) -> Any:
        """Ask, and the model once: the script may have to be sent again with its text, or the whole
        one after the short one, which has then done nothing.
        """
        way = self.way
        talk = begin(*question)
        request = next(talk)
        way.before()
        way.mirror()
        try:
            while True:
                replies = yield request
                is_short = begin is make_call and replies[0] is None
                if not is_short and not any(isinstance(each, NoScriptError) for each in replies):
                    way.after()  # before the asker has it: it may be lost
                request = talk.send(replies)
        except StopIteration as end:
            return end.value

    def run(self, call: Call[Any], **options: Any) -> Any:
        if call.script != "extend":
            return super().run(call, **options)
        ask = super().run
        return self._extend([call], lambda calls: ask(calls[0], **options))

    def run_all(self, calls: Sequence[Call[Any]], **options: Any) -> Any:
        ask = super().run_all
        return self._extend(calls, lambda calls: ask(calls, **options))

    def _extend(self, calls: Sequence[Call[Any]], ask: Callable[..., Any]) -> Any:
        """Ask with values that are so much older as time passes on the way."""
        way = self.way
        passed = way.before()
        way.mirror()
        self.way = Way()
        try:
            reply = ask([_older(call, passed) for call in calls])
        finally:
            self.way = way
        try:
            way.after()
        except RedisTimeoutError as exc:
            raise LockUnavailable("", None, "the answer is lost") from exc
        return reply


def _older(call: Call[Any], passed: int) -> Call[Any]:
    stored, *more = call.args
    return dataclasses.replace(call, args=(earlier(stored, passed), *more))


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
        mock.patch.object(server, "time", SimpleNamespace(sleep=lambda seconds: None)),
        # Real: the machine may be busy.
        mock.patch.object(node, "operation_timeout", return_value=60.0),
        mock.patch.object(server, "operation_timeout", return_value=60.0),
        mock.patch.object(talk, "operation_timeout", return_value=60.0),
        mock.patch.object(calls, "RESERVE", RESERVE * TICK),
        mock.patch.object(calls, "WAITER_TTL", WAITER_TTL * TICK),
        rewritten("settle", "LATE_FOR = 120000", f"LATE_FOR = {LATE_FOR * TICK * 1000:.0f}"),
    ):
        yield
