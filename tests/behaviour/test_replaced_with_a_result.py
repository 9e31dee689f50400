"""`result=` of Coalesce, Debounce and Replace: a replaced call ends as SUCCESS."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import pytest
from celery import chain

from celery_redislock import Coalesce, ConfigError, Defer, Replace, SingletonTask
from tests.support.sending import app
from tests.support.waiting import never
from tests.support.workers import make_app as make_connected_app

__all__ = ["app"]  # a fixture

QUEUE = "replaced-with-a-result"
REPLACED = ["replaced"]


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


@pytest.fixture
def sig(sender):
    def sig(name, *args, **kwargs):
        return sender.signature(name, args=args, kwargs=kwargs).set(queue=QUEUE)

    return sig


@pytest.fixture
def heard(journal, label):
    """What the tasks that follow were told."""
    return lambda: [each.data for each in journal.read(label, "heard")]


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("replaced_late_result", "its process is terminated, by the policy after another one"),
        ("replaced_gently_result", "it learns that it is to end"),
    ],
)
def test_a_run_that_is_replaced_ends_with_it_and_its_chain_goes_on_once(
    sig, journal, label, heard, name, policy
):
    first = chain(sig(name, label, 60), sig("heard", label=label)).apply_async()
    journal.await_start(label, first.parent.id)
    second = sig(name, label, 0.1).apply_async()
    assert first.parent.get(timeout=30) == REPLACED
    assert first.get(timeout=30) == REPLACED
    assert label in second.get(timeout=30)
    assert journal.overlaps(label) == []
    never(lambda: len(heard()) > 1 or journal.count(label, "start") > 2, "anything again", 1.5)


def test_a_result_that_the_brokers_headers_cannot_carry_is_one_all_the_same(
    start_worker, rabbitmq, conf, queue, label, journal
):
    """Nor does it keep the newest call from its message, which waited in the room too."""
    conf = {**conf, "broker_url": rabbitmq.url}
    start_worker(conf=conf, queues=queue, concurrency=5)
    with make_connected_app(conf) as app:
        for name, seconds in (("coalesced_uuid", 3), ("replaced_uuid", 60)):
            own, sends = f"{label}-{name}", partial(app.send_task, name, queue=queue)
            holder = sends((own, seconds))
            journal.await_start(own, holder.id)
            older, newest = (sends((own, 0.1)) for _ in range(2))
            assert newest.get(timeout=30)[0] == own
            replaced = older if name == "coalesced_uuid" else holder
            assert replaced.get(timeout=30) == UUID(int=42)


@pytest.mark.parametrize(
    "policy",
    [Coalesce(result=object()), Defer(max_wait=1, then=Replace(result=object()))],
    ids=["coalesce", "then_replace"],
)
def test_a_result_that_no_message_can_carry_is_refused(make_app, policy):
    app = make_app()

    @app.task(base=SingletonTask, on_conflict=policy, shared=False)
    def task(): ...

    with pytest.raises(ConfigError, match=r"its result must be something that the task's messages"):
        task.delay()
