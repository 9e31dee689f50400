"""A retry may end before its earlier attempt has stored RETRY. Its state is the last one."""

from __future__ import annotations

import celery
import pytest

from celery_redislock import RedisLock
from tests.support.waiting import eventually

QUEUE = "late-retries"
APP = "tests.behaviour.apps.late_retries"

needs_retries_by_workers = pytest.mark.skipif(
    celery.VERSION < (5, 7), reason="this Celery does not retry what has lost its process"
)


@pytest.fixture(scope="module", autouse=True)
def workers(start_module_worker, conf):
    late = {"result_backend": f"{APP}.LateRetries+{conf['result_backend']}"}
    options = {"app": APP, "queues": QUEUE, "concurrency": 1, "conf": late}
    return [start_module_worker(**options) for _ in range(2)]


@pytest.fixture
def log(workers):
    return lambda: "".join(worker.log() for worker in workers)


@pytest.fixture
def retry(send, journal, label, log):
    """A task whose retry is sent, and whose first attempt has ended."""

    def retry(name, how="", at_start=lambda result, entry: None):
        result = send(name, label, f"{label}-other", how)
        at_start(result, journal.await_start(label, result.id))
        journal.let_go(result.id)
        eventually(lambda: f"[{result.id}] retry: " in log(), "the first attempt has ended", 15)
        return result

    return retry


@pytest.fixture
def other(conf, label):
    """Holds the lock that the retry needs."""
    with RedisLock(conf["redislock_url"], f"late:{label}-other"):
        yield


def ends_as(state, result):
    return eventually(lambda: result.state == state, "its state is that of the retry", 10)


def test_one_that_is_turned_away_at_once(retry, other):
    assert ends_as("REVOKED", retry("skip"))


@pytest.mark.parametrize("name", ["queue", "unstored"])
def test_one_that_fails_at_once(retry, name):
    assert ends_as("FAILURE", retry(name, "fails"))


def test_one_that_succeeds_at_once(retry):
    assert ends_as("SUCCESS", retry("until_it_starts"))


def test_one_that_expires_at_once(retry):
    assert ends_as("REVOKED", retry("skip", "expires"))


def test_one_that_was_revoked_before_it_was_sent(retry, log):
    def revoke(result, entry):
        result.revoke()
        flagged = f"Tasks flagged as revoked: {result.id}"
        eventually(lambda: log().count(flagged) == 2, "both workers know", 10)

    assert ends_as("REVOKED", retry("skip", at_start=revoke))


@needs_retries_by_workers
def test_one_that_the_main_process_sends_for_a_dead_child(retry, journal):
    def kill(result, entry):
        journal.kill(entry)

    assert ends_as("FAILURE", retry("dies", "fails", at_start=kill))
