"""docs/inside/one-call.md shows what a call and its duplicate send, and what lies in Redis."""

from __future__ import annotations

import json
import re

import pytest
from celery import Celery, signals
from celery.contrib.testing.worker import start_worker

from celery_redislock import Queue, SingletonTask
from celery_redislock.servers import talk
from tests.support.waiting import eventually
from tests.support.workers import ROOT

PAGE = (ROOT / "docs/inside/one-call.md").read_text(encoding="utf-8")


@pytest.fixture
def ran(own_redis, monkeypatch):
    """The ids of the two tasks, their calls, what was there before each and at the end, and our
    header of each delivery.
    """
    app = Celery("shop", broker=f"{own_redis.url}/1", set_as_current=False)
    conf = {"redislock_url": f"{own_redis.url}/0", "result_backend": f"{own_redis.url}/2"}
    app.conf.update(conf, task_default_queue="shop")
    client, pack = own_redis.client(), talk.packed
    sent, calls, there, headers = [], [], [], []

    @app.task(base=SingletonTask, lock_key=["order_id"], on_conflict=Queue(), name="shop.pay")
    def pay(order_id: int) -> None:
        if not sent:
            sent.append(pay.delay(7))
            eventually(lambda: client.keys("*:room:*"), "the second one waits")

    def look() -> None:
        keys = client.keys("redislock:{*")
        there.append({key: (client.type(key), client.ttl(key) > 0) for key in keys})

    def packed(call):
        if f"\n{call.script}.lua:" in PAGE:  # on a slow machine a worker looks after the room
            look()
            calls.append(call)
        return pack(call)

    def note(request, **_):
        headers.append(request.request_dict.get("redislock"))

    monkeypatch.setattr(talk, "packed", packed)
    signals.task_received.connect(note)
    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
        first = pay.delay(7)
        first.get(timeout=20)
        sent[0].get(timeout=20)
    look()
    return (first.id, sent[0].id), calls, there, headers


def test_the_page_shows_what_a_run_does(ran):
    (a, b), calls, there, headers = ran

    def short(key: str) -> str:
        name = re.sub(r"shop\.pay:v1:[0-9a-f]+", "NAME", key.partition("}:")[2])
        return name.replace(a, "A").replace(b, "B")

    shown = re.findall(r"^(\w+)\.lua: (\d+) KEYS, (\d+) ARGV\n(?:KEYS([^[]*?)ARGV)?", PAGE, re.M)
    counts = [(name, int(keys), int(arguments)) for name, keys, arguments, _ in shown]
    assert [(each.script, len(each.keys), len(each.args)) for each in calls] == counts
    for call, (*_, keys) in zip(calls, shown, strict=True):
        assert not keys or keys.split() == [*map(short, call.keys)]
    (header,) = re.findall(r'^\{"v": 2.*?\}$', PAGE, re.M | re.S)
    assert [each and [*each] for each in headers] == [None, None, [*json.loads(header)]]
    tables = re.findall(r"^\| key \|.*\n.*\n((?:\|.*\n)+)", PAGE, re.M)
    for table, now in zip(tables, (there[1], *there[3:5], there[-1]), strict=True):
        rows = re.findall(r"^\| `(\S+)` \| (\w+) \| (\w+)", table, re.M)
        on_page = {key: (kind, ttl != "none") for key, kind, ttl in rows}
        assert on_page == {short(key): kind for key, kind in now.items()}
