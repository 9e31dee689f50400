"""What is refused when a locked task is bound, or gets its tracer: another road than ours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, Task
from celery.app.trace import build_tracer
from celery.worker.strategy import default

from celery_redislock import ConfigError, SingletonTask
from celery_redislock.tasks.target import TargetError, keys_of_call


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("binding", set_as_current=False)
    app.conf.update(broker_url="memory://", redislock_url="redis://127.0.0.1:1/0")  # never asked
    yield app
    app.close()


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
    define(app, **options)
    with pytest.raises(ConfigError) as caught:
        app.finalize()
    assert f"task shop.batch: Strategy='{named}' is not accepted" in str(caught.value)
    assert "'celery.worker.strategy:default'" in str(caught.value)
    with pytest.raises(TargetError, match="Strategy="):
        keys_of_call(app, "shop.batch", (), {})


def test_a_strategy_that_is_not_celerys_is_refused_by_redislock_tasks(app) -> None:
    app.conf.redislock_tasks = {"shop.*": {"lock_ttl": 60}}
    define(app, base=Batches)
    with pytest.raises(ConfigError, match=r"Strategy='Batches\.Strategy' is not accepted"):
        app.finalize()


@pytest.mark.parametrize(
    "strategy",
    ["celery.worker.strategy:default", "celery.worker.strategy.default", staticmethod(default)],
)
def test_celerys_own_strategy_is_accepted_however_it_is_named(app, strategy) -> None:
    define(app, base=SingletonTask, Strategy=strategy)
    app.finalize()


def test_a_class_that_hides_where_our_tracer_is_is_refused(app) -> None:
    define(app, base=SingletonTask, __trace__=None)
    with pytest.raises(ConfigError, match="__trace__ is not accepted"):
        app.finalize()


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
    with pytest.raises(ConfigError, match=r"shop\.batch: its tracer is tests\.\w+\.test_binding's"):
        task.__trace__ = replace(build_tracer(task.name, task, app=app))
