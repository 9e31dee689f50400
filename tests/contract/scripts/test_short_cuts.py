"""The short cuts of `acquire.lua`: what the script does at once for a lock that is free, or that
another task's run has, is what it does at length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from celery_redislock.protocol import calls, holders
from celery_redislock.protocol.claims import Claim, to_ms
from celery_redislock.protocol.exchange import Call
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.notes import EXPECTS_RESULT
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers import scripts

TTL = 30.0
#: What the plain question leaves out, as a question that is not plain says it.
AT_LENGTH = ("try", 0, to_ms(calls.WAITER_TTL), "", "")


def run_value(task_id: str, attempt: int = 0, **more: Any) -> str:
    """The value of a lock that a run of this task has."""
    text = holders.encode(
        new_token(), ttl_ms=to_ms(TTL), task="pkg.task", task_id=task_id, attempt=attempt, **more
    )
    return holders.acquired(text, 1_700_000_000_000_042)


def cooling(value: str) -> str:
    record = json.loads(value)
    del record["token"]
    return json.dumps({"token": "", "cooling": True, **record}, separators=(",", ":"))


def turned_away(value: str) -> str:
    return value[:-1] + ',"turned_away":9}'


#: The lock's value, by what it is. The task that asks is "mine", in its second attempt.
VALUES = {
    "free": None,
    "another task's": run_value("other"),
    "another task's, that was asked for before": turned_away(run_value("other")),
    "another task's, to be replaced": run_value("other")[:-1] + ',"replaced":5,"by":["a","b"]}',
    "another task's, whose id needs escapes": run_value('o"ther'),
    "another task's, whose label tells of us": run_value("other", label=',"task_id":"mine"'),
    "this task's": run_value("mine", 1),
    "this task's earlier attempt's": run_value("mine"),
    "this task's later attempt's": run_value("mine", 2),
    "another task's, that has ended": cooling(turned_away(run_value("other"))),
    "another task's next attempt's": holders.held_for_retry(run_value("other")),
    "another task's message's": holders.encode(
        new_token(), ttl_ms=to_ms(TTL), task="pkg.task", task_id="other", queued=True
    ),
    "a waiter's": '{"token":"","reserved":true}',
    "a RedisLock's": holders.acquired(holders.encode(new_token(), ttl_ms=1), 1_700_000_000_000_042),
    "somebody's": "thief",
    "somebody's, who has task ids too": '{"a":1,"task_id":"other"}',
    "nearly ours": '{"token":"x","fence":1,"task_id":7}',
}


def asks(name: str, task_id: str, attempt: int, history: int, turned_away: bool) -> Claim:
    token = "0123456789abcdef" * 2
    value = holders.encode(
        token,
        ttl_ms=to_ms(TTL),
        task="pkg.task",
        task_id=task_id,
        attempt=attempt,
        node="w",
        label="",
    )
    return Claim(
        *(lock_keys("short", name), token, TTL, value, task_id, attempt),
        task="pkg.task",
        history=history,
        turned_away=turned_away,
    )


def without_times(found: Any) -> Any:
    """The same without what differs from one second to the next."""
    if isinstance(found, dict):
        return {key: without_times(each) for key, each in found.items()}
    if isinstance(found, list | tuple):
        return [without_times(each) for each in found]
    if isinstance(found, int):
        return "time" if found > 1000 else found
    return re.sub(r"\d{6,}(\.\d+)?|\d+:(?=\d+;)", "time", found) if found else found


def everything(client: redis.Redis, name: str) -> dict[str, Any]:
    """All keys of this lock's bucket, but for the done note's exact time to live."""
    read: dict[str, Callable[[str], Any]] = {
        "string": client.get,
        "list": lambda key: client.lrange(key, 0, -1),
        "hash": client.hgetall,
        "zset": lambda key: client.zrange(key, 0, -1),
    }
    head = lock_keys("short", name).lock.partition("}")[0]
    return {
        key: (read[client.type(key)](key), client.pttl(key) > 0)
        for key in client.scan_iter(f"{head}}}:*", count=1000)
    }


def evaluated(client: redis.Redis, call: Call[Any], *more: Any) -> Any:
    return client.eval(scripts.text_of(call.script), len(call.keys), *call.keys, *call.args, *more)


@pytest.fixture
def empty(own_redis: Any) -> Any:
    with own_redis.client() as client:
        yield client


@pytest.mark.parametrize(
    ("note", "history", "turns_away"),
    [("", 0, False), ("", 50, True), (EXPECTS_RESULT, 50, False), (EXPECTS_RESULT, 0, True)],
)
@pytest.mark.parametrize("beside", ["nothing", "a note", "a waiter", "a room"])
def test_a_short_cut_ends_where_the_long_way_ends(
    empty: redis.Redis, note: str, history: int, turns_away: bool, beside: str
) -> None:
    for what, value in VALUES.items():
        for task_id, attempt in (("mine", 1), ('o"ther', 0), ("", 0)):
            claim = asks("x", task_id, attempt, history, turns_away)
            call = calls.acquire(claim, note=note)
            assert len(call.args) == 6, "this is the plain question"
            ends = []
            for more in ((), AT_LENGTH):
                empty.flushdb()
                of = claim.keys
                if value is not None:
                    empty.set(of.lock, value, px=to_ms(TTL))
                    empty.rpush(claim.runs_key, value, of.lock_id, "1700000000000042|5|succeeded")
                if beside == "a note":
                    empty.set(claim.done_key, EXPECTS_RESULT, px=60000)
                elif beside == "a waiter":
                    empty.zadd(of.waiters, {'{"token":"waits"': 9e15})
                elif beside == "a room":
                    empty.rpush(of.room, "first:0.0")
                    empty.hset(of.entries, "first:0.0", "|1700000000000|{}")
                    empty.zadd(of.rooms, {of.lock_id: 1.7e12})
                reply = evaluated(empty, call, *more)
                ends.append((without_times(reply), without_times(everything(empty, "x"))))
            assert ends[0] == ends[1], (what, task_id)


@pytest.mark.parametrize("beside", ["nothing", "a waiter"])
def test_who_begins_to_wait_takes_a_free_lock_and_waits_no_more(
    empty: redis.Redis, beside: str
) -> None:
    claim = asks("x", "mine", 1, 0, turned_away=False)
    of = claim.keys
    if beside == "a waiter":
        empty.zadd(of.waiters, {claim.opening: 9e15, '{"token":"waits"': 9e15})
    assert evaluated(empty, calls.acquire(claim, "wait")) > 0
    assert empty.zscore(of.waiters, claim.opening) is None


def test_there_is_no_short_cut_where_several_may_hold_the_lock(empty: redis.Redis) -> None:
    """The task's own run may have a slot behind the free one."""
    claim = asks("x", "mine", 1, 0, turned_away=False)
    claim.keys = lock_keys("short", "x", 2)
    empty.set(claim.keys.slots[0], VALUES["this task's"], px=to_ms(TTL))
    reply = evaluated(empty, calls.acquire(claim))
    assert reply[3] == "own"
