"""Who is the newest is decided by what came last, not by the clock of whom it came to."""

from __future__ import annotations

import pytest

from celery_redislock import TaskReplaced
from tests.behaviour.deliveries.conftest import APP, lines_of
from tests.support.waiting import eventually

SKEWED = "tests.behaviour.apps.skewed"


@pytest.fixture(scope="module")
def queue():
    return "newest"


@pytest.fixture(scope="module", autouse=True)
def right(start_module_worker, queue):
    """A worker whose clock is right."""
    return start_module_worker(app=APP, queues=queue, concurrency=4)


@pytest.fixture(scope="module")
def ahead(start_module_worker, queue):
    """Gives a worker with one slot whose clock is so many seconds ahead, and its queue."""
    made = {}

    def ahead(skew):
        if skew not in made:
            conf = {"test_skew": skew, "worker_prefetch_multiplier": 4}
            where = {"app": SKEWED, "queues": f"{queue}-{skew}", "concurrency": 1}
            made[skew] = start_module_worker(conf=conf, **where)
        return made[skew], f"{queue}-{skew}"

    return ahead


def await_conflict(worker, result, policy):
    """Until that worker has met the lock with it: it waits, or has been ended."""
    word = {"coalesce": "coalesced", "replace": "replacing"}[policy]
    eventually(
        lambda: result.ready() or lines_of(worker, result.id, word), "it has met the held lock"
    )


@pytest.mark.parametrize("skew", [0.5, 5.0])
@pytest.mark.parametrize("policy", ["coalesce", "replace"])
def test_the_last_trigger_gets_its_run_though_the_one_before_came_to_a_clock_ahead(
    right, ahead, send_here, journal, label, started, policy, skew
):
    wrong, there = ahead(skew)
    holder = send_here(policy, label, None)
    started()
    second = send_here(policy, label, queue=there)
    await_conflict(wrong, second, policy)
    last = send_here(policy, label)
    await_conflict(right, last, policy)
    journal.let_go(holder.id)
    assert last.get(timeout=20) == label
    assert holder.get(timeout=10) == label
    with pytest.raises(TaskReplaced) as caught:
        second.get(timeout=10)
    assert caught.value.holder.task_id == last.id
    assert [entry.task_id for entry in journal.read(label, "start")] == [holder.id, last.id]


@pytest.mark.parametrize("skew", [0.5, 5.0])
def test_a_newer_run_replaces_one_on_a_clock_ahead(ahead, send_here, journal, label, started, skew):
    _, there = ahead(skew)
    older = send_here("replaced_late", label, queue=there)
    started()
    newer = send_here("replaced_late", label, 0.1)
    told = eventually(lambda: newer.ready() or journal.count(label, "told"), "it is told to end")
    assert told is not True, "the newer one was ended"
    journal.let_go(older.id)
    assert newer.get(timeout=20) == label


@pytest.fixture(params=[0.0, 5.0], ids=["right clocks", "its clock ahead"])
def kept_back(request, ahead, send_here, journal, label):
    """Sends a task to a busy worker, which keeps it until `let_go`; and lets it look at it."""
    worker, there = ahead(request.param)
    long = send_here("occupies", f"{label}-long", queue=there)
    eventually(lambda: journal.count(f"{label}-long", "start"), "the only slot is taken")

    class KeptBack:
        def send(self, policy):
            self.policy = policy
            self.result = send_here(policy, label, queue=there)
            eventually(lambda: lines_of(worker, self.result.id, "received"), "it is prefetched")
            return self.result

        def let_go(self):
            journal.let_go(long.id)
            await_conflict(worker, self.result, self.policy)

    return KeptBack()


def test_what_was_kept_back_does_not_end_a_newer_one_that_runs(
    send_here, journal, label, started, kept_back
):
    old = kept_back.send("replace")
    newer = send_here("replace", label, None)
    started()
    kept_back.let_go()
    journal.let_go(newer.id)
    assert newer.get(timeout=20) == label
    with pytest.raises(TaskReplaced):
        old.get(timeout=20)
    assert [entry.task_id for entry in journal.read(label, "start")] == [newer.id]


@pytest.mark.parametrize("policy", ["coalesce", "replace"])
def test_what_was_kept_back_does_not_end_a_newer_one_that_waits(
    right, send_here, journal, label, started, kept_back, policy
):
    old = kept_back.send(policy)
    holder = send_here(policy, label, None)
    started()
    newer = send_here(policy, label)
    await_conflict(right, newer, policy)
    kept_back.let_go()
    journal.let_go(holder.id)
    assert newer.get(timeout=20) == label
    eventually(old.ready, "the old one has ended too")
    assert journal.read(label, "start")[-1].task_id == newer.id, "the last trigger runs last"
    assert journal.overlaps(label) == []
