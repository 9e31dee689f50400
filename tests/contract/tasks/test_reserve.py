"""Sending a task that is unique while queued: what is reserved, and what is sent."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from celery import chain
from celery.signals import beat_init
from kombu.exceptions import OperationalError

from celery_redislock import (
    ConfigError,
    LockConflict,
    LockUnavailable,
    Queue,
    RedisLock,
    SingletonTask,
    lock_conflict,
)
from celery_redislock.protocol import holders
from celery_redislock.protocol.calls import acquire
from celery_redislock.protocol.claims import Claim
from celery_redislock.protocol.tokens import new_token
from celery_redislock.tasks import reserve
from tests.support.interrupts import interrupted
from tests.support.sending import app, define, length, make_sender, tasks
from tests.support.servers import free_port
from tests.support.waiting import eventually

__all__ = ["app", "length", "tasks"]  # fixtures


@pytest.fixture
def heard():
    """What the signal of conflicts told in this process."""
    told = []

    def hear(sender, details, **kwargs):
        told.append(details)

    lock_conflict.connect(hear)
    yield told
    lock_conflict.disconnect(hear)


def test_a_duplicate_gets_the_result_of_the_one_in_the_queue(tasks, label, length, heard):
    first = tasks.send("unique", label, 0.1)
    again = tasks.send("unique", label, 5.0, "raise")
    assert again.id == first.id
    assert length() == 1
    other = tasks.send("unique", f"{label}-other")
    assert other.id != first.id
    (said,) = heard
    assert (said.outcome, said.holder.task_id, said.holder.queued) == ("not sent", first.id, True)
    assert tasks.unique.lock_holder(label).queued


def test_a_duplicate_may_be_told(tasks, label, length):
    first = tasks.send("unique_or_raise", label)
    with pytest.raises(LockConflict) as caught:
        tasks.send("unique_or_raise", label)
    assert caught.value.holder.task_id == first.id
    assert caught.value.key == tasks.unique_or_raise.lock_key_for(label)
    assert length() == 1


@pytest.mark.parametrize("header", ["celery_beat_task", "periodic_task_name"])
def test_a_schedule_is_not_told_by_an_error(tasks, redis_server, label, length, heard, header):
    """As beat sends, and the action "Run selected tasks" of django-celery-beat's admin."""
    _is_not_told(tasks, label, length, heard, headers={header: "nightly"})


def test_a_beat_whose_messages_say_nothing_is_not_told_either(tasks, label, length, heard):
    """Before Celery 5.7 they do not. What another thread sends is told."""

    def beat() -> None:
        beat_init.send(sender=None)
        _is_not_told(tasks, label, length, heard)

    with ThreadPoolExecutor(1) as its_thread:
        its_thread.submit(beat).result()
    tasks.send("unique_or_raise", label)
    with pytest.raises(LockConflict):
        tasks.send("unique_or_raise", label)


def _is_not_told(tasks, label, length, heard, **options):
    first = tasks.send("unique_or_raise", label, **options)
    assert tasks.send("unique_or_raise", label, **options).id == first.id
    assert [said.outcome for said in heard] == ["not sent"]
    assert length() == 1
    tasks.unique_or_raise.break_lock(label)
    key = tasks.unique_or_raise.lock_key_for(label)
    with RedisLock(tasks.unique_or_raise.app, key.partition(":lock:")[2]):
        assert tasks.send("unique_or_raise", label, **options) is None, "no task has the lock"
    assert length() == 1


def test_delay_and_signatures_come_here_and_a_name_alone_does_not(app, tasks, label, queue, length):
    app.conf.task_default_queue = queue
    try:
        first = tasks.unique.delay(label)
        assert tasks.unique.s(label).delay().id == first.id
        assert tasks.unique.s().apply_async((label,)).id == first.id
        assert length() == 1
        assert app.send_task("unique", (label,)).id != first.id
        assert length() == 2
    finally:
        app.conf.task_default_queue = "celery"


def test_arguments_that_do_not_fit_are_refused_as_celery_does(tasks, client, label):
    with pytest.raises(TypeError, match="label"):
        tasks.send("unique")


