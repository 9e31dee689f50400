"""What a duplicate ends in: the contract's table, on a real worker."""

from __future__ import annotations

import datetime
import decimal
import re
import uuid

import pytest
from celery import VERSION, chain, chord
from celery.exceptions import ChordError, TaskRevokedError

from celery_redislock import LockConflict, RedisLock, SingletonTask, TaskSkipped
from tests.support.servers import Proxy
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

QUEUE = "outcomes"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=4)


@pytest.fixture
def sig(sender):
    """A signature by name."""

    def sig(name, *args, **kwargs):
        return sender.signature(name, args=args, kwargs=kwargs).set(queue=QUEUE)

    return sig


@pytest.fixture
def holder(hold_open):
    """A run that holds the label's lock until it is let go, or the test ends."""
    return hold_open


def test_a_skipped_duplicate_is_revoked_and_names_the_holder(send, holder, journal, label):
    first = holder("skip")
    duplicate = send("skip", label)
    with pytest.raises(TaskSkipped) as caught:
        duplicate.get(timeout=20)
    assert isinstance(caught.value, TaskRevokedError)
    assert duplicate.state == "REVOKED"
    assert caught.value.holder.task_id == first.id
    assert caught.value.holder.task == "skip"
    assert caught.value.key.startswith("redislock:{")
    journal.let_go(first.id)
    assert first.get(timeout=20)[0] == label
    assert journal.count(label, "start") == 1


def test_a_skip_with_a_result_succeeds_with_it(send, holder, label):
    holder("skip_result")
    duplicate = send("skip_result", label)
    assert duplicate.get(timeout=20) == "skipped"
    assert duplicate.state == "SUCCESS"


def test_a_deferred_duplicate_runs_later_under_its_own_id(worker, send, holder, journal, label):
    first = holder("defer")
    duplicate = send("defer", label, 0.1)
    eventually(lambda: f"[{duplicate.id}] deferred" in worker.log(), "it is deferred")
    journal.let_go(first.id)
    assert first.get(timeout=20)
    assert duplicate.get(timeout=20)
    assert [e.task_id for e in journal.read(label, "start")] == [first.id, duplicate.id]
    assert journal.overlaps(label) == []
    assert {e.retries for e in journal.read(label)} == {0}


def test_a_waiting_task_starts_at_the_release_and_not_by_polling(send, holder, journal, label):
    first = holder("wait_long")
    waits = send("wait_long", label, 0.0)
    never(waits.ready, "it runs beside the holder", 0.5)
    journal.let_go(first.id)
    waits.get(timeout=60)

    ended, began = journal.read(label, "end")[0].at, journal.read(label, "start")[1].at
    assert began - ended < 10, "by itself it looks again after a third of the ttl of a minute"


def test_a_refused_duplicate_fails_with_key_and_holder(send, holder, label):
    first = holder("refuse")
    duplicate = send("refuse", label)
    with pytest.raises(LockConflict) as caught:
        duplicate.get(timeout=20)
    assert duplicate.state == "FAILURE"
    assert caught.value.holder.task_id == first.id
    assert caught.value.holder.ttl <= 6


def test_a_refused_duplicate_leaves_no_traceback_in_the_log_and_calls_its_errback(
    worker, send, sig, holder, journal, label
):
    holder("refuse")
    other = f"{label}-errback"
    errback = sig("skip", other).set(immutable=True)
    duplicate = send("refuse", label, link_error=errback)
    with pytest.raises(LockConflict):
        duplicate.get(timeout=20)
    eventually(lambda: journal.count(other, "start") == 1, "the errback runs")
    assert "LockConflict: the lock is held" in duplicate.traceback
    log = worker.log()
    lines = [line for line in log.splitlines() if duplicate.id in line]
    assert [line for line in lines if "INFO/" not in line] == []
    (line,) = [line for line in lines if f"[{duplicate.id}] raised: " in line]
    assert not log.partition(line)[2].lstrip().startswith("Traceback")


