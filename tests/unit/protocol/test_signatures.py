"""Tasks under decorators: which argument of a call is which, and bodies that are `async def`."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery

from celery_redislock import ConfigError, SingletonTask
from celery_redislock.protocol.names import KeyMaker
from celery_redislock.protocol.signatures import call_signature
from celery_redislock.testing import memory_locks
from tests.unit.protocol.test_names import singleton

SESSION = object()


def passes_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, session=SESSION, **kwargs)

    return wrapper


def in_front(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(SESSION, *args, **kwargs)

    return wrapper


def takes_a_user(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(user_id: int, *args: Any, **kwargs: Any) -> Any:
        return function({"id": user_id}, *args, **kwargs)

    return wrapper


def atomic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Django's `transaction.atomic`, as a decorator; its database is never opened."""
    transaction = pytest.importorskip("django.db.transaction")
    wrapped: Callable[..., Any] = transaction.atomic(function)
    return wrapped


def retried(function: Callable[..., Any]) -> Callable[..., Any]:
    tenacity = pytest.importorskip("tenacity")
    wrapped: Callable[..., Any] = tenacity.retry(stop=tenacity.stop_after_attempt(3))(function)
    return wrapped


def validated(function: Callable[..., Any]) -> Callable[..., Any]:
    wrapped: Callable[..., Any] = pytest.importorskip("pydantic").validate_call(function)
    return wrapped


@contextmanager
def scope() -> Iterator[None]:
    yield


class ByCall:
    """A decorator that is an object."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, session=SESSION, **kwargs)


class Hides:
    """A decorator that is an object, and does not say what it wraps."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def maker(function: Callable[..., Any], lock_key: Any = None) -> KeyMaker:
    return KeyMaker("decorated.task", function, lock_key, lambda value: value)


def name(function: Callable[..., Any], lock_key: Any, *args: Any, **kwargs: Any) -> str:
    return maker(function, lock_key).name(args, kwargs)


def account_first(account_id: int, session: Any) -> None: ...
def account_and_force(account_id: int, session: Any, force: bool = False) -> None: ...
def session_first(session: Any, account_id: int, force: bool = False) -> None: ...
def account_second(tenant: str, account_id: int, session: Any = None) -> None: ...
def account_second_of_three(tenant: str, account_id: int, session: Any) -> None: ...
def by_keyword(account_id: int, *, session: Any) -> None: ...
def with_rest(account_id: int, *rest: Any, session: Any, **more: Any) -> None: ...
def no_session(account_id: int, force: bool = False) -> None: ...
def anything(*args: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize("lock_key", [["account_id"], "{account_id}", None], ids=repr)
@pytest.mark.parametrize(
    ("function", "before"),
    [
        (passes_on(no_session), ()),
        (by_name(account_first), ()),
        (by_name(by_keyword), ()),
        (by_name(with_rest), ()),
        (by_name(account_second_of_three), ("eu",)),
        (by_name(passes_on(account_first)), ()),
        (ByCall(account_first), ()),
        (scope()(account_second), ("eu",)),
        (functools.lru_cache(account_second), ("eu",)),
        (functools.partial(by_name(account_first)), ()),
        (atomic(account_second), ("eu",)),
        (atomic(by_name(account_second_of_three)), ("eu",)),
        (retried(account_second), ("eu",)),
        (validated(account_second), ("eu",)),
    ],
)
def test_a_named_argument_is_the_callers_by_position_or_name(
    function: Callable[..., Any], before: tuple[Any, ...], lock_key: Any
) -> None:
    five = name(function, lock_key, *before, 5)
    assert five != name(function, lock_key, *before, 6)
    assert five == name(function, lock_key, *before, account_id=5)
    if before:
        assert five == name(function, lock_key, account_id=5, tenant=before[0])


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (in_front(session_first), (), {"account_id": 5, "force": True}),
        (by_name(account_and_force), (5,), {"force": True}),
        (by_name(with_rest), (5, 6), {"more": 1}),
        (Hides(no_session), (), {"account_id": 5}),
        (no_session, (5, 6, 7), {"unknown": 1}),
    ],
)
def test_what_else_a_call_says_does_not_change_the_name(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    plain = maker(lambda account_id: None, ["account_id"])
    assert name(function, ["account_id"], *args, **kwargs) == plain.name((5,), {})


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (in_front(session_first), (5,), {"force": True}),
        (by_name(account_first), (), {}),
        (passes_on(account_second), ("eu",), {}),
        (Hides(account_second), ("eu", 5), {"force": True}),
        (anything, (5,), {}),
        (lambda user, *args, **kwargs: None, ("anna", 5), {}),
    ],
)
@pytest.mark.parametrize("lock_key", [["account_id"], "account:{account_id}"])
def test_a_call_that_lacks_a_named_argument_fails_and_says_so(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], lock_key: Any
) -> None:
    with pytest.raises(TypeError) as caught:
        maker(function, lock_key).name(args, kwargs)
    message = str(caught.value)
    assert message.startswith("decorated.task: lock_key names 'account_id', which this call lacks")
    assert "Pass it by name" in message
    assert "a callable" in message
    with pytest.raises(TypeError, match="'account_id'"):
        maker(function, lock_key).arguments(args, kwargs)


