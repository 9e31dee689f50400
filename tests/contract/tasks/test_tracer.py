"""Nothing of ours leaves Celery's tracer: every exit, with a fault of ours at every step."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from functools import wraps
from typing import Any
from unittest import mock

import pytest
from celery import Celery, signals
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.utils import uuid

from celery_redislock import (
    Coalesce,
    Defer,
    Holder,
    LockLost,
    LockUnavailable,
    Policy,
    Queue,
    Raise,
    Replace,
    SingletonTask,
    Skip,
    Wait,
    current_lock,
)
from celery_redislock.app.delivery import KEY, done_key_of
from celery_redislock.app.housekeeper import housekeeper
from celery_redislock.lock.lease import Lease
from celery_redislock.protocol import notes
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.server import Server
from celery_redislock.tasks import act, facts
from celery_redislock.tasks.life import Life
from celery_redislock.tasks.locked import LockedTask
from tests.contract.clocks import clock
from tests.support.interrupts import each_place

#: What is asked of the server: scripts, and queries.
STEPS = ("acquire", "settle", "query", "park")
#: How a run ends, and the state that it has in Celery then.
EXITS = {
    "return": "SUCCESS", "raise": "FAILURE", "ignore": "IGNORED", "reject": "REJECTED",
    "retry": "RETRY", "replace": "IGNORED", "limit": "FAILURE",
}  # fmt: skip
ERRORS: dict[str, Any] = {
    "raise": LookupError("as told"), "ignore": Ignore(), "reject": Reject("as told", requeue=False),
    "limit": SoftTimeLimitExceeded(1),
}  # fmt: skip
POLICIES = {"skip": Skip(), "refuse": Raise(), "defer": Defer(delay=1), "queue": Queue()}


class Fault(Exception):
    """A bug of ours."""


@pytest.fixture(params=[Fault("a bug"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate")])
def fault(request):
    return request.param


@pytest.fixture
def app(redis_server):
    app = Celery("faulty", set_as_current=False)
    app.conf.update(
        redislock_url=f"{redis_server.url}/0",
        broker_url="memory://",
        result_backend="cache+memory://",
    )
    return app


def body(self: Any, label: str, how: str) -> str:
    if how == "retry for":
        raise self.retry(countdown=1, exc=ERRORS[how])
    if how in ERRORS:
        raise ERRORS[how]
    if how == "retry":
        raise self.retry(countdown=1)
    if how == "replace":
        return self.replace(self.app.signature("other"))
    return how


def other() -> None:
    """What replaces it."""


def define(app: Celery, **options: Any) -> Any:
    app.task(name="other", shared=False)(other)
    task = app.task(base=SingletonTask, bind=True, shared=False, name="t", **options)(body)
    task.__trace__ = build_tracer(task.name, task, app=app)
    return task


def trace(task: Any, label: str, how: str = "return", **raw: Any) -> str:
    """The state in which it ends, in a tracer that nothing catches for."""
    args = (label, how)
    request = {
        "id": raw.pop("id", label), "task": "t", "hostname": "w@h", "args": args, "kwargs": {},
        "delivery_info": {"routing_key": "q", "redelivered": True}, **raw,
    }  # fmt: skip
    traced = task.__trace__(request["id"], args, {}, request)
    return "SUCCESS" if traced.info is None else traced.info.state


def from_queue() -> dict[str, Any]:
    """What a worker adds to a message: a token, and the queue from which it came."""
    return {"properties": {KEY: {"token": new_token(), "queue": "q"}}}


def break_step(monkeypatch: pytest.MonkeyPatch, step: str, fault: Exception) -> None:
    run = Server.run

    def fails(server: Server, asked: Any, **options: Any) -> Any:
        script = getattr(asked, "script", "query")
        if step == script:
            raise fault
        return run(server, asked, **options)

    monkeypatch.setattr(Server, "ask" if step == "query" else "run", fails)


def test_the_tracer_is_an_attribute_like_a_plain_tasks(app, label, client):
    """Celery's own tests delete it, and others replace it for a while."""
    task = define(app)
    ours = task.__trace__
    with mock.patch.object(task, "__trace__", build_tracer(task.name, task, app=app)):
        assert task.__trace__ is not ours
        assert trace(task, f"{label}-patched") == "SUCCESS"
    assert task.__trace__ is ours
    wrapped = wraps(ours)(lambda *args: ours(*args))
    task.__trace__ = wrapped
    assert task.__trace__ is wrapped, "it takes the lock already"
    client.set(task.lock_key_for(label, "return"), '{"token":"somebody"}', px=60_000)
    assert trace(task, label) == "IGNORED"
    del task.__trace__
    assert task.__trace__ is None
    with pytest.raises(AttributeError, match="__trace__"):
        del task.__trace__
    task.__trace__ = build_tracer(task.name, task, app=app)
    assert trace(task, label) == "IGNORED"


