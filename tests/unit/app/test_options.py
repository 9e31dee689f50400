"""Options and settings: what is accepted, what is refused and in which words, who wins.

A typo must never mean "no lock".
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from datetime import timedelta
from types import FunctionType
from typing import Any

import pytest
from celery import Celery, group
from celery.app.trace import build_tracer

import celery_redislock
from celery_redislock import (
    Coalesce,
    ConfigError,
    Debounce,
    Defer,
    Policy,
    Queue,
    Raise,
    Replace,
    SingletonTask,
    Skip,
    Wait,
)
from celery_redislock.app.options import OPTIONS
from celery_redislock.protocol.names import WithDefaults

URL = "redis://127.0.0.1:1/0"  # never asked


def body(x: Any = None) -> str:
    """The task of most tests."""
    return "ran"


def define(app: Celery, **options: Any) -> SingletonTask:
    """Define a task and bind it, as a worker's start does. Not shared with other apps."""
    # A function of its own: one that is at home in another app may lack a server in this one.
    own = FunctionType(body.__code__, globals(), body.__name__, body.__defaults__)
    task = app.task(base=SingletonTask, name="options.task", shared=False, **options)(own)
    _ = task.name  # binds it
    app.finalize()
    return app.tasks["options.task"]


# -- what is resolved from what ---------------------------------------------------------------


def test_without_any_option_the_documented_defaults_hold(make_app) -> None:
    options = define(make_app()).lock_options
    assert options.lock_key is None
    assert options.lock_ttl == 30
    assert options.lock_max_hold is None
    assert options.on_conflict == Skip()
    assert options.on_lock_lost == "flag"
    assert options.lock_across_retries == "release"
    assert options.on_redis_error == "defer"


def test_a_tasks_own_options_are_taken(make_app) -> None:
    options = define(
        make_app(),
        lock_key=["x"],
        lock_ttl=5,
        lock_max_hold=60,
        on_conflict=Defer(delay=1),
        on_lock_lost="abort",
        lock_across_retries="hold",
        on_redis_error="raise",
    ).lock_options
    assert options.lock_key == ("x",)
    assert options.lock_ttl == 5.0
    assert options.lock_max_hold == 60.0
    assert options.on_conflict == Defer(delay=1)
    assert options.on_lock_lost == "abort"
    assert options.lock_across_retries == "hold"
    assert options.on_redis_error == "raise"


def test_a_task_wins_over_the_apps_defaults(make_app) -> None:
    app = make_app(redislock_ttl=7, redislock_on_conflict="raise", redislock_on_lock_lost="abort")
    task = define(app, lock_ttl=8, on_conflict=Wait(), on_lock_lost="flag")
    options = task.lock_options
    assert (options.lock_ttl, options.on_conflict, options.on_lock_lost) == (8, Wait(), "flag")


def test_an_annotation_wins_over_the_task(make_app) -> None:
    app = make_app(task_annotations={"options.task": {"lock_ttl": 9, "on_conflict": "raise"}})
    options = define(app, lock_ttl=8).lock_options
    assert (options.lock_ttl, options.on_conflict) == (9, Raise())


def test_a_task_inherits_the_options_of_its_base(make_app) -> None:
    class Slow(SingletonTask):
        abstract = True
        lock_ttl = 120
        on_conflict = "raise"

    app = make_app()
    app.task(base=Slow, name="options.slow", shared=False, on_conflict="wait")(body)
    app.finalize()
    options = app.tasks["options.slow"].lock_options
    assert (options.lock_ttl, options.on_conflict) == (120, Wait())


