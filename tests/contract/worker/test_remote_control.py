"""`celery inspect locks`, `lock_server`, `celery control break_lock`: what workers know, and do."""

from __future__ import annotations

import json

import pytest

from celery_redislock.worker.remote_control import break_lock, locks
from tests.support.waiting import eventually

POOLS = ("prefork", "threads", "gevent")


def ask(sender, worker, command, **arguments):
    """The reply of this worker."""
    replies = eventually(
        lambda: sender.control.broadcast(
            command, arguments=arguments, reply=True, timeout=5, limit=1, destination=[worker.node]
        ),
        f"{worker.node} answers",
    )
    (reply,) = replies
    return reply[worker.node]


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_tells_what_it_holds_and_breaks_only_that(
    start_worker, sender, queue, journal, label, client, locks_of, pool
):
    one = start_worker(queues=queue, pool=pool, concurrency=2)
    two = start_worker(queues=f"{queue}2", pool=pool, concurrency=2)
    assert ask(sender, one, "locks") == []
    place = ask(sender, one, "lock_server")
    assert place["prefix"] == "redislock"
    assert "skip" in place["tasks"]
    assert place["ids"]
    sender.send_task("skip", [label, 60], queue=queue)
    (entry,) = eventually(lambda: journal.read(label, "start"), "it runs")
    (key,) = locks_of(entry.task_id)
    stored = json.loads(client.get(key))

    def confirmed():
        (told,) = ask(sender, one, "locks")
        return told["held"] and told

    told = eventually(confirmed, "the server has confirmed it")
    assert told["key"] == key
    assert told["task"] == stored["task"] == "skip"
    assert told["task_id"] == stored["task_id"]
    assert told["pid"] == stored["pid"] == entry.pid
    assert told["fence"] in (None, stored["fence"])
    assert 0 <= told["confirmed_ago"] < 6
    assert told["held_for"] > 0
    assert ask(sender, two, "locks") == []

    assert ask(sender, two, "break_lock", target=[key]) == {"ok": {"key": key, "broken": []}}
    assert client.exists(key)
    reply = ask(sender, one, "break_lock", target=["skip", label])
    assert reply["ok"]["key"] == key
    assert [each["task_id"] for each in reply["ok"]["broken"]] == [entry.task_id]
    assert "was broken by remote control" in one.log()
    eventually(lambda: f"LOST {key}" in one.log(), "its holder learns it")
    assert not client.exists(key)
    if pool == "prefork":  # elsewhere the lease is forgotten once it is lost
        eventually(
            lambda: [each["held"] for each in ask(sender, one, "locks")] == [False],
            "the run goes on, and has not got the lock",
        )
    else:
        eventually(lambda: ask(sender, one, "locks") == [], "it holds none")


def test_who_takes_the_lock_after_its_holder_is_not_broken_in_its_place(
    start_worker, sender, queue, journal, label, client, locks_of
):
    worker = start_worker(queues=queue)
    sender.send_task("long_ttl", [label, 60], queue=queue)
    (entry,) = eventually(lambda: journal.read(label, "start"), "it runs")
    (key,) = locks_of(entry.task_id)
    successor = json.dumps({**json.loads(client.get(key)), "token": "another"})
    client.set(key, successor, keepttl=True)
    assert ask(sender, worker, "break_lock", target=[key])["ok"]["broken"] == []
    assert client.get(key) == successor


def test_a_worker_says_what_it_does_not_understand(start_module_worker, sender, queue):
    worker = start_module_worker(queues=queue, pool="threads")
    for target, said in (
        ([], "which lock?"),
        (["no.such.task", 5], "no such task: no.such.task"),
        (["skip"], "skip: "),
        (["plain", "x"], "plain takes no lock"),
    ):
        assert said in ask(sender, worker, "break_lock", target=target)["error"]


def test_celery_lists_the_commands_under_their_names():
    from celery.worker.control import Panel

    assert Panel.data["locks"] is locks
    assert Panel.meta["locks"].type == "inspect"
    assert Panel.data["break_lock"] is break_lock
    assert Panel.meta["break_lock"].type == "control"
    assert "KEY|TASK" in Panel.meta["break_lock"].signature