@pytest.mark.parametrize("is_solo", [True, False])
def test_a_run_in_the_workers_own_process_hands_on_the_key_of_its_done_note(
    app, label, client, is_solo
):
    task = define(app)
    task.acks_after_body = is_solo
    message = from_queue()
    assert trace(task, label, **message) == "SUCCESS"

    (note,) = client.keys(f"{task.lock_key_for(label, 'return')}:*".replace(":lock:", ":done:"))
    assert done_key_of(message) == (note if is_solo else None)


def hold(task: Any, label: str, client: Any) -> None:
    client.set(task.lock_key_for(label, "return"), '{"token":"somebody"}', px=60_000)


def kinds_of_notes(client: Any, label: str) -> list[str]:
    found = client.keys(f"*:done:*{label}*")
    return [notes.decode(client.get(each).encode()).kind for each in found]


@pytest.mark.parametrize("stores", [True, False])
def test_a_skipped_task_without_a_result_is_over_once_what_follows_it_is_published(
    app, label, client, stores
):
    """Until then a copy of its message is to do that: a result would prove it."""
    task = define(app, on_conflict=Skip(result="x"), ignore_result=not stores, acks_late=True)
    hold(task, label, client)
    before = []

    def note(**_: Any) -> None:
        before.extend(kinds_of_notes(client, label))

    signals.before_task_publish.connect(note)
    assert trace(task, label, callbacks=[app.signature("other", immutable=True)]) == "SUCCESS"
    signals.before_task_publish.disconnect(note)
    assert before == [notes.EXPECTS_RESULT if stores else notes.PUBLISHING]
    assert kinds_of_notes(client, label) == [notes.EXPECTS_RESULT if stores else notes.ENDED]


@pytest.mark.parametrize(
    ("how", "policy", "state"),
    [
        *(("return", None, "SUCCESS"), ("raise", None, "FAILURE")),
        *(("return", Skip(result="x"), "SUCCESS"), ("return", Raise(), "FAILURE")),
        ("return", Skip(), "REVOKED"),
    ],
    ids=repr,
)
def test_a_member_is_over_once_its_chord_has_been_told(
    monkeypatch, app, label, client, how, policy, state
):
    """Celery does that after it has stored the result: a copy whose child died between is to do it,
    as a plain task's copy does.
    """
    task = define(app, on_conflict=policy or Skip(), acks_late=True)
    if policy is not None:
        hold(task, label, client)
    told = []

    def tell(request: Any, state: str, result: Any, **_: Any) -> None:
        told.append((task.backend.get_state(request.id), kinds_of_notes(client, label)))

    monkeypatch.setattr(task.backend, "on_chord_part_return", tell)
    trace(task, label, how, chord=app.signature("other"))
    assert told == [(state, [notes.PUBLISHING])]
    assert kinds_of_notes(client, label) == [notes.ENDED]


def in_a_chord(app: Any, **raw: Any) -> dict[str, Any]:
    """What the message of a chord's member has, if no other copy of it is known."""
    return {"chord": app.signature("other"), "delivery_info": {"routing_key": "q"}, **raw}


def by_a_newer_run() -> dict[str, Any]:
    return {KEY: {"v": 2, "replaced_by": {"task": "t", "task_id": "newer"}}}