def test_an_old_holder_is_warned_of_after_ten_ttls(make_app) -> None:
    assert define(make_app(), lock_ttl=5).lock_options.warn_after == 50
    assert define(make_app(redislock_ttl=6)).lock_options.warn_after == 60


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "near"),
    [
        ("lock_tll", "lock_ttl"),
        ("lock_keys", "lock_key"),
        ("lock_timeout", ""),
        ("lock_min_hold_after", "lock_min_hold"),
        ("lock_warn_after", ""),
        ("lockttl", "lock_ttl"),
        ("on_conflicts", "on_conflict"),
        ("on_lock_loss", "on_lock_lost"),
        ("redislock_ttl", "lock_ttl"),
        ("redislock_url", ""),
        ("LOCK_TTL", "lock_ttl"),
        ("on_lost", ""),
        ("on_duplicate", ""),
    ],
)
def test_an_unknown_option_is_refused_with_all_that_there_are(make_app, option, near) -> None:
    with pytest.raises(ConfigError) as caught:
        define(make_app(), **{option: 5})
    message = str(caught.value)
    assert "task options.task" in message
    assert repr(option) in message
    assert f"did you mean {near}?" in message if near else "Accepted" in message
    for name in OPTIONS:
        assert name in message
    with pytest.raises(ConfigError, match=rf"options\.task.*{option}"):
        define(make_app(task_annotations={"options.task": {option: 5}}))


class Mixin:
    lock_tll = 5


class OnlyTyped(SingletonTask):
    abstract = True
    lock_tll: int


class Mixed(Mixin, SingletonTask):
    abstract = True


class OldOption(SingletonTask):
    abstract = True
    unique_on = ["x"]  # noqa: RUF012  as celery-singleton is used


@pytest.mark.parametrize(
    ("base", "option"), [(OnlyTyped, "lock_tll"), (Mixed, "lock_tll"), (OldOption, "unique_on")]
)
def test_an_unknown_option_of_a_base_is_refused_however_it_got_there(make_app, base, option):
    app = make_app()
    app.task(base=base, name="options.based", shared=False)(body)
    app.finalize()
    with pytest.raises(ConfigError, match=rf"options\.based: .*'{option}'"):
        app.tasks["options.based"].delay()


def test_an_argument_of_the_tasks_function_is_no_option(make_app) -> None:
    def function(lock_timeout: int, on_error: str, redislock_url: str = "") -> None:
        """Its annotations are those of the task's class as well."""

    app = make_app()
    app.task(base=SingletonTask, name="options.arguments", shared=False)(function)
    app.finalize()
    assert app.tasks["options.arguments"].lock_key_for(1, "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lock", True),
        ("lock", "x"),
        ("lock_options", {"ttl": 5}),
        ("lock_options", None),
        ("lock_name", "abc"),
        ("lock_key_for", ["x"]),
        ("lock_holder", "x"),
        ("break_lock", False),
        ("app_locks", {}),
        ("runs_in_children", True),
    ],
)
def test_a_name_that_the_base_class_has_itself_is_no_option(make_app, name, value) -> None:
    with pytest.raises(ConfigError) as caught:
        define(make_app(), **{name: value})
    message = str(caught.value)
    assert f"task options.task: {name}={value!r} is not accepted" in message
    for option in OPTIONS:
        assert option in message
    with pytest.raises(ConfigError, match=name):
        define(make_app(task_annotations={"options.task": {name: value}}))


def test_a_method_may_be_overridden_and_an_attribute_annotated(make_app) -> None:
    class Own(SingletonTask):
        abstract = True
        lock_options: Any
        on_done: Callable[..., None]

        def lock_name(self, args: Any, kwargs: Any) -> str:
            return "mine"

        @classmethod
        def on_commit(cls) -> None:
            """A hook of its own."""

        @property
        def on_call(self) -> str:
            return "x"

    app = make_app()
    app.task(base=Own, name="options.own", shared=False, on_alert=print)(body)
    app.finalize()
    assert app.tasks["options.own"].lock_key_for(5).endswith(":lock:mine")