def test_positional_arguments_are_those_of_the_wrapped_function_in_order() -> None:
    def body(user: Any, force: bool = False) -> None: ...

    assert name(takes_a_user(body), ["user"], 5) == name(takes_a_user(body), ["user"], 5, True)
    assert name(takes_a_user(body), ["user"], 5) != name(takes_a_user(body), ["user"], 6)
    with pytest.raises(ConfigError, match="'user_id', which is not an argument of the task"):
        maker(takes_a_user(body), ["user_id"])
    with pytest.raises(TypeError, match="lock_key names 'user', which this call lacks"):
        name(takes_a_user(body), ["user"], user_id=5)


def test_a_decorator_with_a_signature_of_its_own_says_what_the_arguments_are() -> None:
    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(account: int, dry: bool = False) -> Any:
            return function(account, 1)

        return wrapper

    def body(x: int, y: int) -> None: ...

    signed = passes_on(body)
    signed.__signature__ = inspect.signature(decorator(body), follow_wrapped=False)  # type: ignore[attr-defined]
    for function in (decorator(body), passes_on(decorator(body)), signed):
        assert name(function, None, 1) == name(function, None, account=1, dry=False)
        assert name(function, ["account"], 1) == name(function, ["account"], account=1, dry=True)
        with pytest.raises(ConfigError, match="its arguments are: account, dry"):
            maker(function, ["x"])


def test_an_optional_argument_of_kwargs_may_be_left_out_as_without_a_decorator() -> None:
    function = by_name(with_rest)
    assert name(function, ["region"], 5) == name(function, ["region"], 6)
    assert name(function, ["region"], 5) != name(function, ["region"], 5, region="eu")
    with pytest.raises(TypeError, match="'region'"):  # it may be one of the others
        name(function, ["region"], 5, 6)


def test_without_a_lock_key_no_two_different_calls_have_one_name() -> None:
    for function in (by_name(account_and_force), in_front(account_and_force), ByCall(no_session)):
        calls = [((5,), {}), ((6,), {}), ((5,), {"force": True}), ((), {"account_id": 6, "dry": 1})]
        assert len({name(function, None, *args, **kwargs) for args, kwargs in calls}) == 4
    for function in (passes_on(anything), Hides(no_session)):
        names = {name(function, None, 5, **more) for more in ({}, {"dry": 1}, {"dry": 2})}
        assert len(names) == 3
    unfit = [((5, 6, 7), {}), ((5, 6), {}), ((5, 6), {"force": 7}), ((5,), {"account_id": 6})]
    assert len({name(no_session, None, *args, **kwargs) for args, kwargs in unfit}) == 4


def test_a_methods_first_argument_is_its_object() -> None:
    class Account:
        @by_name
        def sync(self, account_id: int, session: Any) -> None: ...

    assert list(call_signature(Account().sync).parameters) == ["account_id", "session"]
    assert list(call_signature(Account.sync).parameters) == ["self", "account_id", "session"]


# -- async def --------------------------------------------------------------------------------


async def coroutine(x: Any = None) -> None: ...
async def generator(x: Any = None) -> AsyncIterator[int]:
    yield 1


def runs_it(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return wrapper


def makes_it_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "function", [coroutine, generator, makes_it_async(no_session), makes_it_async(coroutine)]
)
@pytest.mark.parametrize("lock_key", [None, "one"])
def test_a_body_that_is_async_is_refused_when_the_task_is_bound(
    app: Celery, function: Callable[..., Any], lock_key: Any
) -> None:
    with pytest.raises(ConfigError) as caught:
        singleton(app, function, lock_key=lock_key)
    message = str(caught.value)
    assert message.startswith("task keys.task: ")
    assert "async def" in message
    assert "asyncio.run" in message
    with pytest.raises(ConfigError, match="async def"):
        app.tasks["keys.task"].apply()


def test_a_partial_of_an_async_function_is_refused_too(app: Celery) -> None:
    run = functools.partial(coroutine, 1)
    cls = type("Sync", (SingletonTask,), {"name": "keys.class", "run": staticmethod(run)})
    with pytest.raises(ConfigError, match=r"task keys\.class: .*async def"):
        app.register_task(cls())


def test_a_decorator_that_runs_an_async_body_is_accepted(app: Celery) -> None:
    task = singleton(app, runs_it(coroutine), lock_key=["x"])
    assert task.lock_key_for(5) == task.lock_key_for(x=5) != task.lock_key_for(6)
    assert task.apply((5,)).state == "SUCCESS"


@pytest.mark.parametrize("body", [coroutine, generator])
@pytest.mark.parametrize("decorator", [passes_on, scope()])
def test_an_async_body_that_a_decorator_hides_fails_when_it_runs(
    app: Celery, decorator: Callable[..., Any], body: Callable[..., Any]
) -> None:
    task = singleton(app, decorator(body), lock_key=["x"])
    with memory_locks():
        result = task.apply(kwargs={"x": 5})
    assert isinstance(result.result, ConfigError)
    assert "keys.task: its body returned" in str(result.result)
    assert "asyncio.run" in str(result.result)
