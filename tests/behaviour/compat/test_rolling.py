"""A rolling deploy that changes the import: the other package and ours, side by side."""

from __future__ import annotations

import uuid

import pytest

from celery_redislock.compat import celery_once, celery_singleton
from tests.support.waiting import eventually
from tests.support.workers import ROOT

#: Tasks of both packages.
TASKS = ["slow_task", "only_one", "slow_add", "unlocked_task", "do_or_raise", "do_something"]


@pytest.fixture(scope="module")
def sides(conf, redis_server):
    """Both have their locks in one database, as one setting says."""
    here = {**conf, "test_locks": f"{redis_server.url}/5", "redislock_ttl": 2}
    return {side: {**here, "test_side": side} for side in ("theirs", "ours")}


@pytest.fixture
def originals(redis_server):
    """The keys of the other packages' locks."""
    with redis_server.client(db=5) as client:

        def found():
            return {*client.scan_iter("qo_*"), *client.scan_iter("SINGLETONLOCK_*")}

        before = found()
        yield lambda: [*(found() - before)]
        for key in found() - before:
            client.delete(key)


def arguments(name, label):
    return {"slow_add": (label, 5), "only_one": (label, {"b": [1, "x"]})}.get(name, (label,))


@pytest.mark.parametrize("name", TASKS)
def test_a_worker_of_ours_frees_what_an_old_sender_locked(
    theirs, ours, label, end, starts, originals, name
):
    old, args = getattr(theirs, name), arguments(name, label)
    first = old.apply_async(args, queue="compat-ours")
    starts()
    if name == "unlocked_task":
        eventually(lambda: originals() == [], "it is unlocked before it runs")
    else:
        assert len(originals()) == 1
        if name == "do_something":
            assert old.apply_async(args, queue="compat-ours").id == first.id
        else:
            with pytest.raises((theirs.AlreadyQueued, theirs.DuplicateTaskError)):
                old.apply_async(args, queue="compat-ours")
    end(first)
    eventually(lambda: originals() == [], "the old sender's lock is gone")
    second = old.apply_async(args, queue="compat-ours")
    assert second.id != first.id
    end(second)
    eventually(lambda: originals() == [], "again")


def test_what_an_old_sender_locked_for_another_message_stays(theirs, ours, label, end, originals):
    """By its value, celery-singleton says for which task it has locked."""
    waits = theirs.do_or_raise.apply_async((label,), queue=uuid.uuid4().hex)
    other = ours.app.send_task(ours.do_or_raise.name, (label,), queue="compat-ours")
    end(other)
    assert len(originals()) == 1
    with pytest.raises(theirs.DuplicateTaskError, match=waits.id):
        theirs.do_or_raise.delay(label)


@pytest.mark.parametrize("name", ["slow_task", "do_or_raise", "do_something"])
def test_the_order_workers_then_senders_runs_each_task_once_and_leaves_nothing(
    theirs, ours, label, journal, end, originals, name
):
    """The steps of docs/migrating.md: old senders with old and new workers, then new senders."""
    old, new = getattr(theirs, name), getattr(ours, name)
    for queue in ("compat-theirs", "compat-ours"):  # whichever worker has it
        end(old.apply_async((label,), queue=queue))
        eventually(lambda: originals() == [], "nothing is left")
    end(old.apply_async((label,), queue="compat-ours"))
    end(new.apply_async((label,), queue="compat-ours"))
    end(new.apply_async((label,), queue="compat-ours"))
    assert journal.count(label, "start") == 5
    assert new.lock_holder(label) is None
    assert originals() == []
    assert journal.overlaps(label) == []


@pytest.fixture
def old_worker(start_worker, sides, monkeypatch, queue):
    """A worker of their side where this package is not even installed. Returns its queue."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/behaviour/apps/no_plugins"))
    start_worker(app="tests.behaviour.compat.jobs", queues=queue, conf=sides["theirs"])
    return queue


def test_a_new_senders_message_that_an_old_worker_ran_is_in_nobodys_way_once_it_has_a_result(
    ours, old_worker, label, end
):
    """The wrong order."""
    for name in ("slow_task", "do_something"):
        new = getattr(ours, name)
        first = new.apply_async((label,), queue=old_worker)
        end(first)
        assert new.lock_holder(label).queued
        second = new.apply_async((label,), queue="compat-ours")
        assert second.id != first.id
        end(second)
        assert new.lock_holder(label) is None


def test_both_modules_make_the_originals_keys(theirs, ours, label):
    for name in TASKS:
        args = arguments(name, label)
        old, new = getattr(theirs, name), getattr(ours, name)
        if isinstance(new, celery_once.QueueOnce):
            assert new._redislock_original_key(args, {}) == old.get_key(args, {})
        else:
            assert isinstance(new, celery_singleton.Singleton)
            assert new._redislock_original_key(args, {}) == old.generate_lock(old.name, args, {})
