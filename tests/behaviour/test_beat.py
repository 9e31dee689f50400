"""The beat kit, with real beats, and with one too many: no overlap, no second run for one tick, no
run for a late one, and a job that hangs is noticed.
"""

from __future__ import annotations

import contextlib
import re
import time

import pytest

from tests.support.waiting import eventually
from tests.support.workers import Process

QUEUE = "beat"
COMMON = ("--max-interval", "1", "-l", "INFO")


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


@pytest.fixture
def start_beats(conf, label, tmp_path):
    """Starts beats that send a job of the label's, each with a schedule of its own."""
    started, stack = [], contextlib.ExitStack()

    def start(task, every, seconds, beats=2, queue=QUEUE, **options):
        job = {"task": task, "label": label, "every": every, "seconds": seconds, "options": options}
        beat_conf = {**conf, "task_default_queue": queue, "test_beat": job}
        for number in range(beats):
            schedule = str(tmp_path / f"schedule-{number}")
            beat = Process("beat", "-s", schedule, *COMMON, conf=beat_conf)
            started.append(stack.enter_context(beat))
        return started

    with stack:
        yield start


def starts(journal, label):
    return [entry.at for entry in journal.read(label, "start")]


def test_ticks_that_come_too_late_are_dropped(
    start_worker, start_beats, redis_server, queue, journal, label
):
    """No worker is there for a while; the one that comes does not run what was missed."""
    (beat,) = start_beats("skip", 0.5, 0.0, 1, queue, expires=1)
    with redis_server.client(db=1) as broker:
        eventually(lambda: broker.llen(queue) >= 4, "four ticks wait in the queue", 60)
        beat.close()
        last = time.monotonic()
        eventually(lambda: time.monotonic() - last > 1.1, "the last of them is late too")
        worker = start_worker(queues=queue)
        eventually(lambda: broker.llen(queue) == 0, "the queue is empty")
        eventually(lambda: worker.log().count("Discarding revoked task") >= 4, "they are dropped")
    assert starts(journal, label) == []


def test_a_job_that_hangs_is_noticed(worker, start_beats, journal, label):
    """By each tick that finds it running for longer than ten times its `lock_ttl`."""
    start_beats("skip_warned", 0.4, 30.0, 1)
    pattern = r"(INFO|WARNING)/.* skipped: \S+ is held by (\S+) on .* since [^ ,]+(, for \d+ s)?$"

    def said():
        return re.findall(pattern, worker.log(), re.M)

    def warned():
        return [holder for level, holder, since in said() if level == "WARNING" and since]

    holder = eventually(warned, "it is warned of", 60)[0]
    runs = [f"skip_warned[{run.task_id}]" for run in journal.read(label, "start")]
    assert holder in runs
    assert ("INFO", holder, "") in said(), "and not at once"