LEFTOVERS = [
    ("unique_on", ["x"], "celery-singleton; use lock_key"),
    ("unique_on", "x", "celery-singleton; use lock_key"),
    ("raise_on_duplicate", True, "use on_conflict='raise'"),
    ("raise_on_duplicate", False, "on_queued_conflict='raise'"),
    ("lock_expiry", 60, "celery-singleton; use lock_ttl"),
    ("once", {"graceful": True}, "celery-once; use lock_key, lock_scope and on_queued_conflict"),
    ("once", {}, "page 'Migrating from another library', section 'From celery-once'"),
    ("heimdall", {"unique": True}, "celery-heimdall; use lock_key"),
    ("unique_for", 60, "use lock_min_hold"),
    ("ttl", 60, "use lock_ttl"),
    ("ttl", None, "use lock_ttl"),
]


@pytest.mark.parametrize(("option", "value", "says"), LEFTOVERS, ids=lambda v: repr(v)[:20])
def test_an_option_that_another_package_left_is_refused_with_the_one_to_use_here(
    make_app, option, value, says
) -> None:
    with pytest.raises(ConfigError) as on_task:
        define(make_app(), **{option: value})
    with pytest.raises(ConfigError) as in_annotation:
        define(make_app(task_annotations={"options.task": {option: value}}))
    assert str(in_annotation.value) == str(on_task.value)
    app = make_app(redislock_tasks={"other.*": {option: value}})
    app.task(name="other.task", shared=False)(body)
    with pytest.raises(ConfigError) as for_others:
        app.tasks["other.task"].delay()
    for caught, where in (
        (on_task, "task options.task"),
        (for_others, "redislock_tasks['other.*']"),
    ):
        message = str(caught.value)
        assert message.startswith(f"{where}: {option!r} is an option of ")
        assert says in message
        for name in OPTIONS:
            assert name in message


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("key", "use lock_key, such as lock_key=['account_id']"),
        ("timeout", "time_limit for the longest run, or on_conflict=Wait(timeout=...) for waiting"),
        ("expiry", "or expires for the time in which a message must be taken"),
        ("lock_timeout", "a heartbeat extends it), or time_limit for the longest run"),
    ],
)
def test_what_other_locks_call_an_option_is_refused_with_what_is_meant(
    make_app, option, meant
) -> None:
    with pytest.raises(ConfigError) as caught:
        define(make_app(), **{option: 5})
    message = str(caught.value)
    assert message.startswith(f"task options.task: {option!r} is not an option of a locked task")
    assert meant in message
    if option != "key":
        assert "use lock_ttl for the time that a lock outlives a dead holder" in message
    assert not hasattr(define(make_app()), option)


def test_what_belongs_to_a_task_of_somebody_else_is_left_alone(make_app) -> None:
    app = make_app(redislock_tasks={"other.*": {}})
    app.task(name="other.task", shared=False, ttl=5, unique_for=6)(body)
    app.finalize()
    assert app.tasks["other.task"].lock_options.lock_ttl == 30


POLICIES = ["Coalesce", "Debounce", "Defer", "Queue", "Raise", "Replace", "Skip", "Wait"]
BAD_OPTIONS = [
    *[("lock_ttl", value) for value in (0, -1, 0.05, "30", None, True, [], float("inf"))],
    *[("lock_ttl", value) for value in (float("nan"), 10**400, 1e300)],
    *[("lock_max_hold", value) for value in (0, -1, "60", True, float("inf"), 10**400)],
    *[("lock_pause", value) for value in (0, "60", {}, {"success": "60"}, {"retry": 5})],
    *[("on_conflict", value) for value in (Skip, Defer, "skp", "", None, 5, {"defer": 5})],
    *[("on_lock_lost", value) for value in ("ignore", "", None, True, "FLAG", ["flag"])],
    *[("lock_across_retries", value) for value in ("keep", None, True, {})],
    *[("on_redis_error", value) for value in ("skip", None, False, "Run", [])],
    *[("lock_key", value) for value in ("", [], [5], ["x", "x"], {"x"}, 5, {"x": 1}, b"x")],
]
ACCEPTED = {
    "lock_ttl": "a number of seconds",
    "lock_max_hold": "None or a number of seconds",
    "lock_pause": "or a dict of these by 'success' and 'failure', such as {'success': 60,",
    "on_conflict": ", ".join(repr(each.lower()) for each in POLICIES),
    "on_lock_lost": "'flag' or 'abort'",
    "lock_across_retries": "'release' or 'hold'",
    "on_redis_error": "'defer', 'run' or 'raise'",
    "lock_key": "argument names, a str.format template, or a callable",
}


