"""The beat kit, with real beats, and with one too many: no overlap, no second run for one tick, no
run for a late one, and a job that hangs is noticed.
"""

from __future__ import annotations

import contextlib
import re
import time
from itertools import pairwise

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


def test_a_job_that_is_sent_too_often_does_not_overlap_itself(worker, start_beats, journal, label):
    start_beats("skip", 0.5, 1.6)
    eventually(lambda: journal.count(label, "end") >= 3, "the job ran three times", 60)
    assert journal.overlaps(label) == []
    ran = {entry.task_id for entry in journal.read(label)}
    held_by = re.findall(r"skipped: \S+ is held by skip\[(\S+)\]", worker.log())
    assert ran & {*held_by}, "what was sent in between"


def test_a_tick_that_two_beats_fire_runs_once(worker, start_beats, journal, label):
    beats = start_beats("ticks", 2, 0.0)

    def sent():
        return [beat.log().count("Sending due task") for beat in beats]

    eventually(lambda: min(sent()) >= 3, "each beat fires each tick", 60)
    eventually(lambda: journal.count(label, "end") >= 4, "the job ran four times", 60)
    # When each had its lock, in us: a body may write its start down later than another.
    ran = [entry.data["fence"] for entry in journal.read(label, "start")]
    assert len(ran) <= max(sent()) + 1
    assert all(later - earlier >= 1.5 * 10**6 for earlier, later in pairwise(ran))
    said = re.findall(r"skipped: \S+ is held by ticks\[(\S+)\]", worker.log())
    assert {entry.task_id for entry in journal.read(label)} & set(said), "a skip names the run"


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
    pattern = r"(INFO|WARNING)/.* skipped: \S+ is held by (\S+) on \S+ pid .*"

    def said():
        return re.findall(pattern, worker.log())

    (run,) = eventually(lambda: journal.read(label, "start"), "it runs")
    holder = f"skip_warned[{run.task_id}]"
    eventually(lambda: said().count(("WARNING", holder)) >= 3, "it is warned of", 60)
    assert ("INFO", holder) in said(), "and not at once"


def test_ticks_that_end_in_an_outage_of_the_lock_server_are_an_error_once_and_name_the_cause(
    start_worker, start_beats, own_redis, queue, journal, label
):
    conf = {"redislock_url": f"{own_redis.url}/0"}
    worker = start_worker(queues=queue, conf=conf, concurrency=1)
    own_redis.kill()
    start_beats("skip", 0.4, 0.0, 1, queue, expires=1)

    def ended():
        return re.findall(r"(\w+)/\S+ redislock: skip\[\S+\] ends as expired(.*)", worker.log())

    eventually(lambda: len(ended()) >= 5, "ticks end without a run", 60)
    levels = [level for level, _ in ended()]
    assert levels == ["ERROR"] + ["WARNING"] * (len(levels) - 1)
    assert all("the lock server is not available" in why for _, why in ended())
    assert all("connecting to" in why or "just broke" in why for _, why in ended()), ended()
    assert starts(journal, label) == []