def test_a_chord_with_a_skipped_duplicate_fails_fast(sig, holder, label):
    holder("skip")
    header = [sig("skip", label), sig("add", f"{label}-other", 1)]
    with pytest.raises(Exception, match=r"(?i)skipped|dependency"):
        chord(header, sig("total"))().get(timeout=20)


def test_a_chord_with_a_duplicate_that_has_a_result_goes_on(sig, holder, label):
    holder("skip_result")
    header = [sig("skip_result", label), sig("add", f"{label}-other", 1)]
    assert chord(header, sig("total"))().get(timeout=20) == 2


@pytest.mark.parametrize(
    ("name", "then", "goes_on"),
    [
        ("skip", "skipped", False),
        ("skip_result", "skipped", True),
        ("refuse", "raised", False),
        ("defer", "deferred", True),
        ("queued", "queued", True),
        ("queued", "queued, and revoked", False),
        ("coalesced", "coalesced, and replaced", False),
        ("coalesced_uuid", "coalesced, and replaced", True),
        ("replaced_sometime", "replacing, and replaced", False),
    ],
)
def test_a_chord_in_the_header_of_a_chord_ends_as_its_members_do(
    worker, sender, sig, holder, journal, label, name, then, goes_on
):
    """Both are called once, or fail."""
    first, member = holder(name), sig(name, label)
    task_id = member.freeze().id
    inner, outer = (sig("heard", "called", f"{label}-{which}") for which in ("inner", "outer"))
    header = chord([member, sig("add", f"{label}-a", 1)], inner.set(immutable=True))
    result = chord([header, sig("add", f"{label}-b", 1)], outer.set(immutable=True))()
    first_end, _, second_end = then.partition(", and ")
    eventually(lambda: f"[{task_id}] {first_end}" in worker.log(), "it met the holder")
    if second_end == "replaced":
        sig(name, label).apply_async()
        said = rf"\[{task_id}\] (was )?replaced"  # with a result, a worker ends it
        eventually(lambda: re.search(said, worker.log()), "a newer call replaced it")
    elif second_end == "revoked":
        sender.control.revoke(task_id)
    journal.let_go(first.id)
    if goes_on:
        result.get(timeout=20)
    else:
        with pytest.raises(ChordError, match=task_id):
            result.get(timeout=20)
    calls = [journal.count(f"{label}-{which}", "heard") for which in ("inner", "outer")]
    assert calls == ([1, 1] if goes_on else [0, 0])


@pytest.mark.parametrize("name", ["skip", "skip_result"])
def test_a_callback_in_the_header_of_a_chord_that_is_a_duplicate_ends_it(
    sig, holder, journal, label, name
):
    holder(name)
    header = [sig("add", f"{label}-{number}", 1) for number in range(2)]
    inner = chord(header, sig(name, label).set(immutable=True))
    outer = chord([inner, sig("add", f"{label}-b", 1)], sig("heard", label=label))()
    if name == "skip_result":
        assert outer.get(timeout=20) == ["skipped", 1]
    else:
        # Celery raises the member's own error if it looks at that first, else the chord's.
        with pytest.raises((TaskSkipped, ChordError), check=lambda exc: "TaskSkipped" in repr(exc)):
            outer.get(timeout=20)
    assert journal.count(label, "heard") == (name == "skip_result")


def test_a_chain_behind_a_skipped_duplicate_fails_fast(sig, holder, label):
    holder("skip")
    result = chain(sig("skip", label), sig("total"), sig("total"))()
    with pytest.raises(TaskRevokedError):
        result.parent.parent.get(timeout=20)
    # Nobody who waits for a later link may hang.
    with pytest.raises(Exception, match=r"(?i)skipped|chain|revoked|error"):
        result.get(timeout=20, disable_sync_subtasks=False)


def test_an_errback_is_not_called_for_a_skip(sig, holder, journal, label):
    holder("skip")
    duplicate = sig("skip", label).on_error(sig("failed", label=label)).apply_async()
    with pytest.raises(TaskSkipped):
        duplicate.get(timeout=20)
    never(lambda: journal.read(label, "errback"), "the errback was called", 1.0)


