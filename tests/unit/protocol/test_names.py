"""From a call's arguments to its lock's key: one call, one key, wherever it is computed."""

from __future__ import annotations

import functools
import inspect
import re
import uuid
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_redislock import ConfigError, RedisLock, SingletonTask
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.names import KeyMaker
from celery_redislock.testing import (
    assert_free,
    assert_locked,
    assert_skipped,
    hold_lock,
    memory_locks,
)

ROOT = Path(__file__).parents[3]


def singleton(app: Celery, function: Callable[..., Any], **options: Any) -> SingletonTask:
    # Not shared: Celery would hand it to every app of the process.
    task = app.task(base=SingletonTask, name="keys.task", shared=False, **options)(function)
    _ = task.name  # binds it
    app.finalize()
    return app.tasks[task.name]


def key_at_worker(task: SingletonTask, *args: Any, **kwargs: Any) -> str:
    """The key as a worker computes it, from the message that the broker hands it."""
    queue = uuid.uuid4().hex
    task.apply_async(args, kwargs, queue=queue)
    with task.app.connection_for_read() as connection, _queue(connection, queue) as waiting:
        message = waiting.get(timeout=5)
        message.ack()
        sent_args, sent_kwargs, _ = message.payload
    return lock_keys(task.app_locks.prefix, task.lock_name(sent_args, sent_kwargs)).lock


def _queue(connection: Any, name: str) -> Any:
    return connection.SimpleQueue(name, accept=["json", "pickle"])


def plain(x: Any, y: Any = 2) -> None:
    """The task of most tests."""


# -- one call, one key ------------------------------------------------------------------------


def test_a_call_has_one_key_however_its_arguments_are_passed(app: Celery) -> None:
    task = singleton(app, plain)
    keys = {
        task.lock_key_for(1),
        task.lock_key_for(x=1),
        task.lock_key_for(1, 2),
        task.lock_key_for(1, y=2),
        task.lock_key_for(y=2, x=1),
    }
    assert len(keys) == 1
    assert task.lock_key_for(2) not in keys
    assert task.lock_key_for(1, 3) not in keys


def test_the_key_stands_in_redis_under_the_prefix_and_the_tasks_name(app: Celery) -> None:
    app.conf.redislock_prefix = "mine"
    key = singleton(app, plain).lock_key_for(1)
    assert key.startswith("mine:{")
    assert ":lock:keys.task:v1:" in key


@pytest.mark.parametrize(
    "value",
    [
        datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        b"\xff\xfe",
        {1: "a", 2: "b"},
        {"nested": [(1, 2), {"when": date(2024, 1, 1)}]},
        "größer",
        None,
    ],
    ids=repr,
)
def test_the_senders_key_is_the_one_that_the_worker_computes(app: Celery, value: Any) -> None:
    task = singleton(app, plain)
    assert task.lock_key_for(value) == key_at_worker(task, value)
    assert task.lock_key_for(1, y=value) == key_at_worker(task, 1, y=value)
    assert task.lock_key_for(value) != task.lock_key_for(1)


def test_with_pickle_the_worker_still_computes_the_senders_key(app: Celery) -> None:
    task = singleton(app, plain, serializer="pickle")
    value = {1: (1, 2), "s": {3, 4}, "b": bytearray(b"x")}
    assert task.lock_key_for(value) == key_at_worker(task, value)
    assert task.lock_key_for({1: "a"}) != task.lock_key_for({"1": "a"})


def test_a_default_is_what_it_would_be_had_it_been_sent(app: Celery) -> None:
    def function(when: Any = date(2024, 1, 1), pair: Any = (1, 2), by_id: Any = {1: "a"}) -> None:  # noqa: B006
        """Defaults that JSON changes on the way."""

    task = singleton(app, function)
    assert task.lock_key_for() == task.lock_key_for(date(2024, 1, 1), (1, 2), {1: "a"})
    assert task.lock_key_for() == key_at_worker(task, pair=(1, 2))


def test_a_default_that_no_message_can_carry_still_gives_one_key(app: Celery) -> None:
    def function(x: Any, marker: Any = object()) -> None:  # noqa: B008
        """Such a default is not an argument that a caller could send."""

    task = singleton(app, function)
    assert task.lock_key_for(1) == task.lock_key_for(x=1) == key_at_worker(task, 1)
    assert task.lock_key_for(1) != task.lock_key_for(1, marker=None)