def test_a_broker_that_is_away_leaves_no_lock(conf, label):
    app = make_sender(
        conf, broker_url=f"redis://127.0.0.1:{free_port()}/0", task_publish_retry=False
    )
    with pytest.raises((OperationalError, OSError)):
        app.tasks["unique"].delay(label)
    assert app.tasks["unique"].lock_holder(label) is None
    app.close()


def test_an_interrupt_while_the_broker_hangs_leaves_no_lock(conf, own_redis, label):
    app = make_sender(conf, broker_url=own_redis.url)
    app.tasks["unique"].delay(f"{label}-other")  # connected
    own_redis.stop()
    try:
        with interrupted(KeyboardInterrupt, "_put"), pytest.raises(KeyboardInterrupt):
            app.tasks["unique"].delay(label)
    finally:
        own_redis.resume()
    assert app.tasks["unique"].lock_holder(label) is None
    app.close()


def test_while_the_broker_hangs_the_lock_stands_for_a_short_time_only(
    conf, own_redis, label, client, monkeypatch
):
    monkeypatch.setattr(reserve, "PUBLISHING", 1.0)
    app = make_sender(conf, broker_url=own_redis.url)
    task = app.tasks["unique"]
    task.delay(f"{label}-other")
    own_redis.stop()
    sent = []
    thread = threading.Thread(target=lambda: sent.append(task.delay(label)), daemon=True)
    thread.start()
    eventually(lambda: task.lock_holder(label), "it was reserved")
    assert client.pttl(task.lock_key_for(label)) <= 1000
    eventually(lambda: task.lock_holder(label) is None, "it lapsed")
    own_redis.resume()
    thread.join(20)
    assert sent
    assert task.lock_holder(label) is None, "what lapsed is not revived"
    app.close()


def test_a_reservation_whose_task_has_ended_is_taken_over(tasks, label, length, caplog):
    first = tasks.send("unique", label)
    tasks.unique.backend.mark_as_done(first.id, "done", store_result=True)
    again = tasks.send("unique", label)
    assert again.id != first.id
    assert tasks.unique.lock_holder(label).task_id == again.id
    assert f"is kept for {first.id}, which has ended" in caplog.text
    assert tasks.send("unique", label).id == again.id
    assert length() == 2


@pytest.mark.parametrize("follows", [False, True])
def test_behind_a_run_that_ends_its_lock_late_a_call_is_sent_and_behind_another_one_it_is_not(
    tasks, label, length, client, monkeypatch, caplog, follows
):
    task, sleep = tasks.unique, time.sleep
    keys = task.lock_keys_for((label,), {})

    def hold(task_id):
        token, says = new_token(), {"task": "unique", "task_id": task_id}
        value = holders.encode(token, ttl_ms=6000, **says)
        client.delete(keys.lock)
        task.app_locks.server.run(acquire(Claim(keys, token, 6.0, value, task_id)))

    def looks_later(seconds):
        sleep(seconds)
        if follows:
            hold("next")

    hold(label)
    task.backend.mark_as_done(label, "done", store_result=True)
    monkeypatch.setattr(reserve, "LAST_MOMENTS", 0.2)
    monkeypatch.setattr(reserve.time, "sleep", looks_later)
    assert (tasks.send("unique", label).id == "next") is follows
    assert ("which has ended: sent" in caplog.text) is not follows
    assert length() == (not follows)


def test_a_result_from_before_the_reservation_proves_nothing(tasks, label, length):
    """The task is sent again under an id of the caller's own."""
    tasks.unique.backend.mark_as_done(label, "yesterday's", store_result=True)
    first = tasks.send("unique", label, task_id=label)
    assert tasks.send("unique", label).id == first.id
    tasks.unique.backend.mark_as_retry(label, RuntimeError("an earlier attempt"))
    assert tasks.send("unique", label).id == first.id
    assert length() == 1


@pytest.mark.parametrize("name", ["disabled://", "rpc://"])
def test_a_backend_without_stored_results_is_not_asked(conf, label, queue, name, caplog):
    app = make_sender(conf, result_backend=name)
    caplog.set_level("DEBUG", "celery_redislock")
    first, again = (app.tasks["unique"].apply_async((label,), queue=queue) for _ in range(2))
    assert again.id == first.id
    assert "cannot ask" not in caplog.text
    app.close()


