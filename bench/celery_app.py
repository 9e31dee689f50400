"""The app of the benchmarks' workers and senders: one contender in each process."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import time
from typing import Any

import redis
from celery import Celery, signals

from .contenders import NOTES_DB, contender
from .locks import Socket

CONF = json.loads(os.environ["TEST_CONF"])
URL = CONF["bench_url"]

app = Celery("bench")
app.conf.update({key: value for key, value in CONF.items() if not key.startswith("bench_")})
_notes = redis.Redis.from_url(f"{URL}/{NOTES_DB}")
_contender = contender(CONF["bench_contender"])
_lock_url = f"{CONF['bench_lock_url']}/0"


@app.task(name="mark", ignore_result=True)
def mark(label: str) -> None:
    """Note the time at which this task is run."""
    at = time.monotonic()
    _notes.rpush(label, at)


@app.task(name="plain", ignore_result=True)
def plain(number: int) -> None:
    """Do nothing, protected by nothing."""


@app.task(name="asks", ignore_result=True)
def asks(number: int) -> None:
    """Ask the locks' server one thing, as cheaply as can be: no lock can be looked at for less."""
    _socket_of(os.getpid())(b"GET", b"nothing")


@functools.cache
def _socket_of(pid: int) -> Socket:
    return Socket(_lock_url)


def noop(number: int) -> None:
    """Do nothing."""


def work(label: str, seconds: float) -> None:
    """Note when it starts and ends."""
    _notes.rpush(f"start:{label}", time.monotonic())
    time.sleep(seconds)
    _notes.rpush(f"end:{label}", time.monotonic())


def hold(label: str) -> None:
    """Run until told otherwise."""
    _notes.rpush(f"start:{label}", time.monotonic())
    try:
        while not _notes.blpop([f"stop:{label}"], 1):  # below the client's own timeout
            pass
    finally:
        _notes.rpush(f"end:{label}", time.monotonic())


noop_task: Any = _contender.define(app, _lock_url, "noop", noop)
work_task: Any = _contender.define(app, _lock_url, "work", work)
hold_task: Any = _contender.define(app, _lock_url, "hold", hold)


@signals.worker_ready.connect
def _ready(sender: Any, **_: Any) -> None:
    # To the real stdout: Celery would log what is printed, and logging is off from here on.
    print(f"{sender.hostname} ready.", file=sys.__stdout__, flush=True)
    _be_quiet()


@signals.worker_process_init.connect
def _be_quiet(**_: Any) -> None:
    """Two lines at INFO for each task would hide what is measured."""
    logging.disable(logging.ERROR)
