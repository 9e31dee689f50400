"""Calling a locked task without a worker: directly, eagerly, bound, and what signals tell of it."""

from __future__ import annotations

import pickle
import traceback

import pytest
from celery import Celery, Task
from celery.app.trace import build_tracer

from celery_redislock import (
    ConfigError,
    LockConflict,
    Raise,
    SingletonTask,
    Skip,
    current_lock,
    lock_acquired,
    lock_conflict,
    lock_lost,
    lock_released,
)
from tests.support.waiting import eventually


@pytest.fixture
def app(conf):
    """An app of this test's own, in this process."""
    app = Celery("surface", set_as_current=False)
    app.conf.update({k: v for k, v in conf.items() if not k.startswith("test_")})
    return app


def test_a_direct_call_is_a_plain_call(app, client):
    app.conf.redislock_url = "redis://127.0.0.1:1"  # nobody listens

    @app.task(shared=False, base=SingletonTask, bind=True)
    def direct(self, x):
        self.lock.ensure()
        return x, self.lock.fence, self.lock.lost

    assert direct(5) == (5, 0, False)


def test_a_direct_call_inside_a_locked_task_is_a_plain_call(eager, client):
    """It runs under the lock that the running task has, and takes none of its own."""

    @eager.task(shared=False, base=SingletonTask, bind=True)
    def recursive(self, depth):
        held = client.exists(recursive.lock_key_for(depth))
        return [(held, self.lock.fence), *(recursive(depth - 1) if depth else ())]

    (outer_held, outer), (inner_held, inner) = recursive.delay(1).get()
    assert outer_held
    assert not inner_held
    assert outer == inner > 0


@pytest.fixture
def eager(app):
    app.conf.update(redislock_eager=True, task_always_eager=True)
    return app


def test_eager_mode_takes_the_lock_if_it_is_told_to(eager, client):
    @eager.task(shared=False, base=SingletonTask, bind=True)
    def task(self):
        assert client.exists(self.lock.key)
        return self.lock.fence, current_lock.fence, current_lock().key

    fence, current, key = task.delay().get()
    assert fence == current > 0
    assert not client.exists(key)


@pytest.mark.parametrize(
    ("policy", "state"), [(Skip(), "REVOKED"), (Raise(), "FAILURE"), (Skip(result=7), "SUCCESS")]
)
def test_an_eager_duplicate_ends_as_its_policy_says(eager, policy, state):
    @eager.task(shared=False, base=SingletonTask, on_conflict=policy)
    def task():
        result = task.apply()
        assert result.state == state
        return result.id

    assert task.apply().successful()


def test_an_eager_retry_runs_under_its_own_earlier_attempts_lock(eager):
    @eager.task(shared=False, base=SingletonTask, bind=True, max_retries=2)
    def task(self):
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return self.request.retries

    assert task.apply().get() == 2


def test_it_works_beside_another_base_with_a_call_of_its_own(eager):
    calls = []

    class Other(Task):
        def __call__(self, *args, **kwargs):
            calls.append("other")
            return super().__call__(*args, **kwargs)

    class Before(SingletonTask, Other): ...

    class After(Other, SingletonTask): ...

    for base in (Before, After):
        calls.clear()

        @eager.task(shared=False, base=base, bind=True, name=base.__name__)
        def task(self):
            return current_lock.fence

        assert task.apply().get() > 0
        assert calls == ["other"]


@pytest.fixture
def heard():
    """What the signals said, by their names."""
    said = []
    signals = (lock_acquired, lock_released, lock_conflict, lock_lost)
    receivers = []
    for signal in signals:

        def receive(sender, details, signal=signal, **kwargs):
            said.append((signal.name, sender.name, details))
            raise RuntimeError("a receiver that fails harms nothing")

        receivers.append((signal, receive))
        signal.connect(receive, weak=False)
    yield said
    for signal, receive in receivers:
        signal.disconnect(receive)


