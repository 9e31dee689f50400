"""What is not the same on every platform: the clock, and forks."""

from __future__ import annotations

import os
import time

import pytest

from celery_redislock.protocol import clock, platform


@pytest.mark.parametrize("lacks", [(), ("CLOCK_BOOTTIME",), ("CLOCK_BOOTTIME", "clock_gettime")])
def test_the_clock_is_no_python_function_on_any_platform(monkeypatch, lacks) -> None:
    for name in lacks:
        monkeypatch.delattr(time, name)

    found = clock._longest()

    assert type(found).__module__ in ("functools", "builtins")
    before = found()
    time.sleep(0.01)
    assert found() > before


def test_a_fork_hook_is_no_error_where_nothing_forks(monkeypatch) -> None:
    monkeypatch.delattr(os, "register_at_fork")

    platform.at_fork(after_in_child=lambda: None)
