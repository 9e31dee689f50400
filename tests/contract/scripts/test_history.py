"""The history in Redis: what is written down, how much of it, and that it is in nobody's way."""

from __future__ import annotations

import dataclasses
import itertools
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redislock.inspection import history as history_of
from celery_redislock.protocol import calls, holders, past
from celery_redislock.protocol.claims import Acquired, Busy, Claim, to_ms
from celery_redislock.protocol.keys import BUCKETS, lock_keys, runs_key
from celery_redislock.protocol.past import PastRun
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.node import Node
from celery_redislock.servers.server import Server
from celery_redislock.servers.urls import source_from_url
from tests.contract.claims import keep

Make = Callable[..., Claim]
#: Runs beyond a bucket's share that are there at times: a list is cut when so many have come.
SLACK = 17


@pytest.fixture
def make(label: str) -> Make:
    def make(name: str = "lock", task: str = "pkg.task", **options: object) -> Claim:
        token = new_token()
        value = holders.encode(
            token, ttl_ms=to_ms(30), task=task or None, task_id=token, node="w@h"
        )
        keys, history = lock_keys(label, f"{label}{name}"), options.pop("history", 5)
        claim = Claim(keys, token, 30.0, value, token, task=task, history=history)
        return dataclasses.replace(claim, **options)

    return make


def end(
    store: Server,
    claim: Claim,
    fence: int,
    how: str = past.SUCCEEDED,
    took: float = 1.0,
    **more: Any,
) -> bool:
    """The run of that fence ends. Whether it had the lock."""
    release = calls.Release(run_end=past.end_text(fence, took, how), **more)
    return store.run(calls.settle(claim, release)).ours


def run(store: Server, claim: Claim) -> int:
    """One run, which took a second. Its fence."""
    reply = store.run(calls.acquire(claim))
    assert isinstance(reply, Acquired)
    assert end(store, claim, reply.fence)
    return reply.fence


def kept(store: Server, claim: Claim) -> list[PastRun]:
    return list(history_of.kept_runs(store, [(claim.keys.history, claim.task)]))


def in_one_bucket(label: str) -> Iterator[str]:
    """Names whose locks are in the same bucket."""
    for number in itertools.count():
        if zlib.crc32(f"{label}{number}".encode()) % BUCKETS == 7:
            yield str(number)


def test_a_run_is_written_down_as_it_begins_and_as_it_ends(store, make, label) -> None:
    claim = make()
    reply = store.run(calls.acquire(claim))
    (begun,) = kept(store, claim)
    assert (begun.fence, begun.how, begun.took) == (reply.fence, "", None)
    assert (begun.lock_id, begun.holder.task_id) == (claim.keys.lock_id, claim.task_id)
    assert history_of.running(store, label, [begun]) == {reply.fence: 0}
    assert end(store, claim, reply.fence, past.FAILED, took=1.5)
    (ended,) = kept(store, claim)
    assert (ended.how, ended.took, ended.turned_away) == ("failed", 1.5, 0)
    assert ended.began == begun.began
    assert history_of.running(store, label, [begun]) == {}
    assert (claim.keys.history, "pkg.task") in history_of.lists_in(store, label, claim.keys.name)


def test_asking_again_is_not_another_run_nor_is_a_release_that_is_sent_twice_lost(
    store, make
) -> None:
    claim = make()
    for _ in range(2):
        reply = store.run(calls.acquire(claim))
    assert [end(store, claim, reply.fence) for _ in range(2)] == [True, False]
    (only,) = kept(store, claim)
    assert only.how == "succeeded"


def test_who_does_not_know_when_a_run_began_ends_it_by_the_servers_clock(store, make) -> None:
    claim = make()
    store.run(calls.acquire(claim))
    assert store.run(calls.settle(claim, calls.Release(stray=True, run_end=past.DIED))).ours
    assert not store.run(calls.settle(claim, calls.Release(stray=True, run_end=past.DIED))).ours
    (only,) = kept(store, claim)
    assert only.how == "died"
    assert 0 <= only.took < 30


@pytest.mark.parametrize("stray", [False, True])
def test_a_run_whose_lock_is_gone_at_its_end_is_lost(store, inside, make, stray) -> None:
    claim = make()
    reply = store.run(calls.acquire(claim))
    inside.delete(claim.keys.lock)
    assert not end(store, claim, reply.fence, stray=stray)
    assert [each.how for each in kept(store, claim)] == ["lost"]