def test_signals_tell_of_every_lock(eager, heard, client):
    @eager.task(
        shared=False, base=SingletonTask, bind=True, name="told", on_conflict="raise", lock_ttl=2
    )
    def told(self, outer=True):
        with pytest.raises(LockConflict):
            told.apply((True,)).get()
        client.set(self.lock.key, "thief", px=5000)
        eventually(lambda: self.lock.lost, "it learns of its loss")
        eventually(lambda: len(heard) == 3, "the signal is sent")

    told.apply((True,)).get()
    assert [(signal, task) for signal, task, _ in heard] == [
        ("lock_acquired", "told"),
        ("lock_conflict", "told"),
        ("lock_lost", "told"),
        ("lock_released", "told"),
    ]
    acquired, conflict, lost, released = [details for _, _, details in heard]
    assert acquired.key == conflict.key == lost.key == released.key
    assert acquired.fence == lost.fence == released.fence > 0
    assert conflict.outcome == "raised"
    assert conflict.holder.fence == acquired.fence
    assert released.owned is False
    assert released.held > 0
    with pytest.raises(AttributeError):
        acquired.fence = 1


def test_another_app_that_knows_no_redis_is_left_in_peace(conf):
    """Celery binds every task to every app of the process."""
    home = Celery("home", set_as_current=False)
    home.conf.redislock_url = conf["redislock_url"]

    @home.task(base=SingletonTask, name="at_home", shared=True)
    def at_home(): ...

    home.finalize()
    other = Celery("other", broker="memory://", set_as_current=False)
    other.finalize()
    assert home.tasks["at_home"].lock_key_for()
    with pytest.raises(ConfigError, match="redislock_url"):
        other.tasks["at_home"].lock_key_for()


def test_the_front_door_is_small_and_sorted():
    import celery_redislock

    assert celery_redislock.__all__ == sorted(celery_redislock.__all__)
    for name in celery_redislock.__all__:
        assert hasattr(celery_redislock, name)


@pytest.mark.parametrize("settings", [{}, {"redislock_enabled": False}, {"redislock_eager": True}])
@pytest.mark.parametrize("options", [{}, {"on_lock_lost": "abort"}, {"lock_scope": "queued"}])
def test_tools_are_asked_to_leave_our_frames_out_of_a_traceback(app, label, settings, options):
    """Sentry groups errors by their first frames, and pytest shows them."""

    class Mixin:
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

    class Base(Mixin, SingletonTask):
        abstract = True

    def fails(label):
        raise ValueError(label)

    app.conf.update(settings, task_always_eager=True, task_eager_propagates=True)
    for base in (SingletonTask, Base):
        task = app.task(name=f"{base.__name__}.{label}", base=base, shared=False, **options)(fails)
        with pytest.raises(ValueError, match=label) as direct:
            task(label)
        with pytest.raises(ValueError, match=label) as applied:
            task.apply((label,), throw=True)
        with pytest.raises(ValueError, match=label) as sent:
            task.delay(label)
        for error in (direct.value, applied.value, sent.value):
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            ours = [f for f in frames if f.f_globals["__name__"].startswith("celery_redislock")]
            assert ours
            assert not [f.f_code for f in ours if not f.f_locals.get("__tracebackhide__")]


def test_what_a_failure_sends_through_the_pool_is_little_more_than_a_plain_tasks(app, label):
    # Celery's cold shutdown may hang where it is more than a pipe holds, which is 64 KiB.
    def fails(label):
        raise ValueError(label)

    def traced(name, **options):
        task = app.task(name=f"{name}.{label}", **options)(fails)
        app.finalize()
        trace = build_tracer(task.name, task, app=app)
        request = {"id": label, "retries": 0, "called_directly": False, "is_eager": True}
        return trace(label, (label,), {}, request).retval

    app.conf.redislock_eager = True
    plain = traced("plain")
    locked = traced("locked", base=SingletonTask, on_lock_lost="abort")
    assert "_run.py" not in locked.traceback
    assert locked.traceback.splitlines()[-3:] == plain.traceback.splitlines()[-3:]
    assert len(pickle.dumps(locked)) < 1.3 * len(pickle.dumps(plain)) + 1_000