def test_a_backend_that_fails_proves_nothing(tasks, label, monkeypatch):
    def fails(*args, **kwargs):
        raise OSError("no backend")

    first = tasks.send("unique", label)
    monkeypatch.setattr(tasks.unique.backend, "get_task_meta", fails)
    assert tasks.send("unique", label).id == first.id


def test_a_duplicates_result_is_ignored_as_the_first_ones_is(app, tasks, label):
    define(app, "unique_ignored", lock_scope="queued+running", ignore_result=True)
    first = tasks.send("unique_ignored", label)
    again = tasks.send("unique_ignored", label)
    assert again.id == first.id
    assert (first.ignored, again.ignored) == (True, True)
    assert again.get(timeout=2) is None
    other = f"{label}-other"
    results = [tasks.send("unique", other, ignore_result=True) for _ in range(2)]
    assert [each.ignored for each in results] == [True, True]
    plain = [tasks.send("unique", f"{label}-plain") for _ in range(2)]
    assert not any(each.ignored for each in plain)


def test_a_send_that_a_leftover_swallows_is_logged_with_who_and_since_when(
    app, tasks, label, caplog
):
    task = define(app, "unique_warned", lock_scope="queued+running", lock_ttl=0.1)
    sent = tasks.send("unique_warned", label)
    later = tasks.send("unique_warned", f"{label}-later", countdown=60)

    def warned():
        assert tasks.send("unique_warned", label).id == sent.id
        assert tasks.send("unique_warned", f"{label}-later").id == later.id
        return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]

    (said,) = eventually(warned, "it is said")
    assert f"not sent: {task.lock_key_for(label)} is held by unique_warned[{sent.id}]" in said
    assert "no worker of this package has taken that message for 1 s" in said


def test_a_message_that_was_lost_frees_the_lock_in_the_end(tasks, label):
    first = tasks.send("unique_lost", label)
    assert tasks.send("unique_lost", label).id == first.id
    eventually(lambda: tasks.unique_lost.lock_holder(label) is None, "it lapsed")
    assert tasks.send("unique_lost", label).id != first.id


@pytest.mark.parametrize("form", ["number", "datetime", "text", "naive"])
def test_an_eta_and_an_expiry_in_any_form_are_counted(app, tasks, label, client, form):
    when = datetime.now(timezone.utc) + timedelta(seconds=100)
    value = {
        "number": 100,
        "datetime": when,
        "text": when.isoformat(),
        "naive": when.replace(tzinfo=None),
    }[form]
    key = tasks.unique_short.lock_key_for(label)
    tasks.send("unique_short", label, **{"countdown" if form == "number" else "eta": value})
    assert 125_000 < client.pttl(key) <= 130_000
    key = tasks.unique.lock_key_for(label)
    tasks.send("unique", label, expires=value)
    assert 95_000 < client.pttl(key) <= 100_000


def test_a_duplicate_with_callbacks_or_an_id_of_its_own_is_sent(tasks, label, length):
    first = tasks.send("unique", label)
    linked = tasks.send("unique", label, link=tasks.sig("unique", label))
    named = tasks.send("unique", label, task_id=f"{label}-id")
    frozen = tasks.sig("unique", label)
    promised = frozen.freeze()
    frozen.apply_async()
    assert len({first.id, linked.id, named.id, promised.id}) == 4
    assert length() == 4
    with pytest.raises(LockConflict):
        tasks.send("unique_or_raise", label)
        tasks.send("unique_or_raise", label, link=tasks.sig("unique", label))


@pytest.mark.parametrize("choice", ["defer", "run", "raise"])
def test_without_the_lock_server_a_sender_does_as_it_is_told(
    conf, label, queue, length, choice, caplog
):
    app = make_sender(conf, redislock_url=f"redis://127.0.0.1:{free_port()}/0")
    task = define(app, "choosy", lock_scope="queued+running", on_redis_error=choice)
    if choice == "raise":
        with pytest.raises(LockUnavailable):
            task.apply_async((label,), queue=queue)
    else:
        task.apply_async((label,), queue=queue)
        assert "sent without a reservation" in caplog.text
    assert length() == (choice != "raise")
    chain(task.si(label).set(queue=queue), task.si(label).set(queue=queue))()
    assert length() == 1 + (choice != "raise"), "a chain is left to the worker"
    app.close()


