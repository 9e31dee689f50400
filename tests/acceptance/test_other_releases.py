"""A worker of this release beside messages of a newer one."""

from __future__ import annotations

import pytest

from celery_redislock import ConfigError

QUEUE = "other-releases"


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=2)


def test_a_message_of_a_newer_release_is_refused_aloud(worker, sender, journal, label):
    header = {"v": 3, "kept": ["1|x", "y"], "what": "we cannot know"}
    options = {"queue": QUEUE, "headers": {"redislock": header}}
    result = sender.send_task("queued_named", [label, 0.0], **options)
    with pytest.raises(ConfigError, match=r"newer celery-redislock.*version 3.*up to 2"):
        result.get(timeout=20)
    assert journal.count(label, "start") == 0


def test_a_task_that_takes_no_lock_as_it_runs_needs_no_header(worker, sender, journal, label):
    header = {"v": 3, "kept": ["1|x", "y"], "what": "we cannot know"}
    options = {"queue": QUEUE, "headers": {"redislock": header}}
    assert sender.send_task("unique_queued", [label, 0.0], **options).get(timeout=20)
    assert journal.count(label, "start") == 1