@pytest.mark.parametrize("how", ["replaced", "replaced with a result", "expired", "failed"])
def test_what_ends_before_its_body_in_another_way_is_over_too(monkeypatch, app, label, client, how):
    """Else a copy of its message would tell the chord again, or run."""

    class Mine(Policy):
        def act(self, conflict: Any) -> Any:
            raise SoftTimeLimitExceeded(1)

    policy: Any = {
        "replaced with a result": Replace(result="x"), "expired": Defer(delay=60), "failed": Mine(),
    }.get(how, Skip())  # fmt: skip
    task = define(app, on_conflict=policy, acks_late=True)
    raw = in_a_chord(app)
    if how.startswith("replaced"):
        raw |= by_a_newer_run()
    elif how == "expired":
        raw["expires"] = (datetime.now(timezone.utc) + timedelta(seconds=5)).isoformat()
    else:
        keys = task.keys_of_call((label, "return"), {})
        raw[KEY] = {"v": 2, "kept": [keys.lock_id, ""], "parked": f"{label}:0.0"}
    if not how.startswith("replaced"):
        hold(task, label, client)
    told = []
    monkeypatch.setattr(task.backend, "on_chord_part_return", lambda *_, **__: told.append(how))

    trace(task, label, **raw)
    assert told == [how]
    assert kinds_of_notes(client, label) == [notes.ENDED]


def test_a_run_that_is_replaced_is_over_once_its_chord_has_been_told(
    monkeypatch, app, label, client
):
    task = define(app, on_conflict=Replace(result="x"), acks_late=True)
    told = []

    def tell(*_: Any, **__: Any) -> None:
        told.extend(kinds_of_notes(client, label))

    monkeypatch.setattr(task.backend, "on_chord_part_return", tell)

    def is_replaced(*_: Any) -> None:
        lease = current_lock()
        lease.replaced_by = Holder(task="t", task_id="newer")
        raise LockLost(lease.key)

    monkeypatch.setattr(task, "run", is_replaced)
    assert trace(task, label, **in_a_chord(app)) == "SUCCESS"
    assert told == [notes.PUBLISHING]
    assert kinds_of_notes(client, label) == [notes.ENDED]


def test_a_copy_that_was_seen_meets_the_result_of_what_was_acknowledged_early(
    monkeypatch, app, label, client
):
    """Nobody notes then that all is over: without such a copy there is no note at all."""
    monkeypatch.setattr(facts, "COPIED_FROM", 3600.0)  # however slowly this test runs
    task = define(app)
    told: list[str] = []
    monkeypatch.setattr(task.backend, "on_chord_part_return", lambda *_, **__: told.append("told"))
    stamped = {"received": clock(), "queue": "q", "sent": "a message"}

    def message() -> dict[str, Any]:
        properties = {KEY: {**stamped, "token": new_token(), "received": clock()}}
        return in_a_chord(app, properties=properties)

    def run(*_: Any) -> str:
        assert trace(task, label, **message()) == "IGNORED"  # put off
        return "x"

    monkeypatch.setattr(task, "run", run)
    assert trace(task, label, **message()) == "SUCCESS"
    assert kinds_of_notes(client, label) == [notes.EXPECTS_RESULT]
    assert told == ["told"]
    assert trace(task, label, **message()) == "IGNORED"
    assert told == ["told"]


@pytest.mark.parametrize("fails", [1, 2])
def test_an_end_that_could_not_be_noted_is_noted_later_and_is_over_then(
    monkeypatch, app, label, client, fails
):
    task = define(app, on_conflict=Wait(timeout=0), acks_late=True)
    hold(task, label, client)
    later: list[Any] = []
    monkeypatch.setattr(housekeeper, "add", lambda chore, **_: later.append(chore))
    run = Server.run

    def is_away_first(server: Server, asked: Any, **options: Any) -> Any:
        if asked.script == "note" and len(later) < fails:
            raise LockUnavailable("the lock", None, "it is away")
        return run(server, asked, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Server, "run", is_away_first)
        assert trace(task, label, **in_a_chord(app)) == "IGNORED"
    assert len(later) == fails
    for chore in later:
        chore()
    assert kinds_of_notes(client, label) != [notes.PUBLISHING]