def test_eager_tasks_reserve_nothing_and_need_no_server():
    app = make_sender({"broker_url": "memory://"}, task_always_eager=True)
    assert app.tasks["unique"].delay("x").successful()
    app.close()


def test_eager_tasks_that_are_to_lock_do_so(conf, label):
    app = make_sender(conf, task_always_eager=True, redislock_eager=True)
    task = app.tasks["unique"]

    @app.task(base=SingletonTask, lock_key=["label"], lock_scope="queued+running", shared=False)
    def outer(label, again=True):
        inner = outer.delay(label)
        return inner.state, inner.id

    assert task.delay(label).successful()
    assert task.lock_holder(label) is None
    assert outer.delay(label).get()[0] == "REVOKED"
    app.close()


def test_an_eager_task_that_is_unique_in_the_queue_alone_may_send_itself_and_leaves_nothing(
    conf, label
):
    app = make_sender(conf, task_always_eager=True, redislock_eager=True)

    @app.task(base=SingletonTask, lock_key=["label"], lock_scope="queued", shared=False)
    def queued(label, again=1):
        held = queued.lock_holder(label, again)
        return [held, *(queued.delay(label, again=0).result if again else [])]

    assert queued.delay(label).result == [None, None]
    assert queued.lock_holder(label) is None
    app.close()


def test_a_disabled_app_reserves_nothing(conf, label, queue):
    app = make_sender(conf, redislock_enabled=False)
    results = {app.tasks["unique"].apply_async((label,), queue=queue).id for _ in range(2)}
    assert len(results) == 2
    app.close()


CONTRADICTIONS = [
    ({"lock_queued_ttl": 60}, "lock_queued_ttl"),
    ({"on_queued_conflict": "raise"}, "on_queued_conflict"),
    ({"lock_scope": "queued", "lock_max_hold": 60}, "lock_max_hold"),
    ({"lock_scope": "queued", "lock_min_hold": 60}, "lock_min_hold"),
    ({"lock_scope": "queued", "on_lock_lost": "abort"}, "on_lock_lost"),
    ({"lock_scope": "queued", "lock_across_retries": "hold"}, "lock_across_retries"),
    ({"lock_scope": "queued", "on_conflict": Queue()}, "on_conflict"),
    ({"lock_scope": "queued", "on_queued_conflict": "publish"}, "on_queued_conflict"),
    ({"lock_scope": "queued+running", "lock_across_retries": "release"}, "lock_across_retries"),
    ({"lock_scope": "queued", "typing": False}, "typing"),
    ({"lock_scope": "queued+running", "typing": False, "lock_key": None}, "typing"),
    ({"lock_scope": "queued", "typing": False, "lock_key": "{label}"}, "typing"),
    ({"lock_scope": "waiting"}, "lock_scope"),
    ({"lock_scope": "queued", "lock_queued_ttl": 0}, "lock_queued_ttl"),
    ({"lock_scope": "queued", "on_queued_conflict": "skip"}, "on_queued_conflict"),
]


@pytest.mark.parametrize(("options", "named"), CONTRADICTIONS, ids=lambda o: str(o)[:60])
def test_what_contradicts_a_scope_is_refused(conf, options, named):
    app = make_sender(conf)
    task = define(app, "contradicts", **options)
    app.finalize()
    with pytest.raises(ConfigError, match="task contradicts: ") as caught:
        task.delay()
    assert f"{named}=" in str(caught.value)
    app.close()


@pytest.mark.parametrize(
    "options",
    [
        {"lock_key": lambda label, *rest: label},
        {"lock_key": "one for all"},
        {"lock_scope": "queued+running", "lock_across_retries": "hold", "typing": True},
    ],
)
def test_what_goes_along_with_a_scope_is_accepted(conf, options):
    app = make_sender(conf)
    define(app, "goes_along", **{"lock_scope": "queued", "typing": False, **options})
    app.finalize()
    assert app.tasks["goes_along"].lock_options.lock_queued_ttl == 3600
    app.close()
