"""A run that ends before its next extension learns at its release that it had lost the lock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer, trace_task

from celery_redislock import SingletonTask, lock_lost, lock_released
from celery_redislock.signals import ReleasedDetails
from tests.support.servers import Proxy


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    """The details of the losses and releases that the signals told."""
    said: list[Any] = []

    def receive(details: Any, **kwargs: Any) -> None:
        said.append(details)

    for signal in (lock_lost, lock_released):
        signal.connect(receive, weak=False)
    yield said
    for signal in (lock_lost, lock_released):
        signal.disconnect(receive)


@pytest.fixture
def run(proxy: Proxy) -> Callable[..., None]:
    """Runs this function as a task's body, as a worker does."""
    app = Celery("lost", set_as_current=False)
    app.conf.update(redislock_url=proxy.url, broker_url="memory://", task_ignore_result=True)

    def run(body: Callable[..., Any], task_id: str, **options: Any) -> None:
        task = app.task(
            base=SingletonTask, shared=False, bind=True, lock_key="{label}", lock_ttl=60, **options
        )(body)
        app.finalize()
        task.__trace__ = build_tracer(task.name, task, app=app)
        request = {"id": task_id, "hostname": "w@h", "delivery_info": {"routing_key": "q"}}
        trace_task(task, task_id, (task_id,), {}, request, app=app)

    return run


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "LOST" in each.getMessage()]


def broken(task: Any, label: str, client: Any) -> None:
    assert task.break_lock(label)


def deleted(task: Any, label: str, client: Any) -> None:
    client.delete(task.lock.key)


def taken(task: Any, label: str, client: Any) -> None:
    client.set(task.lock.key, "somebody else's", px=100)


@pytest.mark.parametrize("on_lock_lost", ["flag", "abort"])
@pytest.mark.parametrize("lose", [broken, deleted, taken])
def test_it_is_reported_as_lost_and_not_as_released(
    run: Any, heard: list[Any], client: Any, label: str, caplog: Any, lose: Any, on_lock_lost: str
) -> None:
    caplog.set_level(logging.DEBUG, "celery_redislock")
    ended = []

    def short(self, label):
        lose(self, label, client)
        ended.append(self.lock.lost)

    run(short, label, on_lock_lost=on_lock_lost)
    assert ended == [False], "the body ended as if nothing had happened"
    lost, released = heard
    assert lost.fence == released.fence > 0
    assert (released.owned, released.how) == (False, "succeeded")
    (line,) = losses(caplog)
    assert line.endswith(lost.reason)
    assert lost.reason.startswith("an operator broke it: ") is (lose is broken)
    assert " released redislock" not in caplog.text


def test_a_lock_that_was_to_be_kept_for_a_retry_is_reported_too(
    run: Any, heard: list[Any], client: Any, label: str, caplog: Any
) -> None:
    def retries(self, label):
        broken(self, label, client)
        raise self.retry(countdown=60)

    run(retries, label, lock_across_retries="hold")
    lost, released = heard
    assert (released.owned, released.kept_for_retry, released.how) == (False, True, "retried")
    assert lost.reason.startswith("an operator broke it")
    assert len(losses(caplog)) == 1


def test_a_run_that_was_told_is_not_told_again(
    run: Any, heard: list[Any], client: Any, label: str, caplog: Any
) -> None:
    def knows(self, label):
        broken(self, label, client)
        assert not self.lock.extend_now()

    run(knows, label)
    assert len(heard) == 2
    assert len(losses(caplog)) == 1


@pytest.mark.parametrize("options", [{}, {"lock_across_retries": "hold"}])
def test_a_release_whose_reply_got_lost_is_no_loss(
    run: Any, proxy: Proxy, heard: list[Any], label: str, caplog: Any, options: Any
) -> None:
    """The repeated one may find the lock gone: by the first one."""

    def ends(self, label):
        proxy.lose_replies(1)
        if options:
            raise self.retry(countdown=60)

    run(ends, label, **options)
    assert proxy.lost == 1
    assert [type(each) for each in heard] == [ReleasedDetails]
    assert not losses(caplog)