@pytest.mark.parametrize("step", ["settle", "query"])
@pytest.mark.parametrize("how", EXITS)
def test_an_outcome_stands_though_its_settling_fails(
    app, label, how, step, fault, monkeypatch, caplog
):
    task = define(app, lock_across_retries="hold", acks_late=True)
    break_step(monkeypatch, step, fault)
    assert trace(task, label, how) == EXITS[how]
    if step == "settle" and how != "retry":
        (record,) = [each for each in caplog.records if each.levelname == "ERROR" and each.exc_info
                     and each.name == "celery_redislock"]  # fmt: skip
        assert task.lock_key_for(label, how) in record.getMessage()
        assert f"t[{label}]" in record.getMessage()


@pytest.mark.parametrize("how", EXITS)
def test_a_task_whose_lock_cannot_be_asked_for_fails_as_any_other(
    app, label, how, fault, monkeypatch
):
    task = define(app)
    break_step(monkeypatch, "acquire", fault)
    assert trace(task, label, how) == "FAILURE"
    result = app.AsyncResult(label)
    assert result.state == "FAILURE"
    assert type(result.result).__name__ == type(fault).__name__
    assert "Traceback" in result.traceback


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", POLICIES)
def test_a_duplicate_ends_whatever_fails(app, client, label, name, step, fault, monkeypatch):
    task = define(app, on_conflict=POLICIES[name], lock_key="dup:{label}", acks_late=True)
    client.set(task.lock_key_for(label, ""), '{"token":"somebody"}', px=60_000)
    break_step(monkeypatch, step, fault)
    kept = {KEY: {"v": 2, "kept": [f"1|dup:{label}", "token"]}}
    assert trace(task, label, **kept) in ("IGNORED", "FAILURE")


def test_a_policy_that_fails_after_a_verb_has_done_nothing(app, client, label):
    class Mine(Policy):
        def act(self, conflict: Any) -> Any:
            try:
                return conflict.park()
            finally:
                raise Reject("a bug of the user's", requeue=False)

    task = define(app, on_conflict=Mine(), lock_key="fails:{label}")
    client.set(task.lock_key_for(label, ""), '{"token":"somebody"}', px=60_000)
    assert trace(task, label, **from_queue()) == "IGNORED"
    assert not client.exists(task.keys_of_call((label, ""), {}).room)


@pytest.mark.parametrize(("requeue", "acks_late", "stays"), [
    (True, True, True), (True, False, False), (False, True, False),
])  # fmt: skip
def test_a_policy_that_rejects_keeps_what_is_kept_for_a_message_that_comes_back(
    app, client, label, requeue, acks_late, stays
):
    class Mine(Policy):
        def act(self, conflict: Any) -> Any:
            if turn:
                raise Reject("not now", requeue=requeue)
            return conflict.park()

    turn: list[str] = []
    task = define(app, on_conflict=Mine(), lock_key="rejects:{label}", acks_late=acks_late)
    client.set(task.lock_key_for(label, ""), '{"token":"somebody"}', px=60_000)
    trace(task, label, **from_queue())
    keys = task.keys_of_call((label, ""), {})
    turn += client.lrange(keys.room, 0, -1)
    kept = {KEY: {"v": 2, "kept": [keys.lock_id, ""], "parked": turn[0]}}
    assert trace(task, label, **kept, **from_queue()) == "IGNORED"
    assert client.lrange(keys.room, 0, -1) == (turn if stays else [])


@pytest.mark.parametrize("scope", ["running", "queued"])
@pytest.mark.parametrize(
    "hostile",
    [
        {KEY: {"v": 2, "kept": ["1|\ud800", "\ud800"]}},
        {KEY: {"v": 2, "deferrals": "many", "since": "\ud800"}},
        {KEY: {"v": "new"}},
        {KEY: ["no", "header"]},
        {"properties": {KEY: "no mark"}},
        {"properties": "none"},
        {"headers": "redislock"},
        {"retries": "two", "parent_id": 5},
        {"expires": {"no": "time"}},
        {"id": "\ud800"},
        {"parent_id": "\ud800", "replaced_task_nesting": 1},
    ],
    ids=repr,
)
def test_a_hostile_message_fails_or_runs(app, label, scope, hostile):
    # Celery itself cannot store a result under such an id.
    task = define(app, lock_scope=scope, ignore_result="id" in hostile)
    assert trace(task, label, **hostile) in ("SUCCESS", "FAILURE")