@pytest.mark.parametrize(("option", "value"), BAD_OPTIONS, ids=lambda v: repr(v)[:30])
def test_a_bad_value_is_refused_naming_task_option_and_what_is_accepted(
    make_app, option, value
) -> None:
    with pytest.raises(ConfigError) as caught:
        define(make_app(), **{option: value})
    message = str(caught.value)
    assert "task options.task" in message
    assert f"{option}=" in message
    assert ACCEPTED[option] in message


@pytest.mark.parametrize(
    ("value", "pauses"),
    [
        (60, (60.0, 60.0)),
        (timedelta(minutes=1), (60.0, 60.0)),
        ({"success": 60, "failure": timedelta(seconds=5)}, (60.0, 5.0)),
        ({"failure": 5}, (0.0, 5.0)),
    ],
)
def test_a_pause_is_one_for_all_ends_or_of_a_length_for_each(make_app, value, pauses) -> None:
    assert define(make_app(), lock_pause=value).lock_options.lock_pause == pauses


def test_a_max_hold_shorter_than_the_ttl_is_refused(make_app) -> None:
    with pytest.raises(ConfigError, match=r"lock_max_hold=20 is shorter than lock_ttl=30.*must be"):
        define(make_app(), lock_max_hold=20)
    with pytest.raises(ConfigError, match="lock_max_hold=20 is shorter than lock_ttl=50"):
        define(make_app(redislock_ttl=50), lock_max_hold=20)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Coalesce(), r"on_conflict=Coalesce\(\) allows one run, and"),
        (Replace(), r"on_conflict=Replace\(grace=5.0\) ends the run that holds the lock, and"),
        (Defer(max_wait=60, then=Replace()), "ends the run that holds the lock, and"),
        (Queue(limit=1, then=Coalesce()), "allows one run, and"),
    ],
)
def test_a_policy_for_one_run_is_refused_with_a_limit_above_1(make_app, policy, why) -> None:
    with pytest.raises(ConfigError, match=f"{why} lock_limit=2 allows several"):
        define(make_app(), lock_limit=2, on_conflict=policy)


def test_a_policy_for_one_run_is_refused_with_a_limit_that_depends_on_the_call(make_app) -> None:
    with pytest.raises(ConfigError, match=r"allows one run, and lock_limit=<function .* allows"):
        define(make_app(), lock_limit=lambda x: 1, on_conflict=Coalesce())


def test_a_limit_that_cannot_be_asked_for_is_refused(make_app) -> None:
    with pytest.raises(ConfigError, match=r"lock_limit's callable takes .* but no call of"):
        define(make_app(), lock_limit=lambda account, plan: 1)


def render(user, plan="free", *, urgent=False):
    """A task's function."""


def passed_on(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "limit",
    [
        lambda user, plan, urgent: (user, plan, urgent),
        lambda **call: tuple(call[name] for name in ("user", "plan", "urgent")),
        lambda user, **more: (user, more["plan"], more["urgent"]),
        lambda u, p, *, urgent: (u, p, urgent),
        lambda *args, **kwargs: (*args, *kwargs.values()),
        functools.partial(lambda x, user, plan, urgent: (user, plan, urgent), 0),
    ],
)
@pytest.mark.parametrize("function", [render, passed_on(render)], ids=["plain", "decorated"])
def test_a_limit_gets_the_tasks_defaults(limit, function) -> None:
    asks = WithDefaults("task t: lock_limit", "task", limit, function)
    assert asks((5,), {}) == (5, "free", False)
    assert asks((5, "gold"), {"urgent": True}) == (5, "gold", True)
    assert asks((), {"plan": "gold", "user": 5}) == (5, "gold", False)