@pytest.mark.parametrize("task", ["pkg.task", ""])
def test_a_broken_run_stays_broken(store, make, task) -> None:
    claim = make(task=task)
    reply = store.run(calls.acquire(claim))
    assert store.run(calls.break_lock(claim.keys, 30, task=claim.task)) is not None
    assert not end(store, claim, reply.fence, took=9.0)
    (only,) = kept(store, claim)
    assert only.how == "broken"
    assert only.took < 9


def test_a_lock_that_is_left_to_a_retry_ends_a_run_and_one_that_is_broken_then_does_not(
    store, make
) -> None:
    claim = make()
    reply = store.run(calls.acquire(claim))
    value, retried = holders.held_for_retry(reply.value), past.RETRIED
    assert store.run(keep(claim, value, 30, past.end_text(reply.fence, 1.0, retried))).ours
    store.run(calls.break_lock(claim.keys, 30, task=claim.task))
    assert [each.how for each in kept(store, claim)] == ["retried"]


def test_duplicates_are_counted_for_the_run_and_for_the_hour(store, inside, make, label) -> None:
    holder, task = make(), f"{label}.task"
    duplicate = make(task=task, turned_away=True)
    reply = store.run(calls.acquire(holder))
    for _ in range(3):
        assert isinstance(store.run(calls.acquire(duplicate)), Busy)
    store.run(calls.acquire(make()))  # it may wait
    store.run(calls.acquire(make(turned_away=True), "wait"))
    store.run(calls.turn_away(duplicate, reply.fence), once=True)
    store.run(calls.turn_away(duplicate, reply.fence - 1), once=True)  # another run's
    assert sum(history_of.by_the_hour(store, label)[task].values()) == 5
    assert end(store, holder, reply.fence, min_hold=30)
    store.run(calls.acquire(make(turned_away=True)))
    store.run(calls.acquire(make(task=task, turned_away=True)))  # another list says its end
    (only,) = kept(store, holder)
    assert only.turned_away == 5
    assert sum(history_of.by_the_hour(store, label)[task].values()) == 6
    value = holders.decode(inside.get(holder.keys.lock).encode())
    assert value["turned_away"] == 6


def test_a_duplicate_is_counted_for_its_hour_where_no_run_has_the_lock(store, inside, make) -> None:
    duplicate = make(turned_away=True)
    inside.set(duplicate.keys.lock, "somebody", px=20_000)
    assert isinstance(store.run(calls.acquire(duplicate)), Busy)
    assert inside.get(duplicate.keys.lock) == "somebody"
    assert sum(past.per_hour(inside.hget(duplicate.keys.turned, "pkg.task").encode()).values()) == 1


def test_many_tasks_of_one_bucket_share_its_room(own_store, make, label) -> None:
    """Else what is remembered would grow with every task that is ever defined."""
    names, history, tasks = in_one_bucket(label), 20, 8
    claims = [make(next(names), f"task{number}", history=history) for number in range(tasks)]
    for _ in range(history + 2 * SLACK):
        for claim in claims:
            run(own_store, make(claim.keys.name.removeprefix(label), claim.task, history=history))
    left = [len(kept(own_store, claim)) for claim in claims]
    assert all(left)
    assert sum(left) <= history + tasks * (SLACK + 1)


def test_hours_are_kept_for_two_days(store, inside, make) -> None:
    holder, duplicate = make(), make(turned_away=True)
    store.run(calls.acquire(holder))
    turned = holder.keys.turned
    inside.hset(turned, duplicate.task, "".join(f"{400000 - hour}:{hour};" for hour in range(90)))
    store.run(calls.acquire(duplicate))
    text = inside.hget(turned, duplicate.task)
    found = past.per_hour(text.encode())
    assert len(text) <= 16 * 48
    assert 48 <= len(found) < 80
    assert list(found.values())[:3] == [1, 0, 1]
    assert 0 < inside.ttl(turned) <= 48 * 3600


