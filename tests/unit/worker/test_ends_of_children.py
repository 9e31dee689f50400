"""What the main process notes for copies of a message when it ends the run of a child."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock import Holder
from celery_redislock.errors import TaskReplaced
from celery_redislock.protocol import notes
from celery_redislock.worker import request as requests
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
