"""Tasks that come down another road than ours: a worker says so, or does not start."""

from __future__ import annotations

import re

import pytest

from tests.support.waiting import eventually

APP = "tests.behaviour.apps.unlocked"


def start(start_worker, queue, fault, pool="solo", wait=True, **conf):
    conf = {"test_fault": fault, **conf}
    return start_worker(app=APP, pool=pool, queues=queue, conf=conf, wait=wait)


def test_a_worker_names_each_task_with_options_and_without_the_base_once(start_worker, queue):
    log = start(start_worker, queue, "forgotten", pool="prefork").log()
    said = re.findall(r"(\w+)/MainProcess\] redislock: task (\w+) sets (.*?), and takes no", log)
    assert said == [("WARNING", "forgotten", "lock_key and on_conflict")]
    assert log.count("forgotten sets") == 1
    assert "redislock: locks of 1 task on" in log


def test_a_protected_task_that_a_strategy_calls_by_itself_ends_the_worker(start_worker, queue):
    protected = {"batch*": {"lock_ttl": 5}}
    worker = start(start_worker, queue, "batches", wait=False, redislock_tasks=protected)
    assert worker.wait(60) != 0
    assert "task batched: Strategy='Batches.Strategy' is not accepted" in worker.log()


def test_a_tracer_that_is_not_celerys_ends_the_worker(start_worker, queue):
    worker = start(start_worker, queue, "tracer", pool="prefork", wait=False)
    assert worker.wait(60) != 0
    assert "task locked: its tracer is tests.behaviour.apps.unlocked's" in worker.log()
    assert "ready." not in worker.log()


@pytest.mark.parametrize(
    ("loggers", "level", "said"),
    [
        (["celery"], "INFO", r"^WARNING celery\.worker redislock: "),
        ([], "INFO", r"^WARNING root redislock: "),
        ([], "ERROR", r"^redislock: "),
    ],
)
def test_a_worker_whose_log_leaves_ours_out_says_so_once_on_the_way_that_is_left(
    start_worker, queue, loggers, level, said
):
    worker = start(
        start_worker, queue, "logging", test_loggers=loggers, test_level=level, wait=False
    )
    eventually(lambda: "disabled" in worker.log(), "it is said", 60)
    (line,) = re.findall(rf"{said}.*disabled.*$", worker.log(), re.M)
    assert "disable_existing_loggers" in line


def test_a_worker_whose_log_has_ours_says_nothing_of_that(start_worker, queue):
    loggers = ["celery", "celery_redislock"]
    log = start(start_worker, queue, "logging", test_loggers=loggers, test_level="INFO").log()
    assert "INFO celery_redislock redislock: locks of 1 task on" in log
    assert "disable_existing_loggers" not in log
