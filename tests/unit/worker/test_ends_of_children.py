"""What the main process notes for copies of a message when it ends the run of a child."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock import Holder, SingletonTask
from celery_redislock.app.delivery import KEY, Kept
from celery_redislock.errors import TaskReplaced
from celery_redislock.protocol import notes
from celery_redislock.tasks.ends import End
from celery_redislock.worker import child_lease as leases
from celery_redislock.worker import request as requests
from celery_redislock.worker.child_lease import ChildLease
from celery_redislock.worker.request import LockRequest
from tests.contract.clocks import clock


class Lease:
    """It knows what was noted."""

    ttl = 30.0

    def __init__(self, *args: Any) -> None:
        self.noted: list[str] = []

    def child_ended(self) -> None:
        pass

    def expect_end(self, end_reason: str) -> None:
        pass

    def note_over(self, kind: str) -> None:
        self.noted.append(kind)


@pytest.fixture
def request_of(monkeypatch):
    monkeypatch.setattr(requests.internals, "is_active", lambda request: True)
    monkeypatch.setattr(requests.internals, "terminate_child", lambda *args: None)
    monkeypatch.setattr(requests, "ChildLease", Lease)
    monkeypatch.setattr(requests.housekeeper, "when_gone", lambda *args, **more: None)

    def request_of(acks_late: bool, is_copy: bool, waited: float = 0.0, **task: Any) -> Any:
        request: Any = object.__new__(LockRequest)
        more = {
            "acks_on_failure_or_timeout": True,
            "worker_consumer": None,
            "_redislock_clear": None,
            **task,
        }
        request._task = SimpleNamespace(name="t", acks_late=acks_late, **more)
        request._request_dict = {"id": "this"}
        request._is_copy, request._received = is_copy, clock() - waited
        request.id, request.worker_pid, request._lock_token = "this", 1, "token"
        request._watch_child(1)
        return request

    return request_of


@pytest.mark.parametrize(
    ("acks_late", "is_copy", "waited", "expected"),
    [
        # It comes in a minute: a machine that stands still makes nothing of that late.
        (False, False, -60.0, []), (True, False, -60.0, [notes.EXPECTS_RESULT]),
        (False, True, -60.0, [notes.EXPECTS_RESULT]), (False, False, 2.0, [notes.EXPECTS_RESULT]),
    ],
)  # fmt: skip
def test_copies_of_a_message_await_the_result_that_the_main_process_stores(
    request_of, acks_late, is_copy, waited, expected
):
    replaced = request_of(acks_late, is_copy, waited)
    replaced.end_child(TaskReplaced("k", Holder(task_id="newer")), 15)
    assert replaced._lease.noted == expected

    timed_out = request_of(acks_late, is_copy, waited)
    timed_out._settle_timed_out()
    assert timed_out._lease.noted == expected


def test_a_message_that_comes_back_after_a_time_limit_may_run(request_of):
    request = request_of(True, True, acks_on_failure_or_timeout=False)
    request._settle_timed_out()
    assert request._lease.noted == []


class Placeholder:
    """A request, as far as a child's lease looks at it."""

    def __init__(self, task: Any, **raw: Any) -> None:
        self.task, self.args, self.kwargs, self.request_dict = task, (), {}, {"id": "this", **raw}


@pytest.fixture
def child_of(app, monkeypatch):
    """The lease of a dead child whose retry Celery sends. It knows what it asks the server: whether
    to keep the lock for that.
    """
    asked: list[bool] = []
    task = app.task(base=SingletonTask, name="t", shared=False, lock_across_retries="hold")(body)
    task.retry_on_worker_lost = True
    requests_made = []

    def child_of(answers: list[bool], meanwhile: Any = None, **raw: Any) -> Any:
        def run(release: Any) -> Any:
            asked.append(release.heir is not None)
            if meanwhile is not None:
                meanwhile(child)
            return SimpleNamespace(ours=answers.pop(0))

        monkeypatch.setattr(ChildLease, "server", SimpleNamespace(run=run))
        requests_made.append(Placeholder(task, **raw))
        child = ChildLease(1, requests_made[-1], "token")  # type: ignore[arg-type]
        return child, asked

    monkeypatch.setattr(leases, "settle", lambda claim, release: release)
    monkeypatch.setattr(leases, "follow_up", lambda *args: None)
    return child_of


def body() -> None:
    """It is never run."""


@pytest.mark.parametrize(
    ("answers", "finds_slot", "expected"),
    [
        ([True], False, [True]), ([False, True], True, [True, True]),
        ([False, False], False, [True, False]),
    ],
)  # fmt: skip
def test_the_lock_of_a_dead_child_is_kept_for_its_retry_in_whatever_slot_if_the_child_had_it(
    child_of, monkeypatch, answers, finds_slot, expected
):
    monkeypatch.setattr(ChildLease, "_finds_slot", lambda child: finds_slot)
    child, asked = child_of(answers)
    child.child_ended()
    assert asked == expected
    assert answers == []


def test_a_retry_finds_what_was_reserved_for_the_message_of_a_child_that_died_early(child_of):
    lock_id = child_of([])[0].claim.keys.lock_id

    def heir(kept: Any = None, **raw: Any) -> Kept | None:
        child, _ = child_of([], **raw, **({} if kept is None else {KEY: {"kept": kept}}))
        return child.heir

    assert heir([lock_id, "reserved"]) == Kept(lock_id, "reserved")
    assert heir(["1|another", "reserved"]) == heir() == Kept(lock_id, "token.retry")
    assert heir(retries=2) == Kept(lock_id, "token.retry")
    assert heir(retries=3) is None, "there is no retry"


def test_what_was_kept_for_a_retry_that_celery_does_not_send_is_freed(child_of, monkeypatch):
    freed: list[Any] = []
    monkeypatch.setattr(leases, "settle_beside", lambda app, kept, end: freed.append((kept, end)))
    child, _ = child_of([True], lambda child: child.note_cut_short(is_retried=False))
    child.child_ended()
    assert freed == [(Kept(child.claim.keys.lock_id, "token.retry"), End.ENDED_BY_CELERY)]


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"outages": 3}, "it was put off 3 times, since the lock server did not answer"),
        ({"suspended": "task t"}, "it was put off, since this is suspended: task t"),
        ({}, None),
    ],
)
def test_what_expired_as_it_was_put_off_is_said_to_have_been(request_of, app, caplog, header, why):
    task = app.task(base=SingletonTask, name="t", shared=False)(body)
    request = request_of(False, False)
    request._task, request._args, request._kwargs = task, (), {}
    request._request_dict = {"id": "this", "expires": "2026-01-01T00:00:00+00:00", KEY: header}
    request._report_expired()
    said = [] if why is None else [f"redislock: t[this] ends as expired without a run: {why}"]
    assert caplog.messages == said