def test_the_task_instance_of_a_bound_task_is_no_argument(app: Celery) -> None:
    def function(self: Any, x: Any, y: Any = 2) -> None:
        """Bound."""

    task = singleton(app, function, bind=True)
    assert task.lock_key_for(1) == task.lock_key_for(x=1, y=2) == key_at_worker(task, 1)


def test_a_pydantic_tasks_model_is_the_dict_that_it_arrives_as(app: Celery) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):
        number: int
        lines: list[str]

    def function(order: Order, force: bool = False) -> None:
        """Given a model."""

    function.__annotations__["order"] = Order  # the local class, not its name
    task = singleton(app, function, pydantic=True)
    sent = {"number": 5, "lines": ["a"]}
    assert task.lock_key_for(sent) == key_at_worker(task, sent)
    assert task.lock_key_for(sent) != task.lock_key_for({"number": 6, "lines": ["a"]})
    if getattr(task, "_dump_pydantic_arguments", None) is not None:  # since Celery 5.7
        order = Order(number=5, lines=["a"])
        assert task.lock_key_for(order) == task.lock_key_for(sent) == key_at_worker(task, order)


# -- lock_key ---------------------------------------------------------------------------------


def test_the_order_of_a_list_does_not_matter(app: Celery, make_app: Any) -> None:
    first = singleton(app, plain, lock_key=["x", "y"]).lock_key_for(1)
    assert singleton(make_app(), plain, lock_key=["y", "x"]).lock_key_for(1) == first


def test_a_list_chooses_from_what_kwargs_take_up(app: Celery) -> None:
    def function(x: Any, **more: Any) -> None:
        """Any keyword."""

    task = singleton(app, function, lock_key=["account"])
    assert task.lock_key_for(1, account=5) == task.lock_key_for(2, account=5, other=1)
    assert task.lock_key_for(1, account=5) != task.lock_key_for(1, account=6)
    assert task.lock_key_for(1) != task.lock_key_for(1, account=None)
    assert task.lock_key_for(1) == task.lock_key_for(2)


def test_a_templates_text_is_the_whole_name(app: Celery) -> None:
    task = singleton(app, plain, lock_key="account:{x}:{y:>3}")
    assert task.lock_key_for(5).endswith("}:lock:account:5:  2")
    assert task.lock_key_for(5) == key_at_worker(task, x=5)


def test_a_template_reaches_into_its_arguments_and_kwargs(app: Celery) -> None:
    def function(order: Any, **more: Any) -> None:
        """A dict, and any keyword."""

    task = singleton(app, function, lock_key="{order[id]}-{region}")
    assert task.lock_key_for({"id": 7}, region="eu").endswith(":lock:7-eu")


def test_a_callables_text_of_the_arguments_as_they_arrive_is_the_whole_name(app: Celery) -> None:
    def kinds(x: Any, y: Any = None) -> str:
        return f"{type(x).__name__} {type(y).__name__}"

    task = singleton(app, plain, lock_key=kinds)
    key = task.lock_key_for((1, 2), y=date(2024, 1, 1))
    assert key.endswith("}:lock:list date")
    assert key == key_at_worker(task, (1, 2), y=date(2024, 1, 1))


def test_two_tasks_and_a_redis_lock_share_the_lock_that_they_name_alike(app: Celery) -> None:
    first = singleton(app, plain, lock_key="account:{x}").lock_key_for(5)

    @app.task(base=SingletonTask, name="keys.other", shared=False, lock_key="account:{number}")
    def other(number: int) -> None:
        """Names its argument differently."""

    assert other.lock_key_for(5) == first
    assert RedisLock("redis://127.0.0.1:1/0", "account:5").key == first


