"""What is refused when a locked task is bound, or gets its tracer: another road than ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, shared_task
from celery.app.trace import build_tracer
from celery.worker.strategy import default

from celery_redislock import ConfigError, SingletonTask
from celery_redislock.compat.celery_once import QueueOnce
from celery_redislock.tasks.target import TargetError, keys_of_call


class Batches(Task):
    """The shape of celery-batches' class."""

    abstract = True
    typing = False

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any: ...


class OursFirst(SingletonTask, Batches):
    abstract = True


class OursLast(Batches, SingletonTask):
    abstract = True


def wrapper(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Any:
    return default(task, app, consumer, **kwargs)


def define(app: Celery, **options: Any) -> Any:
    def body(requests: Any = None) -> None: ...

    return app.task(name="shop.batch", shared=False, **options)(body)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"base": OursFirst}, "Batches.Strategy"),
        ({"base": OursLast}, "Batches.Strategy"),
        ({"base": SingletonTask, "Strategy": "shop.batches:strategy"}, "shop.batches:strategy"),
        ({"base": SingletonTask, "Strategy": staticmethod(wrapper)}, "wrapper"),
    ],
)
def test_a_strategy_that_is_not_celerys_is_refused(app, options, named) -> None:
    task = define(app, **options)
    app.finalize()
    with pytest.raises(ConfigError) as caught:
        task.delay()
    assert f"task shop.batch: Strategy='{named}' is not accepted" in str(caught.value)
    assert "'celery.worker.strategy:default'" in str(caught.value)
    with pytest.raises(TargetError, match="Strategy="):
        keys_of_call(app, "shop.batch", (), {})


def test_a_strategy_that_is_not_celerys_is_refused_by_redislock_tasks(app) -> None:
    app.conf.redislock_tasks = {"shop.*": {"lock_ttl": 60}}
    task = define(app, base=Batches)
    app.finalize()
    with pytest.raises(ConfigError, match=r"Strategy='Batches\.Strategy' is not accepted"):
        task.delay()


@pytest.mark.parametrize(
    "strategy",
    ["celery.worker.strategy:default", "celery.worker.strategy.default", staticmethod(default)],
)
def test_celerys_own_strategy_is_accepted_however_it_is_named(app, strategy) -> None:
    define(app, base=SingletonTask, Strategy=strategy)
    app.finalize()


def test_a_class_that_hides_where_our_tracer_is_is_refused(app) -> None:
    task = define(app, base=SingletonTask, __trace__=None)
    app.finalize()
    with pytest.raises(ConfigError, match="__trace__ is not accepted"):
        task.delay()


# -- the tracer -------------------------------------------------------------------------------


def named_alike(inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def traced(*args: Any) -> Any:
        return inner(*args)

    return traced


def around(inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: inner(*args)


def asyncio_pools(inner: Callable[..., Any]) -> Callable[..., Any]:
    """The shape of celery-aio-pool's, which has the body run in its loop's thread."""
    body = inner.__closure__

    def trace_task(*args: Any) -> Any:
        return body

    return trace_task


def awaited(inner: Callable[..., Any]) -> Callable[..., Any]:
    """The shape of celery-pool-asyncio's."""

    async def trace_task(*args: Any) -> Any:
        return inner(*args)

    return trace_task


@pytest.mark.parametrize("wrap", [lambda inner: inner, named_alike, around])
def test_celerys_tracer_is_accepted_and_what_tools_put_around_it(app, wrap) -> None:
    task = define(app, base=SingletonTask)
    task.__trace__ = wrap(build_tracer(task.name, task, app=app))
    assert task.__trace__ is not None


@pytest.mark.parametrize("replace", [asyncio_pools, awaited])
def test_a_tracer_that_is_not_celerys_is_refused(app, replace) -> None:
    task = define(app, base=SingletonTask)
    with pytest.raises(ConfigError, match=f"shop.batch: its tracer is {__name__}'s"):
        task.__trace__ = replace(build_tracer(task.name, task, app=app))


# -- a wrong option harms no other task -------------------------------------------------------


def a_body() -> Callable[[], str]:
    def body() -> str:
        return "ran"

    return body


def test_a_wrong_option_of_a_shared_task_stays_on_that_task(app, redislock_memory) -> None:
    app.conf.redislock_eager = True
    bad, good = {}, {}
    for number in range(4):  # Celery makes shared tasks in any order
        for tasks, name, options in (
            (good, "plain", {}),
            (bad, "ttl", {"base": SingletonTask, "lock_ttl": -1}),
            (bad, "key", {"base": SingletonTask, "lock_key": ["account"]}),
            (bad, "once", {"base": QueueOnce, "once": {"keys": ["account"]}}),
            (good, "locked", {"base": SingletonTask}),
        ):
            name = f"shop.{name}{number}"
            tasks[name] = shared_task(name=name, **options)(a_body())
    app.finalize()
    for name in good:
        assert app.tasks[name].apply().get() == "ran"
    for name in bad:
        for use in (app.tasks[name].delay, app.tasks[name].apply, app.tasks[name].lock_key_for):
            with pytest.raises(ConfigError, match=rf"task {name}: .*(lock_ttl|lock_key|once)"):
                use()


def test_a_wrong_entry_of_redislock_tasks_stays_on_the_tasks_that_it_names(app) -> None:
    app.conf.redislock_tasks = {
        "bad.*": {"lock_tll": 5},
        "worse": 5,
        "fits.not": {"lock_key": ["account"]},
        "good": {"lock_ttl": 7},
    }
    names = ("bad.one", "bad.two", "worse", "fits.not", "good", "plain")
    tasks = {name: app.task(name=name, shared=False)(a_body()) for name in names}
    app.finalize()
    for name in names[:4]:
        with pytest.raises(ConfigError, match=r"redislock_tasks\['(bad\.\*|worse)'\]|fits\.not: "):
            tasks[name].delay()
        with pytest.raises(ConfigError):
            tasks[name].apply()
    assert tasks["good"].lock_options.lock_ttl == 7
    assert tasks["plain"].apply().get() == "ran"


def test_a_wrong_option_is_raised_at_once_where_that_harms_nobody(app) -> None:
    app.finalize()
    with pytest.raises(ConfigError, match=r"task shop\.batch: lock_ttl=0"):
        define(app, base=SingletonTask, lock_ttl=0)

    class Report(SingletonTask):
        name = "report"
        lock_ttl = 0

        def run(self) -> None: ...

    with pytest.raises(ConfigError, match="task report: lock_ttl=0"):
        app.register_task(Report())


@pytest.mark.parametrize("stranger", ["a text", SimpleNamespace(name=None)])
def test_what_is_no_task_may_be_registered(app, stranger) -> None:
    """A registry takes anything: Celery's own tests put texts there."""
    app.conf.redislock_tasks = {"*": {}}
    app.finalize()
    app.tasks["stranger"] = stranger
    assert app.tasks["stranger"] is stranger