def test_a_limit_gets_what_a_call_has_beyond_the_named_arguments() -> None:
    def many(user, *more, **others):
        """A task's function."""

    asks = WithDefaults("task t: lock_limit", "task", lambda *a, **k: (a, k), many)
    assert asks((1, 2, 3), {"x": 4}) == ((1, 2, 3), {"x": 4})


def test_a_limit_under_a_decorator_that_gives_arguments_takes_what_calls_have() -> None:
    def stores(session, user):
        """A task's function."""

    asks = WithDefaults("task t: lock_limit", "task", lambda user: user, passed_on(stores))
    assert asks((), {"user": 5}) == 5
    asks = WithDefaults("task t: lock_limit", "task", lambda s, u: (s, u), passed_on(stores))
    assert asks((1, 2), {}) == (1, 2)


@pytest.mark.parametrize("limit", [lambda user: 1, lambda user, plan: 1, lambda u, p=0: 1])
def test_a_limit_that_some_call_could_not_be_asked_for_is_refused(limit) -> None:
    said = (
        r"takes \(.*\), but gets every argument of a call of the task, .*: user, plan, urgent; it"
    )
    with pytest.raises(ConfigError, match=said):
        WithDefaults("task t: lock_limit", "task", limit, render)


def test_a_debounced_task_is_sent_though_one_like_it_waits(make_app) -> None:
    with pytest.raises(ConfigError, match=r"Debounce\(.*contradicts lock_scope='queued\+running'"):
        define(make_app(), on_conflict=Debounce(), lock_scope="queued+running")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"quiet": 0}, r"quiet=0 must be more than 0 s"),
        ({"quiet": 10, "max_wait": 5}, "at most max_wait=5"),
        ({"quiet": "1"}, "quiet='1' is not accepted; it must be a number of seconds"),
        ({"max_wait": None}, "max_wait=None is not accepted; it must be a number of seconds"),
    ],
)
def test_a_quiet_time_that_cannot_be_kept_is_refused(options, why) -> None:
    with pytest.raises(ConfigError, match=f"Debounce: {why}" if "at most" not in why else why):
        Debounce(**options)


def test_each_policy_has_a_short_name_that_messages_and_documents_tell() -> None:
    concrete = [name for name, each in vars(celery_redislock).items() if is_policy(each)]
    assert sorted(concrete) == POLICIES
    for name in POLICIES:
        assert f'"{name.lower()}"' in (SingletonTask.__doc__ or "")


def is_policy(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Policy) and value is not Policy


def test_the_options_for_a_task_of_somebody_else_are_taken(make_app) -> None:
    app = make_app(
        redislock_tasks={
            "other.*": {"lock_ttl": 60},
            "other.special.*": {"lock_ttl": 61, "lock_key": lambda x: f"special:{x}"},
            "other.one": {"lock_ttl": 62},
        }
    )
    for name in ("other.task", "other.special.task", "other.one", "unrelated"):
        app.task(name=name, shared=False)(body)
    app.finalize()
    ttls = {name: app.tasks[name].lock_options.lock_ttl for name in app.tasks if "other" in name}
    assert ttls == {"other.task": 60, "other.special.task": 61, "other.one": 62}
    assert app.tasks["other.special.task"].lock_key_for(5).endswith(":lock:special:5")
    assert not isinstance(app.tasks["unrelated"], SingletonTask)


