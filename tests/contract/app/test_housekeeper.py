"""Background work, soon and later, in one thread."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from typing import Any

import pytest

from celery_redislock import LockUnavailable
from celery_redislock.app import housekeeper as module
from celery_redislock.app import processes
from celery_redislock.app.housekeeper import Chore, Housekeeper
from celery_redislock.app.processes import is_alive
from tests.support.interrupts import each_place, in_a_child
from tests.support.waiting import eventually, never


@pytest.fixture
def housekeeper():
    return Housekeeper()


def threads() -> int:
    return sum(each.name == "redislock-housekeeper" for each in threading.enumerate())


def test_a_thousand_errands_that_are_due_later_need_one_thread_which_then_ends(housekeeper):
    done: list[int] = []
    before = threads()
    for number in range(1000):
        housekeeper.add(lambda number=number: done.append(number), after=0.3)
    assert threads() == before + 1
    assert not done
    eventually(lambda: len(done) == 1000, "all are done")
    assert done == sorted(done)
    eventually(lambda: threads() <= before, "the thread ends")


def test_what_is_due_sooner_does_not_wait_for_what_is_due_later(housekeeper):
    done: list[str] = []
    housekeeper.add(lambda: done.append("later"), after=0.5)
    housekeeper.add(lambda: done.append("latest"), after=60)
    housekeeper.add(lambda: done.append("now"))

    eventually(lambda: len(done) == 2, "both are done in their time")
    assert done == ["now", "later"]


def test_a_process_that_ends_waits_only_for_what_is_due(housekeeper):
    done: list[str] = []
    housekeeper.add(lambda: done.append("later"), after=60)
    housekeeper.add(lambda: time.sleep(0.2) or done.append("now"))
    began = time.monotonic()
    housekeeper.finish()
    assert done == ["now"]
    assert time.monotonic() - began < 30


def test_what_the_server_did_not_hear_is_tried_again_behind_what_is_due(housekeeper):
    done: list[str] = []

    def fails_once() -> None:
        done.append("fails")
        if len(done) == 1:
            housekeeper.add(lambda: done.append("other"))
            raise LockUnavailable("key", None, "no answer")

    housekeeper.add(fails_once)
    eventually(lambda: len(done) == 3, "all are done")
    assert done == ["fails", "other", "fails"]


def test_what_talks_to_brokers_holds_up_nothing_that_frees_locks(housekeeper):
    hangs, done = threading.Event(), []
    before = threading.active_count()
    housekeeper.add(hangs.wait, talks=True)
    housekeeper.add(lambda: done.append("published"), talks=True)
    housekeeper.add(lambda: done.append("freed"))
    eventually(lambda: done == ["freed"], "the lock is free")
    assert housekeeper.is_busy
    hangs.set()
    eventually(lambda: done == ["freed", "published"], "it is published then")
    eventually(lambda: threading.active_count() <= before, "both threads end")


def test_an_errand_is_given_up_and_an_error_does_not_stop_the_others(
    housekeeper, monkeypatch, caplog
):
    monkeypatch.setattr(module, "TRY_AGAIN", 0.01)
    tries: list[float] = []

    def never() -> None:
        tries.append(time.monotonic())
        raise LockUnavailable("key", None, "no answer")

    housekeeper.add(never, most=0.2)
    housekeeper.add(lambda: 1 / 0)
    eventually(lambda: len(tries) > 1 and not housekeeper.is_busy, "nothing is left")
    assert len(tries) > 1
    assert "unexpected error" in caplog.text


def without_proc(path: str, **options: Any) -> Any:
    raise FileNotFoundError(path)


#: What a platform lacks, by what is left to tell that a process has ended.
LACKS = {
    "pidfd": (),
    "waitid": ("os.pidfd_open", "proc"),
    "libc": ("os.pidfd_open", "proc", "os.waitid"),
    "proc": ("os.pidfd_open", "os.waitid", "ctypes.CDLL"),
    "no poll": ("select.poll",),
}


@pytest.fixture(params=LACKS)
def process(request, monkeypatch):
    """A process that is watched by what some platform has."""
    for name in LACKS[request.param]:
        if name == "ctypes.CDLL":
            monkeypatch.setattr(name, lambda *_, **__: object())
        elif name == "proc":
            monkeypatch.setattr(processes, "open", without_proc, raising=False)
        else:
            monkeypatch.delattr(name, raising=False)
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_whether_a_process_has_ended_is_told_before_it_is_reaped(process):
    assert is_alive(process.pid)
    process.kill()
    eventually(lambda: not is_alive(process.pid), "it has ended")
    assert process.wait() == -9, "its status is still there for whoever reaps it"
    assert not is_alive(process.pid)


def test_what_is_to_be_done_when_a_process_is_gone_is_done_then(housekeeper, process):
    done: list[str] = []
    before = threads()
    housekeeper.when_gone(process.pid, lambda: done.append("first"), most=1.0)
    housekeeper.when_gone(process.pid, lambda: done.append("instead"), most=1.0)
    housekeeper.add(lambda: done.append("meanwhile"), after=0.2)
    eventually(lambda: done == ["meanwhile"], "the others are done meanwhile")
    process.kill()  # and it stays a zombie
    eventually(lambda: done == ["meanwhile", "instead"], "it is done once")
    eventually(lambda: threads() <= before, "the thread ends")
    housekeeper.when_gone(process.pid, lambda: done.append("at once"), most=1.0)
    eventually(lambda: done[2:] == ["at once"], "it is gone already")


def test_wherever_an_errand_is_interrupted_later_ones_are_done():
    def check() -> None:
        housekeeper = Housekeeper()
        housekeeper.add(lambda: None)  # from here on nothing is done for the first time

        def add() -> None:
            nonlocal housekeeper
            housekeeper = Housekeeper()
            housekeeper.add(lambda: None)

        for where, _ in each_place(add, ("celery_redislock", "threading")):
            done = threading.Event()
            housekeeper.add(done.set)
            eventually(done.is_set, where)

    in_a_child(check)


def test_wherever_a_chore_is_interrupted_it_begins_again():
    def check() -> None:
        rounds: list[str] = []

        def begin() -> None:
            nonlocal chore
            chore = Chore(lambda: rounds.append(""), lambda: False, every=0.0)
            chore.begin()

        begin()
        for where, _ in each_place(begin, ("celery_redislock.app", "celery_redislock.protocol")):
            rounds.clear()
            chore.begin()
            eventually(lambda: rounds, where)

    chore: Any = None
    in_a_child(check)


def test_an_error_of_the_thread_itself_is_logged_and_does_not_end_it(
    housekeeper, process, monkeypatch, caplog
):
    errors = [OSError("too many open files")]
    look = module.Lane._look_at_processes

    def fails_once(own: module.Lane, *args: Any) -> None:
        if errors:
            raise errors.pop()
        look(own, *args)

    monkeypatch.setattr(module.Lane, "_look_at_processes", fails_once)
    done: list[str] = []
    housekeeper.when_gone(process.pid, lambda: done.append("gone"), most=1.0)
    process.kill()
    eventually(lambda: done == ["gone"], "it goes on")
    assert "unexpected error in the housekeeper" in caplog.text


@pytest.mark.parametrize("error", [ValueError("a bug"), LockUnavailable("key", None, "no answer")])
def test_a_chore_goes_on_after_an_error_and_ends_when_no_work_is_left(error):
    left, rounds = [1, 2, 3], []

    def do() -> None:
        rounds.append(left.pop())
        if len(rounds) == 2:
            raise error

    before = threads()
    chore = Chore(do, lambda: bool(left), every=0.0)
    chore.begin()
    chore.begin()  # a round is to come anyway
    eventually(lambda: not left and threads() <= before, "all is done")
    assert rounds == [3, 2, 1]
    left.append(4)
    chore.begin()
    eventually(lambda: rounds[3:] == [4], "it begins anew")


def test_what_the_server_did_not_hear_of_a_process_that_is_gone_is_tried_again(
    housekeeper, process
):
    tries: list[float] = []

    def fails_once() -> None:
        tries.append(time.monotonic())
        if len(tries) == 1:
            raise LockUnavailable("key", None, "no answer")

    housekeeper.when_gone(process.pid, fails_once, most=5.0)
    process.kill()
    eventually(lambda: len(tries) == 2, "it is done")


def test_a_process_that_ends_waits_for_what_follows_the_end_of_its_children(housekeeper, process):
    done: list[str] = []
    housekeeper.when_gone(process.pid, lambda: done.append("gone"), most=1.0)
    housekeeper.finish()
    assert not done, "it lives"
    process.kill()
    eventually(lambda: done or not is_alive(process.pid), "it is gone")
    housekeeper.finish()
    assert done == ["gone"]


def test_what_follows_a_process_that_is_watched_wakes_no_thread(housekeeper, process, monkeypatch):
    """A worker's main process says it for each task that a child begins."""
    done: list[str] = []
    wakes: list[str] = []
    for _ in range(100):
        housekeeper.when_gone(process.pid, lambda: done.append("gone"), most=1.0)
        monkeypatch.setattr(housekeeper._frees, "see_to_it", lambda: wakes.append("again"))
    assert not wakes
    process.kill()
    eventually(lambda: done == ["gone"], "it is done")


#: As uWSGI forks: Python's hooks do not run. It keeps the GIL.
fork_by_c = ctypes.PyDLL(None).fork


@pytest.mark.parametrize("fork", [os.fork, fork_by_c])
def test_a_forked_child_has_errands_of_its_own(housekeeper, fork):
    done: list[int] = []
    housekeeper.add(lambda: done.append(0), after=2)
    # The thread sleeps by then: a child that C forks has threads for ever that waited for the GIL.
    never(lambda: done, "it is done", 0.3)
    if not (pid := fork()):
        try:
            housekeeper.add(lambda: done.append(1))
            give_up = time.monotonic() + 3
            while len(done) < 2 and time.monotonic() < give_up:
                time.sleep(0.01)
            os._exit(0 if done == [1] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    eventually(lambda: done == [0], "the parent does its own")