def test_a_task_that_takes_no_lock_runs_though_nothing_can_be_freed(
    app, label, fault, monkeypatch, caplog
):
    task = define(app, lock_scope="queued")
    break_step(monkeypatch, "settle", fault)
    assert trace(task, label, **{KEY: {"v": 2, "kept": ["1|any", "token"]}}) == "SUCCESS"
    assert "could not free" in caplog.text


def test_the_retry_of_a_run_that_a_newer_one_replaces_does_not_run(app, label, monkeypatch, caplog):
    task = define(app, lock_key="replaced:{label}", on_conflict=Replace())
    for name, fault in ((label, None), (f"{label}-away", LockUnavailable("k", None, "no answer"))):
        with monkeypatch.context() as patch:
            patch.setattr(Lease, "replaced_by", Holder(task="t", task_id="newer"))
            if fault is not None:
                break_step(patch, "note", fault)
            assert trace(task, name, "retry") == "RETRY"
    assert trace(task, label, retries=1) == "IGNORED"
    assert app.AsyncResult(label).result.holder.task_id == "newer"
    assert f"could not cancel the retry of t[{label}-away]: no answer" in caplog.text


def test_a_replaced_task_whose_message_cannot_be_sent_ends_without_its_result(
    app, label, monkeypatch, caplog
):
    def fails(*args: Any, **options: Any) -> None:
        raise OSError("no broker")

    task = define(app, on_conflict=Coalesce(result="x"))
    monkeypatch.setattr(act, "publish_again", fails)
    raw = {"id": label, "delivery_info": {}, **from_queue()}
    by = Holder(task_id="newer")
    assert not act.publish_replaced(task, raw, Context(raw), (label, "return"), {}, by)
    assert f"t[{label}] ends without its result" in caplog.text
    assert "OSError: no broker" in caplog.text


def test_what_newer_workers_broadcast_is_not_sent_again_by_one_that_has_no_queue_for_it(
    app, label, caplog
):
    """Each of them has a copy."""
    task, sent = define(app), []

    def note(**message: Any) -> None:
        sent.append(message)

    signals.before_task_publish.connect(note)
    broadcast = {"token": new_token(), "queue": None, "fanout": True}
    raw = {KEY: {"v": 99}, "properties": {KEY: broadcast}}
    assert trace(task, label, **raw) == "IGNORED"
    assert f"t[{label}] is left to newer workers" in caplog.text
    assert sent == []


def test_settings_that_cannot_be_read_fail_the_task(app, label, fault, monkeypatch):
    task = define(app)

    def fails(*args: Any) -> Any:
        raise fault

    monkeypatch.setattr(LockedTask, "_takes_lock", fails)
    assert trace(task, label) == "FAILURE"


def test_a_time_limit_while_it_is_settled_changes_nothing(app, label, client, monkeypatch):
    """It is raised once: what it cut short is completed."""
    task = define(app)
    settle, limits = Life._note_completed, [SoftTimeLimitExceeded(1)]

    def is_cut_short(run: Life, *args: Any) -> None:
        if limits:
            raise limits.pop()
        settle(run, *args)

    monkeypatch.setattr(Life, "_note_completed", is_cut_short)
    assert trace(task, label) == "SUCCESS"
    assert not limits
    assert not client.exists(task.lock_key_for(label, "return"))


def test_a_time_limit_while_it_is_noted_that_all_is_over_leaves_that_note(
    app, label, client, monkeypatch
):
    task = define(app, acks_late=True)
    monkeypatch.setattr(task.backend, "on_chord_part_return", lambda *_, **__: None)
    run, limits = Server.run, [SoftTimeLimitExceeded(1)]

    def is_cut_short(server: Server, asked: Any, **options: Any) -> Any:
        if asked.script == "note" and limits:
            raise limits.pop()
        return run(server, asked, **options)

    monkeypatch.setattr(Server, "run", is_cut_short)
    assert trace(task, label, **in_a_chord(app)) == "SUCCESS"
    assert not limits
    assert kinds_of_notes(client, label) == [notes.ENDED]


