"""What the tests of this tier ask the servers, and what they expect of the answers."""

from __future__ import annotations

import itertools
from typing import Any

from celery_redislock import LockUnavailable
from celery_redislock.protocol import calls, holders, notes
from celery_redislock.protocol.claims import (
    Acquired,
    Busy,
    Claim,
    Extended,
    Extension,
    Settled,
    to_ms,
)
from celery_redislock.protocol.exchange import Call
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.server import Server


def make_claim(
    name: str,
    ttl: float = 30.0,
    task_id: str = "",
    attempt: int = 0,
    nesting: int = 0,
    task: str = "pkg.task",
) -> Claim:
    """A claim with a token of its own, as each delivery has one."""
    token = new_token()
    run = {"task": task, "task_id": task_id, "attempt": attempt, "nesting": nesting}
    value = holders.encode(token, ttl_ms=to_ms(ttl), **run)
    of = lock_keys("redislock", name)
    return Claim(of, token, ttl, value, task_id, attempt, nesting, task=task)


def taken(reply: Any) -> Acquired:
    assert isinstance(reply, Acquired), reply
    return reply


def busy(reply: Any) -> Busy:
    assert isinstance(reply, Busy), reply
    return reply


def extension(claim: Claim, reply: Acquired, retake: bool = True) -> Extension:
    return Extension(claim, reply.value, reply.fence, retake, reply.fence)


def extended(store: Server, *extensions: Extension) -> list[Extended | LockUnavailable]:
    """The answers to these extensions, which are sent together, as the heartbeat sends them."""
    asked = [calls.extend(each) for each in extensions]
    ttl = min(call.ttl for call in asked)
    return store.run_all(asked, ttl=ttl, purpose="heartbeat")


def outcomes(replies: list[Any]) -> list[int]:
    return [reply.outcome for reply in replies]


def names_apart(label: str, count: int) -> list[str]:
    """Names whose locks share no bucket: one could not be taken again after another was."""
    found: dict[str, str] = {}
    numbers = itertools.count()
    while len(found) < count:
        name = f"{label}{next(numbers)}"
        found.setdefault(lock_keys("redislock", name).fence, name)
    return list(found.values())


def keep(claim: Claim, value: str, seconds: float, run_end: str = "") -> Call[Settled]:
    """Leave the lock to a later message, as a run does whose retry gets it."""
    note = notes.lasting(notes.ENDED)
    return calls.settle(claim, calls.Release(note, True, run_end=run_end, heir=(value, seconds)))
