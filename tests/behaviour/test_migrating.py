"""The examples of the pages on migrating do what these say, in a real worker."""

from __future__ import annotations

import re

import pytest

from celery_redislock import LockConflict
from tests.support.migrated import IMPORT, PAGES, App, define, examples, gate
from tests.support.waiting import eventually

QUEUE = "migrated"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(app="tests.support.migrated", queues=QUEUE, concurrency=4)


@pytest.fixture(scope="module")
def after(conf):
    """The examples, as a sender has them: the tasks' code, and no worker."""
    app = App("sender", set_as_current=False)
    app.conf.update({k: v for k, v in conf.items() if not k.startswith("test_")})
    app.conf.task_default_queue = QUEUE
    return define(app, conf)


@pytest.fixture
def starts(journal, label):
    """The ids of the tasks that worked on the label, in order."""

    def starts():
        return [entry.task_id for entry in journal.read(label, "start")]

    return starts


@pytest.fixture
def running(starts):
    """Waits until so many runs have started."""

    def running(count=1):
        eventually(lambda: len(starts()) >= count, f"{count} started")

    return running


@pytest.fixture
def end(redis_server, label):
    """Lets all work end, and returns the results."""

    def end(*results):
        with redis_server.client(db=3) as client:
            client.set(gate(label), "open", ex=300)
        return [result.get(timeout=40) for result in results]

    return end


def test_every_library_of_the_page_has_an_example():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    headings = re.findall(r"^## From (\S+)", text, re.M)
    named = [name for name in examples() if not name.startswith(IMPORT)]
    assert named[:-1] == headings[:-1]
    assert named[-1] == "own"


# -- celery-once ------------------------------------------------------------------------------


def test_once_a_duplicate_is_not_sent_and_gets_the_result_of_the_one_that_stands(
    after, label, starts, running, end
):
    sync = after["celery-once"].sync
    first = sync.delay(label)
    assert sync.delay(label, force=True).id == first.id, "while it is queued, or runs"
    running()
    assert sync.delay(account_id=label).id == first.id, "while it runs"

    end(first)
    second = sync.delay(label)

    assert second.id != first.id
    end(second)
    assert starts() == [first.id, second.id]


def test_once_unlocked_before_the_run_another_may_be_sent_during_it(
    after, label, starts, running, end
):
    rebuild = after["celery-once"].rebuild
    first = rebuild.apply_async((label,), countdown=2)
    with pytest.raises(LockConflict) as caught:
        rebuild.delay(label)
    assert caught.value.holder.task_id == first.id
    assert caught.value.holder.ttl > 0
    running()
    second = rebuild.delay(label)
    end(first, second)
    assert starts() == [first.id, second.id]


# -- celery-singleton -------------------------------------------------------------------------


def test_singleton_a_duplicate_is_refused_when_it_is_sent(after, label, starts, running, end):
    sync = after["celery-singleton"].sync
    first = sync.delay(label)
    running()
    with pytest.raises(LockConflict) as caught:
        sync.delay(label, force=True)
    assert caught.value.holder.task_id == first.id
    end(first)
    eventually(lambda: sync.lock_holder(label) is None, "it is free again")
    assert starts() == [first.id]


# -- celery-heimdall --------------------------------------------------------------------------


def test_heimdall_a_duplicate_gets_the_result_of_the_one_that_stands(after, label, running, end):
    sync = after["celery-heimdall"].sync
    assert sync.lock_key_for(label).endswith(f":lock:account-{label}")
    first = sync.delay(label)
    running()
    assert sync.delay(label, force=True).id == first.id
    end(first)


def test_heimdall_after_a_run_the_key_stays_for_a_while(after, label, starts, end):
    refresh = after["celery-heimdall"].refresh
    end(refresh.delay(label))
    assert refresh.lock_holder(label).cooling_down
    assert 0 < refresh.lock_holder(label).ttl <= 60
    duplicate = refresh.delay(label)
    eventually(lambda: duplicate.state == "REVOKED", "it is skipped")
    assert len(starts()) == 1


def test_heimdall_part_of_a_body_runs_once_in_so_many_seconds(after, label, starts, end):
    for _ in range(3):
        end(after["celery-heimdall"].tidy.delay(label))
    assert len(starts()) == 1


# -- celery-once-task -------------------------------------------------------------------------


def test_once_task_one_waits_while_one_runs_and_then_runs(
    after, label, starts, running, journal, end
):
    sync = after["celery-once-task"].sync
    first = sync.delay(label)
    running()
    last = sync.delay(label)
    end(first, last)
    assert starts() == [first.id, last.id]
    assert journal.overlaps(label) == []


def test_once_task_a_duplicate_fails_in_the_worker(after, label, running, end):
    export = after["celery-once-task"].export
    first = export.delay(label)
    running()
    with pytest.raises(LockConflict):
        export.delay(label).get(timeout=20)
    end(first)


# -- a lock of one's own ----------------------------------------------------------------------


def test_own_a_feed_that_is_being_imported_is_left_alone(after, label, starts, running, end):
    import_feed = after["own"].import_feed
    first = import_feed.delay(label)
    running()
    assert import_feed.delay(label).get(timeout=20) == "is being imported"
    assert end(first) == [None]
    assert starts() == [first.id]


def test_own_every_charge_runs_and_part_of_another_body_waits_for_them(
    after, label, starts, running, journal, end
):
    first = after["own"].charge.delay(label)
    running()
    second = after["own"].charge.delay(label)
    night = after["own"].nightly.delay(label)
    eventually(lambda: journal.count(f"{label}-unlocked", "start"), "what needs no lock runs")
    end(first, second, night)
    assert sorted(starts()) == sorted([first.id, second.id, night.id])
    assert journal.overlaps(label) == []