@pytest.mark.parametrize("options", [{"on_lock_lost": "abort"}, {"on_conflict": Defer()}])
def test_wherever_a_time_limit_comes_it_leaves_nothing_behind(app, client, label, options, caplog):
    """It is raised once, at any bytecode, also ours."""
    task = define(app, lock_key="limited:{label}", **options)
    key = task.lock_key_for(label, "return")
    caplog.set_level(logging.CRITICAL)

    def deliver() -> str:
        client.delete(key)
        if "on_conflict" in options:  # it is published again, and receivers know it as running
            client.set(key, '{"token":"somebody"}', px=60_000)
        return trace(task, label, id=uuid(), **from_queue())

    deliver()
    modules = ("celery_redislock.tasks", "celery_redislock.app.internals", "celery_redislock.lock")
    for where, _ in each_place(deliver, modules, SoftTimeLimitExceeded, step=2):
        assert not len(task.request_stack), where
        assert current_lock() is None, where
        if "on_conflict" not in options:
            assert not client.exists(key), where


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_worker_goes_on_and_the_lock_is_released(
    app, label, client, error, monkeypatch
):
    task = define(app)
    monkeypatch.setitem(ERRORS, "end", error)
    with pytest.raises(error):
        trace(task, label, "end")
    assert not client.exists(task.lock_key_for(label, "end"))


def test_an_eager_task_has_its_result_though_its_settling_fails(app, label, fault, monkeypatch):
    app.conf.redislock_eager = True
    task = define(app)
    break_step(monkeypatch, "settle", fault)
    assert task.apply((label, "return")).get() == "return"


def test_a_refusal_that_cannot_be_stored_is_celerys_to_handle(app, client, label, monkeypatch):
    task = define(app, on_conflict="raise")
    client.set(task.lock_key_for(label, "return"), '{"token":"somebody"}', px=60_000)
    stored, mark = [], task.backend.mark_as_failure

    def fails_once(*args: Any, **kwargs: Any) -> Any:
        stored.append(args)
        if len(stored) == 1:
            raise ConnectionError("the backend is away")
        return mark(*args, **kwargs)

    monkeypatch.setattr(task.backend, "mark_as_failure", fails_once)
    assert trace(task, label) == "FAILURE"
    assert len(stored) == 2
    assert app.AsyncResult(label).state == "FAILURE"


def test_an_attempt_that_retries_is_stored_once_with_its_error_and_then_sent(
    app, label, monkeypatch
):
    task, stored = define(app), []
    store = type(task.backend).store_result

    def count(backend: Any, task_id: str, result: Any, state: str, **kwargs: Any) -> Any:
        stored.append(state)
        return store(backend, task_id, result, state, **kwargs)

    monkeypatch.setattr(type(task.backend), "store_result", count)
    monkeypatch.setitem(ERRORS, "retry for", ValueError("as told"))

    def note_sent(**kwargs: Any) -> None:
        stored.append("sent")

    signals.before_task_publish.connect(note_sent)

    assert trace(task, label, "retry for") == "RETRY"

    assert stored == ["RETRY", "sent"]
    assert repr(app.AsyncResult(label).result) == "ValueError('as told')"
    assert "as told" in app.AsyncResult(label).traceback


def test_a_retry_that_cannot_be_stored_is_sent_and_stored_by_celery(app, label, monkeypatch):
    task, stored = define(app), []
    store = task.backend.store_result

    def fails_once(*args: Any, **kwargs: Any) -> Any:
        stored.append(args)
        if len(stored) == 1:
            raise ConnectionError("the backend is away")
        return store(*args, **kwargs)

    monkeypatch.setattr(task.backend, "store_result", fails_once)
    assert trace(task, label, "retry") == "RETRY"
    assert len(stored) == 2
    assert app.AsyncResult(label).state == "RETRY"