@pytest.mark.skipif(
    VERSION < (5, 6), reason="Celery 5.5 hears no more of a task that a lost connection cancelled"
)
def test_a_skip_outlasts_what_celery_stores_when_the_brokers_connection_is_lost(
    own_redis, start_worker, conf, queue, journal, label
):
    """The child has ended the duplicate, and its main process hears of the loss first."""
    broker_url = f"{own_redis.url}/1"
    with Proxy(own_redis.port) as proxy, make_app({**conf, "broker_url": broker_url}) as app:
        cancels = {
            "broker_url": proxy.in_front_of(broker_url),
            "worker_cancel_long_running_tasks_on_connection_loss": True,
        }
        start_worker(queues=queue, conf=cancels)
        with RedisLock(conf["redislock_url"], label, ttl=60):
            task_id = app.send_task("lingers", [label], queue=queue).id

            def is_now(state):
                return app.AsyncResult(task_id).state == state  # a result remembers an end

            journal.let_go(task_id)
            eventually(lambda: is_now("REVOKED"), "the child has ended it")
            proxy.cut_off()
            eventually(lambda: is_now("RETRY"), "the main process cancels it")
            proxy.reconnect()
            # The copy that the broker delivers again is not let go.
            journal.let_go(task_id)
            eventually(lambda: is_now("REVOKED"), "it has ended all the same")


def test_a_deferred_duplicate_keeps_everything(sig, holder, journal, label):
    parent, expires = str(uuid.uuid4()), datetime.datetime.now(datetime.timezone.utc)
    options = {
        "headers": {"mine": "kept"},
        "expires": expires + datetime.timedelta(minutes=5),
        "priority": 3,
        "shadow": "shade",
        "time_limit": 100,
        "soft_time_limit": 90,
        "parent_id": parent,
        "root_id": parent,
        "group_id": "group",
        "group_index": 2,
        "retries": 1,
        "link": sig("total"),
        "link_error": sig("failed", label=label),
        "stamped_headers": ["stamp"],
        "stamp": "s",
    }
    first = holder("describes")
    deferred = sig("describes", label).apply_async(**options)
    undisturbed = sig("describes", f"{label}-other").apply_async(**options)
    never(deferred.ready, "it runs beside the holder", 0.3)
    journal.let_go(first.id)
    told = deferred.get(timeout=20)
    assert told == undisturbed.get(timeout=20)
    assert told["headers"]["mine"] == "kept"
    assert "redislock" not in told["headers"]
    assert (told["retries"], told["priority"], told["queue"]) == (1, 3, QUEUE)
    assert (told["parent_id"], told["root_id"]) == (parent, parent)
    assert journal.count(label, "start") == 2


def test_a_call_that_does_not_fit_fails_as_celerys_own_and_leaves_no_lock(send, locks_of, label):
    result = send("add", label)
    with pytest.raises(TypeError, match="missing"):
        result.get(timeout=20)
    assert not locks_of(result.id)


def test_the_key_is_the_same_at_the_sender_and_at_the_worker(sender):
    @sender.task(base=SingletonTask, name="echo")
    def echo(*args, **kwargs): ...

    args = (
        1,
        datetime.datetime(2026, 11, 20, 12, 30, tzinfo=datetime.timezone.utc),
        decimal.Decimal("1.50"),
        uuid.UUID(int=7),
        b"bytes",
        (1, 2),
        {1: "one"},
    )
    when = datetime.date(2026, 11, 20)
    result = sender.send_task("echo", args, {"when": when}, queue=QUEUE)
    assert result.get(timeout=20) == echo.lock_key_for(*args, when=when)


def test_what_sees_the_lock(send, journal, label):
    """The body and `before_start` run under it, `on_success` after it, a thread beside it."""
    result = send("hooked", label)
    assert result.get(timeout=20) == {"body": True, "thread": False}
    (before,) = journal.read(label, "before_start")
    assert before.data == result.id
    (after,) = eventually(lambda: journal.read(label, "on_success"), "it has succeeded")
    assert after.data is None