@pytest.mark.parametrize(
    ("lock_key", "says"),
    [
        (["z"], "'z', which is not an argument of the task; its arguments are: x, y"),
        (["x", "self"], "'self'"),
        ("account:{x:{z}}", "'z'"),
        ("account:{x", "it must be one such as 'account:{account_id}'"),
        ("x", """did you mean lock_key=['x'] or '{x}'?"""),
        (lambda: "name", "it must take the call's own arguments: x, y"),
        (lambda a, b, c: "name", "it must take the call's own arguments"),
        (lambda self, x: "name", "remove self from its parameters"),
    ],
    ids=lambda v: getattr(v, "__name__", repr(v)),
)
def test_a_lock_key_that_does_not_fit_is_refused_at_once(
    app: Celery, lock_key: Any, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        singleton(app, plain, lock_key=lock_key)
    assert "keys.task" in str(caught.value)
    assert "lock_key" in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("template", ["nightly", "X", "x:y", "{{x}}"])
def test_a_template_without_fields_is_one_lock_for_all_calls(app: Celery, template: str) -> None:
    task = singleton(app, plain, lock_key=template)
    assert task.lock_key_for(1) == task.lock_key_for(2)


def keyword_only(x: Any, *, flag: Any, more: Any = 0) -> None:
    """Needs a keyword."""


def positional_only(x: Any, y: Any = 0, /) -> None:
    """Takes none."""


def variable(x: Any, *rest: Any, **more: Any) -> None:
    """Takes anything."""


def wrapped_by_something(x: Any) -> None:
    """Seen through its wrapper."""


@functools.wraps(wrapped_by_something)
def wrapper(*args: Any, **kwargs: Any) -> None:
    """May take other arguments."""


@pytest.mark.parametrize(
    ("function", "lock_key", "fits"),
    [
        (plain, lambda a: a, True),
        (plain, lambda y, x: x, True),
        (plain, lambda a, *, y: a, True),
        (plain, lambda **kw: "name", True),
        (plain, lambda a, /, *, b: a, False),
        (plain, functools.partial(lambda a, b: b, 1), True),
        (keyword_only, lambda a, flag: a, True),
        (keyword_only, lambda a, **kw: a, True),
        (keyword_only, lambda a, b: a, False),
        (positional_only, lambda a: a, True),
        (positional_only, lambda **kw: "name", False),
        (variable, lambda a, b, c, d: a, True),
        (variable, lambda: "name", False),
        (wrapper, lambda: "name", True),
        (lambda: None, lambda x: x, False),
    ],
)
def test_a_callable_is_refused_if_no_call_of_the_task_fits_it(
    function: Callable[..., Any], lock_key: Callable[..., Any], fits: bool
) -> None:
    def make() -> KeyMaker:
        return KeyMaker("keys.task", function, lock_key, lambda value: value)

    if fits:
        make()
    else:
        with pytest.raises(ConfigError, match=r"keys\.task: lock_key's callable"):
            make()


@pytest.mark.parametrize(
    ("template", "given"),
    [
        ("account:{number}", {"other": 1}),
        ("account:{order[id]}", {"order": 5}),
        ("account:{order[id]}", {"order": {}}),
        ("account:{order.id}", {"order": 5}),
        ("account:{number:>5}", {"number": None}),
    ],
)
def test_a_template_that_a_call_does_not_fill_fails_and_names_itself(
    app: Celery, template: str, given: dict[str, Any]
) -> None:
    def function(**more: Any) -> None:
        """Any keyword, or none."""

    task = singleton(app, function, lock_key=template)
    with pytest.raises(ValueError, match=rf"keys.task: lock_key='{re.escape(template)}'"):
        task.lock_key_for(**given)


@pytest.mark.parametrize("given", ["", 5, b"bytes"])
def test_a_callable_that_gives_no_text_fails(app: Celery, given: Any) -> None:
    task = singleton(app, plain, lock_key=lambda x: given)
    with pytest.raises(ValueError, match="must be a non-empty str"):
        task.lock_key_for(1)


def test_what_a_callable_raises_comes_out_as_it_is(app: Celery) -> None:
    def name(x: Any) -> str:
        raise TypeError("the callable's own")

    task = singleton(app, plain, lock_key=name)
    with pytest.raises(TypeError, match="the callable's own"):
        task.lock_key_for(1)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1}), ((1,), {"x": 1})]
)
def test_arguments_that_do_not_fit_are_refused_in_celerys_words(
    app: Celery, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    task = singleton(app, plain)
    with pytest.raises(TypeError) as celerys:
        task.apply_async(args, kwargs)
    with pytest.raises(TypeError) as ours:
        task.lock_key_for(*args, **kwargs)
    assert str(ours.value) == str(celerys.value)


def test_a_value_without_a_canonical_form_is_refused_with_a_way_out(app: Celery) -> None:
    task = singleton(app, plain, serializer="pickle")
    with pytest.raises(TypeError, match="list the arguments that identify the call in lock_key"):
        task.lock_key_for(timedelta(1))


# -- lock_headers -----------------------------------------------------------------------------

TENANT_A, TENANT_B = {"tenant": "a"}, {"tenant": "b"}


@pytest.mark.parametrize("lock_key", [None, ["x"], "{headers[tenant]}:{x}"])
def test_a_header_is_part_of_the_key(app: Celery, lock_key: Any) -> None:
    task = singleton(app, plain, lock_key=lock_key, lock_headers=["tenant"])
    of_a, of_b = task.with_headers(TENANT_A), task.with_headers(TENANT_B)
    assert of_a.lock_key_for(1) == of_a.lock_key_for(x=1) != of_a.lock_key_for(2)
    assert of_a.lock_key_for(1) != of_b.lock_key_for(1)
    assert of_a.lock_key_for(1) == task.with_headers({**TENANT_A, "other": 1}).lock_key_for(1)
    nested = task.with_headers({"headers": TENANT_A})
    assert of_a.lock_key_for(1) == nested.lock_key_for(1)
    sent = lock_keys("redislock", task.lock_name([1], {}, {"id": "x", **TENANT_A}))
    assert sent.lock == of_a.lock_key_for(1)


def test_a_template_takes_headers_in_any_place(app: Celery) -> None:
    template = "{x}-{headers[tenant]:>3}-{headers[x-user]!r}"
    task = singleton(app, plain, lock_key=template, lock_headers=["tenant", "x-user"])
    call = task.with_headers({"tenant": 7, "x-user": "anna"})
    assert call.lock_key_for(5).endswith("}:lock:5-  7-'anna'")
    assert call.arguments_of_call([5], {}) == {
        "x": 5,
        "headers[tenant]": 7,
        "headers[x-user]": "anna",
    }


def test_a_header_that_is_missing_or_none_gives_a_key_of_its_own_or_does_not_fit(
    app: Celery, make_app: Any
) -> None:
    task = singleton(app, plain, lock_key=["x"], lock_headers=["tenant"])
    assert task.lock_key_for(1) == task.with_headers({"tenant": None}).lock_key_for(1)
    texts = [task.with_headers({"tenant": each}).lock_key_for(1) for each in ("None", "", 0, False)]
    assert len({*texts, task.lock_key_for(1)}) == 5
    named = singleton(make_app(), plain, lock_key="{headers[tenant]}", lock_headers=["tenant"])
    with pytest.raises(ValueError, match=r"keys.task: lock_key='{headers\[tenant\]}' does not fit"):
        named.lock_key_for(1)


@pytest.mark.parametrize(
    "value", [["a"], {"id": 1}, b"a", uuid.UUID(int=5), date(2024, 1, 1)], ids=repr
)
def test_a_header_that_may_change_on_its_way_is_refused(app: Celery, value: Any) -> None:
    task = singleton(app, plain, lock_headers=["tenant"])
    with pytest.raises(TypeError, match=r"lock_headers names 'tenant', whose value is a"):
        task.with_headers({"tenant": value}).lock_key_for(1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lock_headers": "tenant"}, "must be None or a non-empty list of different names"),
        ({"lock_headers": []}, "non-empty list"),
        ({"lock_headers": ["a", "a"]}, "different names"),
        ({"lock_headers": [5]}, "non-empty list"),
        ({"lock_headers": ["id"]}, "not Celery's own, such as 'id'"),
        ({"lock_headers": ["headers"]}, "not Celery's own"),
        ({"lock_headers": ["redislock"]}, "not 'redislock'"),
        ({"lock_headers": ["a"], "lock_key": "{x}"}, "with the field {headers[a]}"),
        ({"lock_headers": ["a", "b"], "lock_key": "{headers[a]}"}, "with the field {headers[b]}"),
        (
            {"lock_headers": ["a"], "lock_key": "{headers[a]}{headers[b]}"},
            "{headers[b]} is not one",
        ),
        ({"lock_headers": ["a"], "lock_key": lambda x: "name"}, "lock_key is a callable"),
        ({"lock_headers": ["a"], "lock_label": "{headers[b]}"}, "{headers[b]} is not one"),
        ({"lock_key": "{headers[a]}"}, "'headers', which is not an argument"),
    ],
)
def test_headers_that_cannot_be_part_of_the_key_are_refused_at_once(
    app: Celery, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        singleton(app, plain, **options)
    assert str(caught.value).startswith("task keys.task: ")
    assert says in str(caught.value)


def test_a_template_and_an_argument_called_headers_do_not_go_together(
    app: Celery, make_app: Any
) -> None:
    def function(headers: Any) -> None:
        """Such as a web request's."""

    with pytest.raises(ConfigError, match="the task has an argument named 'headers'"):
        singleton(app, function, lock_key="{headers[a]}", lock_headers=["a"])
    singleton(make_app(), function, lock_headers=["a"], lock_label="a request")


def test_a_label_may_show_headers(app: Celery) -> None:
    label = "{x} of {headers[tenant]}"
    task = singleton(app, plain, lock_headers=["tenant"], lock_label=label)
    assert task.with_headers(TENANT_A).label_of_call([5], {}) == "5 of a"
    assert task.with_headers({}).label_of_call([5], {}) is None


def test_eager_calls_and_the_kit_know_headers(app: Celery) -> None:
    task = singleton(app, plain, lock_key=["x"], lock_headers=["tenant"])
    with memory_locks(), hold_lock(task.with_headers(TENANT_A), 5):
        assert_skipped(task.apply((5,), headers=TENANT_A))
        assert task.apply((5,), headers=TENANT_B).state == "SUCCESS"
        assert_locked(task.with_headers(TENANT_A), 5)
        assert_free(task, 5)
        assert task.with_headers(TENANT_A).break_lock(5)


# -- what a key asks of the arguments ---------------------------------------------------------


@pytest.mark.parametrize("lock_key", ["report", ["x"], "account:{x}"])
def test_a_key_asks_only_for_the_arguments_that_it_names(app: Celery, lock_key: Any) -> None:
    task = singleton(app, plain, lock_key=lock_key, typing=False)
    unfit = ([1, 2, 3], {}), ([1], {"z": 1}), ([1], {"session": object}), ([], {"x": 1, "z": 2})
    keys = {task.lock_name(args, kwargs) for args, kwargs in unfit}
    assert keys == {task.lock_name([1], {})}


# -- properties -------------------------------------------------------------------------------


def takes_none(): ...
def takes_plain(a, b, c=3, d=None): ...
def takes_packed(a, b=2, *more, c=3, **rest): ...
def takes_by_name(a, *, b, c=3): ...
def takes_by_place(a, b=2, /, c=3): ...


@given(
    st.sampled_from([takes_none, takes_plain, takes_packed, takes_by_name, takes_by_place]),
    st.lists(st.integers(), max_size=5),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), st.integers(), max_size=4),
)
def test_arguments_are_bound_as_python_binds_them(
    function: Callable[..., Any], args: list[int], kwargs: dict[str, int]
) -> None:
    maker = KeyMaker("keys.task", function, None, lambda value: value)
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:  # the task will fail; until then its lock is like no other call's
        maker.arguments(args, kwargs)
        return
    defaults = {
        name: parameter.default
        for name, parameter in bound.signature.parameters.items()
        if parameter.default is not parameter.empty
    }
    assert maker.arguments(args, kwargs) == {**defaults, **bound.arguments}


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "{a}", "\ud800", None, 5, b"bytes"])
def test_a_prefix_that_would_move_the_hash_tag_is_refused(app: Celery, prefix: Any) -> None:
    app.conf.redislock_prefix = prefix
    with pytest.raises(ConfigError, match="redislock_prefix"):
        singleton(app, plain)
    if prefix is not None:  # the default of a RedisLock
        with pytest.raises(ConfigError, match="prefix"):
            RedisLock("redis://127.0.0.1:1/0", "name", prefix=prefix)