def test_options_for_a_task_that_has_its_own_are_said_to_be_ignored(
    make_app, start_worker_of, caplog
) -> None:
    app = make_app(
        redislock_enabled=False,
        redislock_tasks={
            "options.task": {"lock_ttl": 60},
            "options.s*": {"lock_ttl": 61},
            "*": {"lock_ttl": 62},
            "no.such.task": {},
        },
    )
    for name, base in (("options.second", SingletonTask), ("other.task", None)):
        app.task(name=name, shared=False, base=base)(body)
    task = define(app, lock_ttl=5)
    caplog.set_level(logging.INFO, "celery_redislock")
    start_worker_of(app)
    assert task.lock_options.lock_ttl == 5
    assert app.tasks["other.task"].lock_options.lock_ttl == 62
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert lines[0] == "redislock: redislock_tasks['no.such.task'] matches no task of this app"
    assert "redislock_tasks['options.s*'] is ignored: options.second is a Singleton" in lines[1]
    assert "redislock_tasks['options.task'] is ignored: options.task is a Singleton" in lines[2]
    assert lines[3] == "redislock: redislock_enabled is False: 3 tasks without locks"


def test_a_misconfigured_task_is_refused_at_each_use_and_never_runs_unlocked(make_app) -> None:
    app = make_app()
    ran = []

    @app.task(base=SingletonTask, name="options.bad", shared=False, lock_tll=5)
    def bad() -> None:
        ran.append(1)

    app.finalize()
    task = app.tasks["options.bad"]
    for use in (
        *(bad.delay, bad.apply_async, bad.apply, bad.s().delay, group(bad.s()).apply_async),
        *(task.lock_key_for, task.lock_holder, task.break_lock),
    ):
        for _ in range(2):
            with pytest.raises(ConfigError, match="unknown option 'lock_tll'"):
                use()
    app.conf.task_always_eager = True
    with pytest.raises(ConfigError, match="lock_tll"):
        bad.delay()
    task.__trace__ = build_tracer(task.name, task, app=app)  # as a worker runs it
    assert "lock_tll" in str(task.__trace__("an id", (), {}, {"id": "an id"}))
    assert not ran


def test_an_error_that_is_raised_often_does_not_grow(make_app) -> None:
    task = make_app().task(base=SingletonTask, name="options.bad", shared=False, lock_ttl=0)(body)
    lengths = set()
    for _ in range(5):
        with pytest.raises(ConfigError) as caught:
            task.delay()
        lengths.add(len(caught.traceback))
    assert len(lengths) <= 2, "the first is raised as the task is bound"


# -- without locks ----------------------------------------------------------------------------


def test_disabled_locks_need_no_server(make_app) -> None:
    off = {"redislock_url": None, "redislock_enabled": False}
    task = define(make_app(**off, redislock_eager=True, task_always_eager=True))
    assert task.delay().get() == "ran"
    assert task() == "ran"


def test_a_bad_option_is_refused_also_while_locks_are_disabled(make_app) -> None:
    with pytest.raises(ConfigError):
        define(make_app(redislock_enabled=False), lock_ttl=0)


def test_eager_tasks_need_no_server(make_app) -> None:
    task = define(make_app(redislock_url=None, task_always_eager=True), on_redis_error="raise")
    assert task.delay(1).get() == "ran"
    assert task.apply((1,)).get() == "ran"
    task = define(make_app(), on_redis_error="raise")  # nobody listens there
    assert task.apply((1,)).get() == "ran"


def test_eager_tasks_that_are_to_lock_need_a_server(make_app) -> None:
    with pytest.raises(ConfigError, match="set redislock_url"):
        define(make_app(redislock_url=None, task_always_eager=True, redislock_eager=True))


def test_none_is_a_value_and_an_option_that_nobody_set_is_called_so(make_app) -> None:
    assert repr(SingletonTask.lock_pause) == "UNSET"
    options = define(make_app(), lock_pause=None, lock_headers=None).lock_options
    assert (options.lock_pause, options.lock_headers) == (None, ())


def test_a_lock_is_not_held_for_longer_than_it_may_be(make_app) -> None:
    with pytest.raises(ConfigError, match=r"lock_min_hold=90 is longer than lock_max_hold=60"):
        define(make_app(), lock_min_hold=90, lock_max_hold=60)
