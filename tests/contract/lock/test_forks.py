"""Threads stand outside of whatever they do while a worker's main process forks."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from celery_redislock.lock.forks import ForkGate
from tests.support.waiting import eventually, never

#: One for all: what a fork calls is registered for good.
GATE = ForkGate()


@pytest.fixture
def gate() -> Iterator[ForkGate]:
    """A gate that is in use, and open."""
    GATE._reset()
    GATE.use()
    yield GATE
    GATE._reset()


def forks(in_child: Callable[[], bool] = lambda: True) -> bool:
    """What a forked child finds."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(not in_child())
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


@contextlib.contextmanager
def stuck_inside(gate: AbstractContextManager[None]) -> Iterator[None]:
    """A thread that does not come out of the gate."""
    inside, end = threading.Event(), threading.Event()

    def work() -> None:
        with gate:
            inside.set()
            end.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


def seconds(count: int) -> float:
    """How long so many forks take."""
    began = time.monotonic()
    for _ in range(count):
        assert forks()
    return time.monotonic() - began


def test_a_child_finds_no_mutex_that_a_thread_had_locked(gate, monkeypatch) -> None:
    monkeypatch.setattr(f"{ForkGate.__module__}.LONGEST_WAIT", 60.0)
    mutex, end = threading.Lock(), threading.Event()

    def work() -> None:
        while not end.is_set():
            with gate, mutex:
                time.sleep(0.005)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        found = [forks(lambda: mutex.acquire(blocking=False)) for _ in range(20)]
    finally:
        end.set()
        thread.join()
    assert found == [True] * 20


def test_a_thread_that_comes_during_a_fork_waits_for_its_end(gate, monkeypatch) -> None:
    monkeypatch.setattr(f"{ForkGate.__module__}.LONGEST_WAIT", 60.0)
    gate._close()
    inside = threading.Event()

    def work() -> None:
        with gate:
            inside.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        never(inside.is_set, "it is inside", 0.2)
    finally:
        gate._open()
    eventually(inside.is_set, "it is inside")
    thread.join()


def test_a_gate_that_nobody_opened_opens_by_itself(gate, monkeypatch) -> None:
    monkeypatch.setattr(f"{ForkGate.__module__}.LONGEST_WAIT", 0.01)
    gate._close()  # and an exception took the place of `_open`
    with gate:
        assert gate._inside


def test_forks_wait_once_for_a_thread_that_is_stuck(gate, monkeypatch) -> None:
    monkeypatch.setattr(f"{ForkGate.__module__}.LONGEST_WAIT", 1.0)
    with stuck_inside(gate):
        assert seconds(1) >= 1.0
        assert seconds(30) < 25, "once, and not each time"
    assert not gate._inside
    with stuck_inside(gate):  # another visit
        assert seconds(1) >= 1.0


def test_no_fork_waits_where_the_gate_is_not_in_use(gate, monkeypatch) -> None:
    monkeypatch.setattr(f"{ForkGate.__module__}.LONGEST_WAIT", 60.0)
    gate._reset()
    with stuck_inside(gate):
        assert seconds(1) < 20
    gate.use()
    # A child is a process of its own, whose body may fork.
    assert forks(lambda: not gate._in_use and not gate._inside)


def test_a_thread_may_fork_from_within(gate, monkeypatch) -> None:
    monkeypatch.setattr(f"{ForkGate.__module__}.LONGEST_WAIT", 60.0)
    with gate:
        assert seconds(1) < 20


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_it_is_in_use_where_a_worker_forks_its_children(pool, start_worker, sender, queue) -> None:
    worker = start_worker(app="tests.contract.lock.forking", pool=pool, queues=queue)
    inspect = sender.control.inspect([worker.node], timeout=5, limit=1)
    # A worker that says that it is ready has not yet subscribed to what is broadcast.
    told = eventually(lambda: inspect._request("forks_wait"), "it answers")
    assert told == {worker.node: pool == "prefork"}