@pytest.mark.parametrize("history", [1, 20])
def test_a_lock_has_a_bounded_history(store, inside, make, history) -> None:
    fences = [run(store, make(history=history)) for _ in range(10 * history)]
    found = kept(store, make())
    assert history <= len(found) <= history + SLACK
    assert [each.fence for each in found] == fences[-len(found) :]
    assert all(each.how == "succeeded" for each in found)
    assert inside.llen(make().runs_key) <= past.RECORDS * (history + SLACK)


def test_a_busy_task_does_not_push_out_a_daily_job(own_store, own_redis, make, label) -> None:
    names = in_one_bucket(label)
    daily = next(names)
    mine = [run(own_store, make(daily, "daily", history=20)) for _ in range(8)]
    for name in itertools.islice(names, 300):
        run(own_store, make(name, "busy", history=20))
    assert [each.fence for each in kept(own_store, make(daily, "daily"))] == mine
    busy = len(kept(own_store, make(daily, "busy")))
    assert 10 <= busy <= 10 + SLACK
    with own_redis.client() as client:
        assert all(client.pttl(key) > 0 for key in client.keys("*:history*"))


def test_a_rare_job_keeps_its_runs_for_ninety_days_after_the_last(store, inside, make) -> None:
    """It runs less often than every five days, so its list is seldom cut."""
    days = 86_400
    mine = [run(store, make()) for _ in range(2)]
    index, runs = make().keys.history, make().runs_key
    for key in (index, runs):
        inside.expire(key, 70 * days)  # so long ago was the first
    inside.zincrby(index, -20 * days, "pkg.task")
    mine.append(run(store, make()))
    assert min(inside.ttl(index), inside.ttl(runs)) > 89 * days
    assert inside.zscore(index, "pkg.task") > time.time() - days
    assert [each.fence for each in kept(store, make())] == mine


def test_without_history_nothing_is_written(store, inside, make) -> None:
    holder = make(history=0)
    reply = store.run(calls.acquire(holder))
    assert isinstance(store.run(calls.acquire(make(history=0, turned_away=True))), Busy)
    assert store.run(calls.settle(holder, calls.Release(run_end=""))).ours
    assert reply.fence
    assert not inside.exists(holder.keys.history, runs_key(holder.keys.history, "pkg.task"))
    assert not inside.exists(holder.keys.turned)


def test_what_is_not_of_our_making_is_left_out(store, inside, make) -> None:
    claim = make()
    fence = run(store, claim)
    inside.rpush(claim.runs_key, "{", "{}", "7|x|y", "1|2", "[]", '{"fence":"a"}', "é|1|2")
    assert [each.fence for each in kept(store, claim)] == [fence]
    inside.delete(claim.runs_key)
    inside.set(claim.runs_key, "of another type")
    assert run(store, make())
    assert kept(store, claim) == []


def test_a_server_without_memory_goes_on_without_history(make, own_store, own_redis) -> None:
    with own_redis.client() as client:
        claims = [make(str(number)) for number in range(3)]
        replies = [own_store.run(calls.acquire(claim)) for claim in claims]
        client.set("big", "x" * 1_000_000)
        client.config_set("maxmemory", "1mb")
        own_store.run(calls.turn_away(make("0"), replies[0].fence), once=True)
        for claim, reply in zip(claims, replies, strict=True):
            assert [end(own_store, claim, reply.fence) for _ in range(2)] == [True, False]
        client.config_set("maxmemory", 0)
        assert run(own_store, make("0"))


def test_a_user_without_the_rights_goes_on_and_keeps_nothing_or_little(make, own_redis) -> None:
    with own_redis.client() as client:
        for number, denied in enumerate(("-ltrim", "-zcard", "-rpush", "-lset -hset", "-zadd")):
            user, lock = f"user{number}", f"lock{number}"
            rights = f"ACL SETUSER {user} on >pw ~* +@all {denied}"
            client.execute_command(*rights.split())
            store = Node(source_from_url(own_redis.url.replace("://", f"://{user}:pw@")))
            for _ in range(40):
                run(store, make(lock))

            holder, died = make(lock), calls.Release(min_hold=5, stray=True, run_end=past.DIED)
            store.run(calls.acquire(holder))
            store.run(calls.acquire(make(lock, turned_away=True)))
            store.run(calls.settle(holder, died))
            store.run(calls.acquire(make(lock, turned_away=True)))

            assert client.llen(holder.runs_key) <= past.RECORDS * (5 + SLACK), denied
            store.close()
