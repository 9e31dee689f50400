"""Background work, soon and later, in one thread."""

from __future__ import annotations

import os
import threading
import time

import pytest

from celery_redislock import LockUnavailable
from celery_redislock.app import errands as module
from celery_redislock.app.errands import Errands
from tests.support.lateness import elapsed
from tests.support.waiting import eventually


@pytest.fixture
def errands():
    return Errands()


def threads() -> int:
    return sum(each.name == "redislock-errands" for each in threading.enumerate())


def test_a_thousand_errands_that_are_due_later_need_one_thread_which_then_ends(errands):
    done: list[int] = []
    before = threads()
    for number in range(1000):
        errands.add(lambda number=number: done.append(number), after=0.3)
    assert threads() == before + 1
    assert not done
    eventually(lambda: len(done) == 1000, "all are done")
    assert done == sorted(done)
    eventually(lambda: threads() == before, "the thread ends")


def test_what_is_due_sooner_does_not_wait_for_what_is_due_later(errands):
    done: list[str] = []
    errands.add(lambda: done.append("later"), after=0.5)
    errands.add(lambda: done.append("latest"), after=60)
    began = time.monotonic()
    errands.add(lambda: done.append("now"))
    eventually(lambda: done == ["now"], "it is done at once")
    assert elapsed(began) < 0.4
    eventually(lambda: done == ["now", "later"], "the later one is done in its time")


def test_a_process_that_ends_waits_only_for_what_is_due(errands):
    done: list[str] = []
    errands.add(lambda: done.append("later"), after=60)
    errands.add(lambda: time.sleep(0.2) or done.append("now"))
    began = time.monotonic()
    errands.finish()
    assert done == ["now"]
    assert elapsed(began) < 1


def test_what_the_server_did_not_hear_is_tried_again_behind_what_is_due(errands):
    done: list[str] = []

    def fails_once() -> None:
        done.append("fails")
        if len(done) == 1:
            errands.add(lambda: done.append("other"))
            raise LockUnavailable("key", None, "no answer")

    errands.add(fails_once)
    eventually(lambda: len(done) == 3, "all are done")
    assert done == ["fails", "other", "fails"]


def test_an_errand_is_given_up_and_an_error_does_not_stop_the_others(errands, monkeypatch, caplog):
    monkeypatch.setattr(module, "TRY_AGAIN", 0.01)
    tries: list[float] = []

    def never() -> None:
        tries.append(time.monotonic())
        raise LockUnavailable("key", None, "no answer")

    errands.add(never, most=0.2)
    errands.add(lambda: 1 / 0)
    eventually(lambda: not errands._alarms, "nothing is left")
    assert len(tries) > 1
    assert "unexpected error" in caplog.text


def test_many_threads_add_errands_and_each_is_done_once(errands):
    done: list[int] = []

    def add_some(first: int) -> None:
        for number in range(first, first + 200):
            errands.add(lambda number=number: done.append(number))
            if number % 10 == 0:
                time.sleep(0.001)  # the thread may end in between

    callers = [threading.Thread(target=add_some, args=(1000 * i,)) for i in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    eventually(lambda: len(done) == 1000, "all are done")
    assert len(set(done)) == 1000


def test_a_forked_child_has_errands_of_its_own(errands):
    errands.add(lambda: None, after=60)
    if not (pid := os.fork()):
        try:
            done: list[int] = []
            alone = not errands._heap
            errands.add(lambda: done.append(1))
            give_up = time.monotonic() + 5
            while not done and time.monotonic() < give_up:
                time.sleep(0.01)
            os._exit(0 if alone and done else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(errands._heap) == 1
