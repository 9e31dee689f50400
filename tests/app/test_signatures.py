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
from celery_redislock.app.names import KeyMaker
from tests.app.test_names import app, key_at_worker, singleton

__all__ = ["app"]  # a fixture

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


def into_kwargs(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs["session"] = SESSION
        return function(*args, **kwargs)

    return wrapper


def at_the_end(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, SESSION, **kwargs)

    return wrapper


def in_front(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(SESSION, *args, **kwargs)

    return wrapper


def in_front_after_self(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, SESSION, *args, **kwargs)

    return wrapper


def in_front_by_a_helper(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(3, function, SESSION, *args, **kwargs)

    return wrapper


def call(times: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def without_self(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def takes_a_user(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(user_id: int, *args: Any, **kwargs: Any) -> Any:
        return function({"id": user_id}, *args, **kwargs)

    return wrapper


def takes_a_token(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(token: str, *args: Any, dry: bool = False, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def pops_dry(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("dry", None)
        return function(*args, **kwargs)

    return wrapper


def names_only(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(account_id: int, **kwargs: Any) -> Any:
        return function(account_id, session=SESSION, **kwargs)

    return wrapper


def hidden(decorator: str) -> Any:
    """A decorator whose code nobody can read."""
    module: dict[str, Any] = {"functools": functools, "SESSION": SESSION}
    source = f"""
def decorator(function):
    @functools.wraps(function)
    def wrapper({decorator.partition(" -> ")[0]}):
        return function({decorator.partition(" -> ")[2]})
    return wrapper
"""
    exec(source, module)
    return module["decorator"]


hidden_by_name = hidden("*args, **kwargs -> *args, session=SESSION, **kwargs")
hidden_in_front = hidden("*args, **kwargs -> SESSION, *args, **kwargs")
hidden_user = hidden("user_id, *args, **kwargs -> {'id': user_id}, *args, **kwargs")


def in_front_of_args(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = (SESSION, *args)
        return function(*args, **kwargs)

    return wrapper


def in_front_of_a_list(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*[SESSION, *args], **kwargs)

    return wrapper


def in_front_by_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with_session = functools.partial(function, SESSION)
        return with_session(*args, **kwargs)

    return wrapper


def made_by_another(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = functools.partial(function, SESSION, *args, **kwargs)
        return function(*call.args, **call.keywords)

    return wrapper


def binds(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        return function(*bound.args, **bound.kwargs)

    return wrapper


class InFront:
    """A decorator that is an object, and gives the first argument."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(SESSION, *args, **kwargs)


class ByCall:
    """A decorator that is an object."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, session=SESSION, **kwargs)


def maker(function: Callable[..., Any], lock_key: Any = None) -> KeyMaker:
    return KeyMaker("decorated.task", function, lock_key, lambda value: value)


def name(function: Callable[..., Any], lock_key: Any, *args: Any, **kwargs: Any) -> str:
    """The name of a call's lock. The call itself is one that Python can make."""
    function(*args, **kwargs)
    return maker(function, lock_key).name(args, kwargs)


def account_first(account_id: int, session: Any) -> None: ...
def account_and_force(account_id: int, session: Any, force: bool = False) -> None: ...
def session_first(session: Any, account_id: int, force: bool = False) -> None: ...
def session_and_no_default(session: Any, account_id: int, force: bool) -> None: ...
def account_second(tenant: str, account_id: int, session: Any = None) -> None: ...
def account_second_of_three(tenant: str, account_id: int, session: Any) -> None: ...
def by_keyword(account_id: int, *, session: Any) -> None: ...
def account_by_keyword(session: Any, *, account_id: int) -> None: ...
def with_rest(account_id: int, *rest: Any, session: Any, **more: Any) -> None: ...
def no_session(account_id: int, force: bool = False) -> None: ...


BY_POSITION_AND_NAME = [
    (passes_on(no_session), ()),
    (by_name(account_first), ()),
    (into_kwargs(account_first), ()),
    (at_the_end(account_first), None),
    (by_name(account_and_force), ()),
    (by_name(by_keyword), ()),
    (by_name(with_rest), ()),
    (in_front(session_first), ()),
    (in_front_by_a_helper(session_first), ()),
    (by_name(account_second_of_three), ("eu",)),
    (by_name(account_second), ("eu",)),
    (passes_on(by_name(account_first)), ()),
    (by_name(passes_on(account_first)), ()),
    (passes_on(in_front(passes_on(session_first))), ()),
    (names_only(account_first), ()),
    (hidden_by_name(account_first), ()),
    (hidden_by_name(account_and_force), ()),
    (ByCall(account_first), ()),
    (pops_dry(no_session), ()),
    (binds(account_second), ("eu",)),
    (binds(no_session), ()),
]


@pytest.mark.parametrize("lock_key", [["account_id"], "{account_id}", None], ids=repr)
@pytest.mark.parametrize(("function", "before"), BY_POSITION_AND_NAME)
def test_a_named_argument_is_the_callers_by_position_or_name(
    function: Callable[..., Any], before: tuple[Any, ...] | None, lock_key: Any
) -> None:
    five = name(function, lock_key, *(before or ()), 5)
    assert five != name(function, lock_key, *(before or ()), 6)
    if before is not None:  # else the decorator itself cannot be called by name
        assert five == name(function, lock_key, *before, account_id=5)
    if before:
        assert five == name(function, lock_key, account_id=5, tenant=before[0])


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (in_front(session_first), (5, True), {}),
        (in_front(session_first), (5,), {"force": True}),
        (in_front(session_and_no_default), (5, True), {}),
        (in_front(session_and_no_default), (), {"account_id": 5, "force": True}),
        (in_front(account_by_keyword), (), {"account_id": 5}),
        (by_name(account_and_force), (5,), {"force": True}),
        (by_name(with_rest), (5, 6), {"more": 1}),
        (takes_a_token(no_session), ("token", 5), {}),
        (takes_a_token(no_session), ("other", 5, True), {"dry": True}),
        (takes_a_token(no_session), ("other",), {"account_id": 5}),
        (pops_dry(no_session), (5,), {"dry": True}),
        (pops_dry(no_session), (), {"account_id": 5, "dry": True}),
        (hidden_by_name(account_and_force), (5,), {"force": True}),
        (hidden_in_front(session_and_no_default), (), {"account_id": 5, "force": True}),
    ],
)
def test_what_else_a_call_says_does_not_change_the_name(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    given = name(function, ["account_id"], *args, **kwargs)
    plain = maker(lambda account_id: None, ["account_id"])
    assert given == plain.name((5,), {})


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (hidden_in_front(session_first), (5,), {}),
        (hidden_in_front(session_first), (5, True), {}),
        (InFront(session_first), (5,), {}),
        (InFront(session_first), (5, True), {}),
        (in_front_by_partial(session_first), (5,), {}),
        (in_front_by_partial(session_first), (5, True), {}),
        (made_by_another(session_first), (5,), {}),
        (made_by_another(session_first), (5, True), {}),
        (hidden_in_front(session_and_no_default), (5, True), {}),
        (hidden_in_front(session_and_no_default), (5,), {"force": True}),
        (hidden_by_name(account_second_of_three), ("eu", 5), {}),
        (in_front_of_args(session_first), (5,), {}),
        (in_front_of_args(session_first), (5, True), {}),
        (in_front_of_a_list(session_first), (5,), {}),
        (in_front_of_a_list(session_first), (5, True), {}),
        (by_name(account_first), (), {}),
        (by_name(account_first), (5, 6, 7), {}),
        (pops_dry(no_session), (1, 2, 3), {"dry": 1}),
    ],
)
@pytest.mark.parametrize("lock_key", [["account_id"], "account:{account_id}"])
def test_a_call_fails_if_it_lacks_a_named_argument_or_nobody_can_tell_which_it_is(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], lock_key: Any
) -> None:
    with pytest.raises(TypeError) as caught:
        maker(function, lock_key).name(args, kwargs)
    message = str(caught.value)
    assert "decorated.task" in message
    assert "'account_id'" in message
    assert "Pass it by name" in message
    assert "a callable" in message
    with pytest.raises(TypeError, match="'account_id'"):
        maker(function, lock_key).arguments(args, kwargs)


def test_where_nobody_can_tell_by_position_a_call_may_say_it_by_name() -> None:
    function = hidden_in_front(session_first)
    assert name(function, ["account_id"], account_id=5) != name(
        function, ["account_id"], account_id=6
    )
    function = in_front_of_args(session_first)
    assert name(function, ["account_id"], account_id=5, force=True) == name(
        hidden_in_front(session_first), ["account_id"], account_id=5
    )
    function = hidden_by_name(account_second_of_three)
    by_keyword = name(function, ["account_id"], "eu", account_id=5)
    assert by_keyword == name(function, ["account_id"], "us", account_id=5)
    both = ["tenant", "account_id"]  # the first argument is the caller's, so nothing is in front
    assert name(function, both, "eu", 5) == name(function, both, "eu", account_id=5)


def test_an_injected_argument_that_is_named_is_lacking() -> None:
    with pytest.raises(TypeError, match="'session'"):
        name(by_name(account_first), ["account_id", "session"], 5)


def test_an_argument_that_a_decorator_fills_in_front_is_none_of_the_callers() -> None:
    with pytest.raises(ConfigError, match="'session', which is not an argument of the task"):
        maker(in_front(session_first), ["session"])


@pytest.mark.parametrize("function", [takes_a_user, hidden_user])
def test_a_decorators_own_argument_may_be_named(function: Callable[..., Any]) -> None:
    def body(user: Any, force: bool = False) -> None: ...

    task = function(body)
    assert name(task, ["user_id"], 5) == name(task, ["user_id"], user_id=5, force=True)
    assert name(task, ["user_id"], 5) != name(task, ["user_id"], 6)
    with pytest.raises(ConfigError, match=r"task decorated\.task: lock_key names 'user'"):
        maker(task, ["user"])


def test_an_argument_that_a_decorator_may_hide_is_refused_at_once() -> None:
    def body(user: Any, force: bool = False) -> None: ...

    maker(takes_a_user(body), ["force"])
    with pytest.raises(ConfigError) as caught:
        maker(hidden_user(body), ["force"])
    assert "lock_key names 'force'" in str(caught.value)
    assert "user_id" in str(caught.value)


def test_a_decorator_with_a_signature_of_its_own_says_what_the_arguments_are() -> None:
    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(account: int, dry: bool = False) -> Any:
            return function(account, 1)

        return wrapper

    def body(x: int, y: int) -> None: ...

    for function in (decorator(body), passes_on(decorator(body))):
        assert name(function, None, 1) == name(function, None, account=1, dry=False)
        assert name(function, ["account"], 1) == name(function, ["account"], account=1, dry=True)
        with pytest.raises(ConfigError, match="its arguments are: account, dry"):
            maker(function, ["x"])


def test_an_optional_argument_of_kwargs_may_be_left_out_as_without_a_decorator() -> None:
    function = by_name(with_rest)
    assert name(function, ["region"], 5) == name(function, ["region"], 6)
    assert name(function, ["region"], 5) != name(function, ["region"], 5, region="eu")


def test_without_a_lock_key_no_two_different_calls_have_one_name() -> None:
    for function in (by_name(account_and_force), hidden_by_name(account_and_force)):
        names = {
            name(function, None, 5),
            name(function, None, 6),
            name(function, None, 5, force=True),
            name(function, None, account_id=6, force=True),
        }
        assert len(names) == 4
    names = {name(pops_dry(no_session), None, 5, **more) for more in ({}, {"dry": 1}, {"dry": 2})}
    assert len(names) == 3


def test_a_decorator_that_is_not_written_in_python_is_one_that_nobody_can_read() -> None:
    function = functools.lru_cache(account_second_of_three)
    five = maker(function, ["tenant", "account_id"]).name(("eu", 5, None), {})
    assert five != maker(function, ["tenant", "account_id"]).name(("eu", 6, None), {})
    with pytest.raises(TypeError, match="Pass it by name"):
        maker(function, ["account_id"]).name(("eu", 5), {})


@contextmanager
def scope() -> Iterator[None]:
    yield


def test_a_context_manager_as_a_decorator_hides_nothing() -> None:
    function = scope()(account_second)
    assert name(function, ["account_id"], "eu", 5) == name(
        function, ["account_id"], account_id=5, tenant="us"
    )


# -- as tasks ---------------------------------------------------------------------------------


def test_a_decorated_task_has_one_key_at_the_sender_and_the_worker(app: Celery) -> None:
    task = singleton(app, by_name(account_first), lock_key=["account_id"])
    assert task.lock_key_for(5) == task.lock_key_for(account_id=5) == key_at_worker(task, 5)
    assert task.lock_key_for(5) != task.lock_key_for(6)
    with pytest.raises(TypeError, match=r"keys\.task: lock_key names 'account_id'"):
        task.lock_key_for()


@pytest.mark.parametrize("decorator", [by_name, in_front_after_self, passes_on])
def test_a_bound_and_decorated_task_has_the_arguments_after_self(
    app: Celery, decorator: Callable[..., Any]
) -> None:
    if decorator is in_front_after_self:

        def body(self: Any, session: Any, account_id: int) -> None:
            """Given a session."""
    else:

        def body(self: Any, account_id: int, session: Any = None) -> None:
            """Given a session."""

    task = singleton(app, decorator(body), bind=True, lock_key=["account_id"])
    assert task.lock_key_for(5) == task.lock_key_for(account_id=5) == key_at_worker(task, 5)
    assert task.lock_key_for(5) != task.lock_key_for(6)


def test_a_decorator_may_keep_self_to_itself(app: Celery) -> None:
    task = singleton(app, without_self(no_session), bind=True, lock_key=["account_id"])
    assert task.lock_key_for(5) == task.lock_key_for(account_id=5, force=True)
    assert task.lock_key_for(5) != task.lock_key_for(6)


def test_a_task_written_as_a_class_may_be_decorated(app: Celery) -> None:
    class Sync(SingletonTask):
        name = "keys.class"
        lock_key = ("account_id",)

        @by_name
        def run(self, account_id: int, session: Any) -> None:
            """The body."""

    task = app.register_task(Sync())
    assert task.lock_key_for(5) == task.lock_key_for(account_id=5) == key_at_worker(task, 5)
    assert task.lock_key_for(5) != task.lock_key_for(6)


# -- async def --------------------------------------------------------------------------------


async def coroutine(x: Any = None) -> None: ...
async def generator(x: Any = None) -> AsyncIterator[int]:
    yield 1


def runs_it(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return wrapper


def runs_it_within(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        def main() -> Any:
            return function(*args, **kwargs)

        return asyncio.run(main())

    return wrapper


def runs_what_is_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
        return result

    return wrapper


def keeps_the_result(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        print("done")
        return result

    return wrapper


def makes_it_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        coroutine,
        generator,
        passes_on(coroutine),
        passes_on(generator),
        passes_on(in_front(coroutine)),
        keeps_the_result(coroutine),
        makes_it_async(no_session),
        passes_on(makes_it_async(no_session)),
    ],
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
    result = app.tasks["keys.task"].apply()
    assert isinstance(result.result, ConfigError)


@pytest.mark.parametrize(
    "run",
    [functools.partial(coroutine, 1), functools.partial(passes_on(coroutine), 1)],
    ids=["partial", "wrapped"],
)
def test_a_partial_of_an_async_function_is_refused_too(app: Celery, run: Any) -> None:
    cls = type("Sync", (SingletonTask,), {"name": "keys.class", "run": staticmethod(run)})
    with pytest.raises(ConfigError, match=r"task keys\.class: .*async def"):
        app.register_task(cls())


def test_an_async_method_is_refused_too(app: Celery) -> None:
    class Sync(SingletonTask):
        name = "keys.class"

        async def run(self, x: Any) -> None:
            """The body."""

    with pytest.raises(ConfigError, match=r"task keys\.class: .*async def"):
        app.register_task(Sync())


def test_an_async_task_of_somebody_else_is_refused_too(app: Celery) -> None:
    app.conf.redislock_tasks = {"other.*": {}}
    app.task(name="other.task", shared=False)(coroutine)
    with pytest.raises(ConfigError, match=r"task other\.task: .*async def"):
        app.finalize()


@pytest.mark.parametrize("decorator", [runs_it, runs_it_within, runs_what_is_async])
def test_a_decorator_that_runs_an_async_body_is_accepted(
    app: Celery, decorator: Callable[..., Any]
) -> None:
    task = singleton(app, decorator(coroutine), lock_key=["x"])
    assert task.lock_key_for(5) == task.lock_key_for(x=5) != task.lock_key_for(6)
    assert task.apply((5,)).state == "SUCCESS"
