"""Threads stand outside of whatever they do while their process forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from celery_redislock import _forks
from celery_redislock._forks import ForkGate
from tests.support.waiting import eventually, never


@pytest.fixture(scope="module")
def gate() -> ForkGate:
    """One for all: what a fork calls is registered for good."""
    return ForkGate()


def forks(in_child: Callable[[], bool]) -> bool:
    """What a forked child finds."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(not in_child())
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def test_a_child_finds_no_mutex_that_a_thread_had_locked(gate) -> None:
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


def test_a_thread_that_comes_during_a_fork_waits_for_its_end(gate) -> None:
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


def test_a_fork_does_not_wait_for_ever(gate, monkeypatch) -> None:
    monkeypatch.setattr(_forks, "LONGEST_WAIT", 0.1)
    inside, end = threading.Event(), threading.Event()

    def work() -> None:
        with gate:
            inside.set()
            end.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    try:
        # The child has no such thread, and forks itself without a wait.
        assert forks(lambda: not gate._inside and forks(lambda: True))
    finally:
        end.set()
        thread.join()
    assert not gate._inside


def test_a_thread_may_fork_from_within(gate, monkeypatch) -> None:
    monkeypatch.setattr(_forks, "LONGEST_WAIT", 60.0)
    began = time.monotonic()
    with gate:
        assert forks(lambda: True)
    assert time.monotonic() - began < 20
