"""Options and settings: what is accepted, what is refused and in which words, who wins.

A typo must never mean "no lock".
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task
from celery.exceptions import ImproperlyConfigured, TaskRevokedError

from celery_redislock import (
    Coalesce,
    ConfigError,
    Defer,
    Holder,
    LockConflict,
    LockError,
    LockLost,
    LockUnavailable,
    Policy,
    Queue,
    Raise,
    RedisLock,
    Replace,
    SingletonTask,
    Skip,
    TaskReplaced,
    TaskSkipped,
    Wait,
)
from celery_redislock.app.options import OPTIONS, SETTINGS
from celery_redislock.app.settings import app_locks
from celery_redislock.core import holders
from celery_redislock.worker import start
from tests.support.servers import free_port

URL = "redis://127.0.0.1:1/0"  # never asked


pytestmark = pytest.mark.usefixtures("no_shared_tasks")


@pytest.fixture
def make_app() -> Iterator[Callable[..., Celery]]:
    made = []

    def make(**settings: Any) -> Celery:
        app = Celery("options", set_as_current=False)
        app.conf.update({"broker_url": "memory://", "redislock_url": URL, **settings})
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


def body(x: Any = None) -> str:
    """The task of most tests."""
    return "ran"


def define(app: Celery, **options: Any) -> SingletonTask:
    """Define a task and bind it, as a worker's start does. Not shared with other apps."""
    # A function of its own: one that is at home in another app may lack a server in this one.
    own = FunctionType(body.__code__, globals(), body.__name__, body.__defaults__)
    app.task(base=SingletonTask, name="options.task", shared=False, **options)(own)
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


@pytest.mark.parametrize(
    ("name", "policy"),
    [("skip", Skip()), ("defer", Defer()), ("wait", Wait()), ("raise", Raise())],
)
def test_a_policy_may_be_given_by_its_short_name(make_app, name, policy) -> None:
    assert define(make_app(), on_conflict=name).lock_options.on_conflict == policy


def test_a_policy_of_ones_own_is_accepted(make_app) -> None:
    class Own(Policy):
        def act(self, conflict: Any) -> Any:
            return conflict.skip()

    assert isinstance(define(make_app(), on_conflict=Own()).lock_options.on_conflict, Own)


def test_the_apps_defaults_stand_in_for_what_a_task_leaves_out(make_app) -> None:
    app = make_app(redislock_ttl=7, redislock_on_conflict="raise", redislock_on_lock_lost="abort")
    options = define(app).lock_options
    assert (options.lock_ttl, options.on_conflict, options.on_lock_lost) == (7, Raise(), "abort")


def test_a_task_wins_over_the_apps_defaults(make_app) -> None:
    app = make_app(redislock_ttl=7, redislock_on_conflict="raise", redislock_on_lock_lost="abort")
    task = define(app, lock_ttl=8, on_conflict=Wait(), on_lock_lost="flag")
    options = task.lock_options
    assert (options.lock_ttl, options.on_conflict, options.on_lock_lost) == (8, Wait(), "flag")


def test_an_annotation_wins_over_the_task(make_app) -> None:
    app = make_app(task_annotations={"options.task": {"lock_ttl": 9, "on_conflict": "raise"}})
    options = define(app, lock_ttl=8).lock_options
    assert (options.lock_ttl, options.on_conflict) == (9, Raise())


def test_an_annotation_may_give_a_callable_key(make_app) -> None:
    app = make_app(task_annotations={"*": {"lock_key": lambda x: f"by annotation:{x}"}})
    assert define(app).lock_key_for(5).endswith("by annotation:5")


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


def test_the_settings_are_read_from_a_namespace_of_celerys(make_app) -> None:
    class Settings:
        CELERY_BROKER_URL = "memory://"
        CELERY_REDISLOCK_URL = URL
        CELERY_REDISLOCK_TTL = 11
        CELERY_REDISLOCK_PREFIX = "spaced"

    app = Celery("namespace", set_as_current=False)
    app.config_from_object(Settings, namespace="CELERY")
    task = define(app)
    assert task.lock_options.lock_ttl == 11
    assert task.lock_key_for().startswith("spaced:{")
    assert app_locks(app).require_server().url == URL


def test_a_config_module_may_set_what_later_code_overrides(make_app) -> None:
    app = Celery("objects", set_as_current=False)
    app.config_from_object({"redislock_url": URL, "redislock_ttl": 11})
    app.conf.redislock_ttl = 12
    assert define(app).lock_options.lock_ttl == 12


def test_settings_that_change_before_a_task_is_bound_hold_for_it(make_app) -> None:
    app = make_app(redislock_ttl=7)
    define(app)
    app.conf.redislock_ttl = 9
    app.task(base=SingletonTask, name="options.second", shared=False)(body)
    assert app.tasks["options.second"].lock_options.lock_ttl == 9


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({}, 300.0),
        ({"lock_ttl": 5}, 50.0),
        ({"lock_warn_after": None, "lock_ttl": 5}, 50.0),
        ({"lock_warn_after": 7}, 7.0),
        ({"lock_warn_after": 0.5, "lock_ttl": 60}, 0.5),
        ({"lock_warn_after": 7, "lock_scope": "queued+running"}, 7.0),
        ({"lock_scope": "queued"}, 300.0),
    ],
)
def test_an_old_holder_is_warned_of_after_ten_ttls_or_what_the_task_says(
    make_app, given, resolved
) -> None:
    warn_after = define(make_app(), **given).lock_options.lock_warn_after
    assert warn_after == resolved
    assert isinstance(warn_after, float)
    assert define(make_app(redislock_ttl=6)).lock_options.lock_warn_after == 60


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "near"),
    [
        ("lock_tll", "lock_ttl"),
        ("lock_keys", "lock_key"),
        ("lock_timeout", ""),
        ("lock_", ""),
        ("lockttl", "lock_ttl"),
        ("onconflict", "on_conflict"),
        ("on_conflicts", "on_conflict"),
        ("on_lock_loss", "on_lock_lost"),
        ("on_redis_errors", "on_redis_error"),
        ("lock_across_retry", "lock_across_retries"),
        ("redislock_ttl", "lock_ttl"),
        ("redislock_on_conflict", "on_conflict"),
        ("redislock_url", ""),
        ("LOCK_TTL", "lock_ttl"),
        ("Lock_Max_Hold", "lock_max_hold"),
        ("On_Conflict", "on_conflict"),
        ("on_lost", ""),
        ("on_error", ""),
        ("on_redis_failure", ""),
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


def test_an_option_that_is_only_annotated_with_a_type_is_refused_too(make_app) -> None:
    class Mistyped(SingletonTask):
        abstract = True
        lock_tll: int

    app = make_app()
    app.task(base=Mistyped, name="options.typed", shared=False)(body)
    with pytest.raises(ConfigError, match="lock_tll"):
        app.finalize()


def test_an_unknown_option_of_a_plain_mixin_is_refused_too(make_app) -> None:
    class Mixin:
        lock_tll = 5

    class Mixed(Mixin, SingletonTask):
        abstract = True

    app = make_app()
    app.task(base=Mixed, name="options.mixed", shared=False)(body)
    with pytest.raises(ConfigError, match="lock_tll"):
        app.finalize()


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


def test_a_bound_task_can_be_bound_again_and_be_the_base_of_another(make_app) -> None:
    app = make_app()
    task = define(app, lock_ttl=8)
    task.bind(app)
    task.bind(app)
    app.task(base=type(task), name="options.derived", shared=False, lock_max_hold=9)(body)
    options = app.tasks["options.derived"].lock_options
    assert (options.lock_ttl, options.lock_max_hold) == (8, 9)
    assert task.lock_options.lock_max_hold is None


def test_an_attribute_of_another_base_is_that_bases(make_app) -> None:
    class Alerting(Task):
        abstract = True
        on_alert = "mail"

    class Both(SingletonTask, Alerting):
        abstract = True

    app = make_app()
    app.task(base=Both, name="options.both", shared=False, on_alert="pager")(body)
    app.finalize()
    assert app.tasks["options.both"].on_alert == "pager"


def test_an_unknown_option_of_an_annotation_is_refused(make_app) -> None:
    app = make_app(task_annotations={"options.task": {"lock_tll": 5}})
    with pytest.raises(ConfigError, match=r"options\.task.*lock_tll"):
        define(app)


LEFTOVERS = [
    ("unique_on", ["x"], "celery-singleton; use lock_key"),
    ("unique_on", "x", "celery-singleton; use lock_key"),
    ("raise_on_duplicate", True, "use on_conflict='raise'"),
    ("raise_on_duplicate", False, "on_queued_conflict='raise'"),
    ("lock_expiry", 60, "celery-singleton; use lock_ttl"),
    ("once", {"graceful": True}, "celery-once; use lock_key, lock_scope and on_queued_conflict"),
    ("once", {}, "docs/migrating.md"),
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
    with pytest.raises(ConfigError) as for_others:
        define(make_app(redislock_tasks={"other.*": {option: value}}))
    for caught, where in (
        (on_task, "task options.task"),
        (for_others, "redislock_tasks['other.*']"),
    ):
        message = str(caught.value)
        assert message.startswith(f"{where}: {option!r} is an option of ")
        assert says in message
        for name in OPTIONS:
            assert name in message


def test_an_option_that_another_package_left_on_a_class_is_refused(make_app) -> None:
    class Old(SingletonTask):
        abstract = True
        unique_on = ["x"]  # noqa: RUF012  as celery-singleton is used

    app = make_app()
    app.task(base=Old, name="options.old", shared=False)(body)
    with pytest.raises(ConfigError, match=r"task options\.old: 'unique_on' is an option"):
        app.finalize()


def test_a_method_or_an_argument_may_have_the_name_of_another_packages_option(make_app) -> None:
    class Own(SingletonTask):
        abstract = True

        @property
        def ttl(self) -> int:
            return 5

        def once(self) -> None:
            """Something of its own."""

    def function(ttl: int, once: bool = False) -> None:
        """Its annotations are those of the task's class as well."""

    app = make_app()
    app.task(base=Own, name="options.own", shared=False)(function)
    app.finalize()
    assert app.tasks["options.own"].lock_key_for(1)


def test_what_belongs_to_a_task_of_somebody_else_is_left_alone(make_app) -> None:
    app = make_app(redislock_tasks={"other.*": {}})
    app.task(name="other.task", shared=False, ttl=5, unique_for=6)(body)
    app.finalize()
    assert app.tasks["other.task"].lock_options.lock_ttl == 30


def test_what_has_nothing_to_do_with_locks_is_left_alone(make_app) -> None:
    task = define(make_app(), account="x", owner="y", blocking=True, clock=5)
    assert task.account == "x"


BAD_OPTIONS = [
    *[("lock_ttl", value) for value in (0, -1, 0.05, "30", None, True, [], float("inf"))],
    *[("lock_ttl", value) for value in (float("nan"), 10**400, 1e300)],
    *[("lock_max_hold", value) for value in (0, -1, "60", True, float("inf"), 10**400)],
    *[("lock_warn_after", value) for value in (0, -1, "60", True, float("nan"), 10**400)],
    *[("on_conflict", value) for value in (Skip, Defer, "skp", "", None, 5, {"defer": 5})],
    *[("on_lock_lost", value) for value in ("ignore", "", None, True, "FLAG", ["flag"])],
    *[("lock_across_retries", value) for value in ("keep", None, True, {})],
    *[("on_redis_error", value) for value in ("skip", None, False, "Run", [])],
    *[("lock_key", value) for value in ("", [], [5], ["x", "x"], {"x"}, 5, {"x": 1}, b"x")],
]
ACCEPTED = {
    "lock_ttl": "a number of seconds",
    "lock_max_hold": "None or a number of seconds",
    "lock_warn_after": "None or a number of seconds",
    "on_conflict": "'coalesce', 'defer', 'queue', 'raise', 'replace', 'skip', 'wait'",
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


@pytest.mark.parametrize("value", [0, "5", None, float("nan"), 10**400])
def test_a_redis_lock_refuses_the_same_ttls(value) -> None:
    with pytest.raises(ConfigError, match="RedisLock: ttl="):
        RedisLock(URL, "name", ttl=value)


def test_a_bad_value_of_an_annotation_is_refused(make_app) -> None:
    app = make_app(task_annotations={"options.task": {"on_redis_error": "ignore"}})
    with pytest.raises(ConfigError, match=r"options\.task: on_redis_error='ignore'"):
        define(app)


def test_a_max_hold_shorter_than_the_ttl_is_refused(make_app) -> None:
    with pytest.raises(ConfigError, match=r"lock_max_hold=20 is shorter than lock_ttl=30.*must be"):
        define(make_app(), lock_max_hold=20)
    with pytest.raises(ConfigError, match="lock_max_hold=20 is shorter than lock_ttl=50"):
        define(make_app(redislock_ttl=50), lock_max_hold=20)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Coalesce(), r"on_conflict=Coalesce\(\) means one run and one that waits, and"),
        (Replace(), r"on_conflict=Replace\(grace=5.0\) ends the one that runs, and"),
        (Defer(max_wait=60, then=Replace()), "ends the one that runs, and"),
        (Queue(limit=1, then=Coalesce()), "means one run and one that waits, and"),
    ],
)
def test_a_policy_for_one_run_is_refused_with_a_limit_above_1(make_app, policy, why) -> None:
    with pytest.raises(ConfigError, match=f"{why} lock_limit=2 lets several run"):
        define(make_app(), lock_limit=2, on_conflict=policy)


@pytest.mark.parametrize(
    ("setting", "near"),
    [
        ("redislock_tll", "redislock_ttl"),
        ("redislock_uri", "redislock_url"),
        ("redislock_on_redis_error", ""),
        ("redislock_key", ""),
        ("redislock_task", "redislock_tasks"),
        ("redis_lock_url", "redislock_url"),
        ("redis_lock_ttl", "redislock_ttl"),
        ("redis_locks_tasks", "redislock_tasks"),
        ("lock_redis_url", ""),
    ],
)
def test_an_unknown_setting_is_refused_with_all_that_there_are(make_app, setting, near) -> None:
    with pytest.raises(ConfigError) as caught:
        define(make_app(**{setting: 5}))
    message = str(caught.value)
    assert repr(setting) in message
    assert near in message
    for name in SETTINGS:
        assert name in message


def test_an_unknown_setting_of_a_namespace_is_refused() -> None:
    app = Celery("namespace", set_as_current=False)
    app.config_from_object(
        type("Settings", (), {"CELERY_REDISLOCK_URL": URL, "CELERY_REDISLOCK_TLL": 5}),
        namespace="CELERY",
    )
    with pytest.raises(ConfigError, match="redislock_tll"):
        define(app)


def test_a_near_miss_of_a_namespaces_setting_is_refused_and_others_are_not_ours() -> None:
    settings = {"CELERY_REDISLOCK_URL": URL, "REDIS_LOCK_TIMEOUT": 5, "CELERY_REDIS_BLOCKING": 1}
    app = Celery("namespace", set_as_current=False)
    app.config_from_object(type("Settings", (), settings), namespace="CELERY")
    assert define(app).lock_options.lock_ttl == 30
    app = Celery("namespace", set_as_current=False)
    settings["CELERY_REDIS_LOCK_TTL"] = 5
    app.config_from_object(type("Settings", (), settings), namespace="CELERY")
    with pytest.raises(ConfigError, match="'redis_lock_ttl'; did you mean redislock_ttl"):
        define(app)


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("redislock_ttl", "30", "redislock_ttl='30' is not accepted; it must be a number"),
        ("redislock_ttl", None, "redislock_ttl=None"),
        ("redislock_on_conflict", "ignore", "redislock_on_conflict='ignore'"),
        ("redislock_on_conflict", Skip, "redislock_on_conflict=<class"),
        ("redislock_on_lock_lost", "die", "redislock_on_lock_lost='die'"),
        ("redislock_enabled", "yes", "redislock_enabled='yes' is not accepted"),
        ("redislock_enabled", 1, "redislock_enabled=1"),
        ("redislock_eager", None, "redislock_eager=None"),
        ("redislock_prefix", "", "redislock_prefix=''"),
        ("redislock_prefix", "a{b}", "redislock_prefix='a{b}'"),
        ("redislock_transport_options", ["db"], "redislock_transport_options=['db']"),
        ("redislock_transport_options", {"socket_timeout": 5}, "'socket_timeout'. Accepted: "),
        ("redislock_url", "amqp://host", "redislock_url: amqp is not accepted"),
        ("redislock_url", "localhost:6379", "one of: redis://, rediss://, unix://"),
        ("redislock_url", 6379, "redislock_url: "),
        ("redislock_url", "", "redislock_url: "),
        ("redislock_url", "sentinel://host", "redislock_transport_options: a sentinel:// URL"),
        ("redislock_tasks", ["other.task"], "redislock_tasks=['other.task']"),
        ("redislock_tasks", {"other.task": 60}, "redislock_tasks['other.task']=60"),
        ("redislock_tasks", {"o.*": {"lock_tll": 1}}, "redislock_tasks['o.*']: unknown option"),
    ],
)
def test_a_bad_setting_is_refused_by_name(make_app, setting, value, says) -> None:
    with pytest.raises(ConfigError) as caught:
        define(make_app(**{setting: value}))
    assert says in str(caught.value)
    assert str(caught.value).count("redislock_transport_options") <= 1


@pytest.mark.parametrize(
    "options", [{"lock_ttl": "60"}, {"on_conflict": Skip}, {"lock_key": ["z"]}]
)
def test_a_bad_value_for_a_task_of_somebody_else_is_refused(make_app, options) -> None:
    app = make_app(redislock_tasks={"other.*": options})
    app.task(name="other.task", shared=False)(body)
    with pytest.raises(ConfigError, match=r"task other\.task: "):
        app.finalize()


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


def start_worker_of(app: Celery) -> None:
    """What a worker's start does before its pool; the lock server is not asked."""
    start._on_worker_init(sender=SimpleNamespace(app=app))


def test_options_for_a_task_that_has_its_own_are_said_to_be_ignored(make_app, caplog) -> None:
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
    start_worker_of(app)
    assert task.lock_options.lock_ttl == 5
    assert app.tasks["other.task"].lock_options.lock_ttl == 62
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "redislock_tasks['no.such.task'] matches no task" in lines[0]
    assert "redislock_tasks['options.s*'] is ignored: options.second is a Singleton" in lines[1]
    assert "redislock_tasks['options.task'] is ignored: options.task is a Singleton" in lines[2]


@pytest.mark.parametrize("setting", ["redis_lock_tasks", "redislock_task"])
def test_a_near_miss_of_a_setting_ends_a_worker_without_any_locked_task(make_app, setting) -> None:
    app = make_app(**{setting: {"other.task": {}}})
    app.task(name="other.task", shared=False)(body)
    app.finalize()
    with pytest.raises(SystemExit, match="did you mean redislock_tasks"):
        start_worker_of(app)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:sec/ret@host/0",
        "redis://user:sec#ret@host/0",
        "user:secret@host:6379",
        "http://user:secret@host",
        "redis://:secret@host:99999/0",
        "sentinel://:secret@host:port",
        "sentinel://host:1;:secret@host:port",
        "redis://:secret@host?db=secret",
    ],
)
def test_no_error_shows_a_password(make_app, url) -> None:
    options = {"master_name": "m"}
    with pytest.raises(ConfigError) as caught:
        define(make_app(redislock_url=url, redislock_transport_options=options))
    assert "redislock_url" in str(caught.value)
    assert "sec" not in str(caught.value).replace("seconds", "")


def test_a_misconfigured_task_fails_and_never_runs_unlocked(make_app) -> None:
    app = make_app()
    ran = []

    @app.task(base=SingletonTask, name="options.bad", shared=False, lock_tll=5)
    def bad() -> None:
        ran.append(1)

    with pytest.raises(ConfigError):
        app.finalize()
    task = app.tasks["options.bad"]  # Celery keeps it registered
    result = task.apply()
    assert result.state == "FAILURE"
    assert isinstance(result.result, ConfigError)
    assert "lock_tll" in str(result.result)
    for call in (task.lock_key_for, task.lock_holder, task.break_lock):
        with pytest.raises(ConfigError):
            call()
    assert not ran


# -- where the locks are ----------------------------------------------------------------------


def test_without_any_redis_url_a_task_is_refused_and_told_what_to_set() -> None:
    app = Celery("none", broker="memory://", set_as_current=False)
    with pytest.raises(ConfigError) as caught:
        define(app)
    assert "set redislock_url" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"redislock_url": "redis://own/3", "result_backend": "redis://results/1"}, "own/3"),
        ({"result_backend": "redis://results/1", "broker_url": "redis://broker/2"}, "results/1"),
        ({"result_backend": "rpc://", "broker_url": "redis://broker/2"}, "broker/2"),
        ({"result_backend": None, "broker_url": "rediss://broker/2"}, "broker/2"),
        ({"broker_url": ["amqp://first//", "redis://second/2"]}, "second/2"),
        ({"broker_url": "amqp://first//;redis://second/2"}, "second/2"),
        ({"broker_url": "redis+socket:///run/redis.sock?virtual_host=2"}, "/run/redis.sock"),
    ],
)
def test_the_server_is_the_set_one_or_the_result_backend_or_the_broker(settings, url) -> None:
    app = Celery("derived", set_as_current=False)
    app.conf.update({"broker_url": "memory://", **settings})
    define(app)
    assert url in app_locks(app).require_server().url


def test_from_the_result_backends_options_only_what_tells_how_to_connect_is_taken() -> None:
    app = Celery("derived", broker="memory://", set_as_current=False)
    app.conf.update(
        result_backend="redis://results/1",
        result_backend_transport_options={
            "retry_policy": {"timeout": 5},
            "visibility_timeout": 60,
            "socket_timeout": 120,
            "client_name": "results",
        },
    )
    define(app)
    assert app_locks(app).require_server().options == {"client_name": "results"}


def test_sentinels_of_the_broker_are_asked_with_its_master_name() -> None:
    app = Celery("derived", set_as_current=False)
    app.conf.update(
        broker_url="sentinel://one:26379;sentinel://two:26379",
        broker_transport_options={"master_name": "main", "visibility_timeout": 5},
        redislock_transport_options={"db": 4},
    )
    define(app)
    server = app_locks(app).require_server()
    assert server.url == "sentinel://one:26379;sentinel://two:26379"
    assert server.options == {"master_name": "main", "db": 4}


def test_the_ssl_settings_of_broker_and_backend_are_taken_over() -> None:
    for settings in (
        {"result_backend": "redis://results/1", "redis_backend_use_ssl": {"ssl_ca_certs": "/ca"}},
        {"broker_url": "redis://broker/1", "broker_use_ssl": {"ssl_ca_certs": "/ca"}},
    ):
        app = Celery("derived", set_as_current=False)
        app.conf.update({"broker_url": "memory://", **settings})
        define(app)
        assert app_locks(app).require_server().options == {"ssl_ca_certs": "/ca"}


def test_two_apps_keep_two_servers(make_app) -> None:
    one = make_app(redislock_url=f"redis://127.0.0.1:{free_port()}/0", redislock_prefix="one")
    two = make_app(redislock_url=f"redis://127.0.0.1:{free_port()}/0", redislock_prefix="two")
    first, second = define(one, lock_ttl=5), define(two, lock_ttl=6)
    assert first.app_locks.store is not second.app_locks.store
    assert first.app_locks.require_server().url != second.app_locks.require_server().url
    assert (first.lock_options.lock_ttl, second.lock_options.lock_ttl) == (5, 6)
    assert first.lock_key_for().startswith("one:")
    assert second.lock_key_for().startswith("two:")


def test_an_app_keeps_its_connections_while_its_server_is_the_same(make_app) -> None:
    app = make_app()
    store = define(app).app_locks.store
    app.conf.redislock_ttl = 9
    second = app.task(base=SingletonTask, name="options.second", shared=False)(body)
    assert second.app_locks.store is store
    app.conf.redislock_url = "redis://127.0.0.1:2/0"
    third = app.task(base=SingletonTask, name="options.third", shared=False)(body)
    assert third.app_locks.store is not store


def test_defining_a_task_leaves_celerys_settings_of_other_tasks_alone(make_app) -> None:
    define(make_app())
    other = define(make_app(task_acks_late=True, task_serializer="pickle"))
    assert other.acks_late is True
    assert other.serializer == "pickle"


# -- without locks ----------------------------------------------------------------------------


def test_disabled_locks_need_no_server() -> None:
    app = Celery("off", broker="memory://", set_as_current=False)
    app.conf.redislock_enabled = False
    task = define(app)
    assert task.apply().get() == "ran"
    assert task() == "ran"


def test_a_bad_option_is_refused_also_while_locks_are_disabled() -> None:
    app = Celery("off", broker="memory://", set_as_current=False)
    app.conf.redislock_enabled = False
    with pytest.raises(ConfigError):
        define(app, lock_ttl=0)


def test_eager_tasks_need_no_server() -> None:
    app = Celery("eager", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True
    task = define(app)
    assert task.delay(1).get() == "ran"
    assert task.apply((1,)).get() == "ran"


def test_eager_tasks_that_are_to_lock_need_a_server() -> None:
    app = Celery("eager", broker="memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, redislock_eager=True)
    with pytest.raises(ConfigError, match="set redislock_url"):
        define(app)


def test_apply_takes_no_lock_and_asks_no_server_unless_told_to(make_app) -> None:
    silent = f"redis://127.0.0.1:{free_port()}/0"
    task = define(make_app(redislock_url=silent), on_redis_error="raise", lock_ttl=1)
    assert task.apply().get() == "ran"
    task = define(
        make_app(redislock_url=silent, redislock_eager=True), on_redis_error="raise", lock_ttl=1
    )
    with pytest.raises(LockUnavailable):
        task.apply().get()


def test_an_eager_task_takes_the_lock_where_it_is_told_to(
    make_app, redis_server, client, label
) -> None:
    app = make_app(redislock_url=redis_server.url, redislock_eager=True)
    seen = []

    @app.task(base=SingletonTask, bind=True, name="options.eager", shared=False, lock_key=["name"])
    def eager(self, name: str) -> None:
        seen.append((client.get(self.lock.key), self.lock.fence))

    eager.apply((label,)).get()
    ((value, fence),) = seen
    assert json.loads(value)["fence"] == fence > 0
    assert client.get(eager.lock_key_for(label)) is None


# -- errors -----------------------------------------------------------------------------------

HOLDER = Holder(
    task="pkg.task",
    task_id="0c1e",
    attempt=2,
    node="w1@host",
    pid=4711,
    acquired_at=1700000000.25,
    fence=1700000000250000,
    ttl=12.5,
    held_for_retry=True,
)
ERRORS = [
    LockError("a key", HOLDER),
    LockConflict("a key", HOLDER),
    LockConflict("a key"),
    LockLost("a key", HOLDER),
    LockLost(),
    LockUnavailable("a key", HOLDER, "TimeoutError: Timeout reading from socket"),
    LockUnavailable("a key", reason="gone"),
    TaskSkipped("a key", HOLDER),
    TaskReplaced("a key", HOLDER),
    TaskSkipped("a key"),
    ConfigError("task a: lock_tll"),
]


def by_pickle(error: Exception) -> Any:
    return pickle.loads(pickle.dumps(error))


def by_result(serializer: str) -> Callable[[Exception], Any]:
    """The way through a result backend: what `get()` raises for what the worker stored."""

    def carry(error: Exception) -> Any:
        app = Celery("errors", broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.update(result_serializer=serializer, accept_content=["json", "pickle", "yaml"])
        backend = app.backend
        stored = backend.encode(backend.prepare_exception(error, serializer))
        return backend.exception_to_python(backend.decode(stored))

    return carry


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: f"{type(e).__name__}{len(str(e))}")
@pytest.mark.parametrize("carry", [by_pickle, by_result("json"), by_result("pickle")])
def test_an_error_comes_back_from_its_way_as_it_went(error, carry) -> None:
    again = carry(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.key == error.key
    assert again.holder == error.holder
    assert getattr(again, "reason", None) == getattr(error, "reason", None)


def test_an_errors_message_names_key_and_holder() -> None:
    text = str(LockConflict("a key", HOLDER))
    assert "a key" in text
    assert "pkg.task[0c1e] on w1@host pid 4711 since 2023-11-14T22:13:20.250+00:00" in text
    assert "kept for its retry" in text
    assert str(LockUnavailable("a key", None, "why")).endswith("a key: why")


def test_who_was_replaced_is_not_told_that_the_newer_run_holds_the_lock() -> None:
    newer = Holder(task="pkg.task", task_id="0c1e")
    text = str(TaskReplaced("a key", newer))
    assert text == "replaced by a newer run of a key: pkg.task[0c1e]"
    assert str(TaskReplaced("a key", HOLDER)).startswith(
        "replaced by a newer run of a key: pkg.task[0c1e] on w1@host pid 4711 since"
    )
    assert str(TaskReplaced("a key")) == "replaced by a newer run of a key"
    assert str(TaskReplaced()) == "replaced by a newer run"
    assert str(TaskReplaced("two\nlines")) == "replaced by a newer run of two\\nlines"


@pytest.mark.parametrize(
    ("holder", "text"),
    [
        (Holder(task="pkg.task", task_id="0c1e"), "pkg.task[0c1e]"),
        (Holder(task="pkg.task"), "pkg.task"),
        (Holder(task_id="0c1e"), "RedisLock[0c1e]"),
        (Holder(pid=1, node="web"), "RedisLock on web pid 1"),
        (Holder(ttl=5.0), "a foreign value"),
    ],
)
def test_a_holder_is_named_by_what_is_known_of_it(holder, text) -> None:
    assert str(holder) == text


FOREIGN = [
    b'{"token":"x","pid":1,"acquired_at":"abc"}',
    b'{"token":"x","pid":1,"acquired_at":1e30}',
    b'{"token":"x","pid":1,"acquired_at":NaN}',
    b'{"token":"x","pid":1,"acquired_at":-1}',
    b'{"token":"x","pid":"one"}',
    b'{"token":"x","task":["a"],"task_id":"b"}',
    b'{"token":"x","task_id":{}}',
    b'{"token":"x","attempt":null}',
    b'{"token":"x","fence":"1"}',
    b'{"token":1,"pid":1}',
    b"[]",
    b"\xff",
]


@pytest.mark.parametrize("value", FOREIGN, ids=repr)
def test_a_value_with_fields_of_other_types_is_a_holder_that_nobody_knows(value) -> None:
    holder = holders.parse(value, 5.0)
    assert holder == Holder(ttl=5.0)
    assert "a foreign value" in str(LockConflict("a key", holder))


def test_a_value_of_ours_gives_its_holder() -> None:
    value = holders.encode("token", ttl_ms=5000, task="pkg.task", task_id="0c1e", node="w1@host")
    holder = holders.parse(value.encode(), 5.0)
    assert holder == Holder(
        task="pkg.task", task_id="0c1e", node="w1@host", pid=os.getpid(), ttl=5.0
    )
    assert holders.parse(holders.encode("token", ttl_ms=5000).encode(), None).pid == os.getpid()


def test_a_value_says_its_version_behind_its_token() -> None:
    value = holders.encode("token", ttl_ms=5000, task="pkg.task", task_id="0c1e")
    assert value.startswith('{"token":"token","v":2,')
    for kept in (
        holders.held_for_retry(value),
        holders.kept_in_queue(value, "next", task="pkg.task", attempt=1, nesting=0),
    ):
        assert kept.startswith('{"token":"')
        assert json.loads(kept)["v"] == 2


def of_version(version: str, **more: Any) -> bytes:
    """A lock's value with this version, and all that a holder records."""
    record = {
        "task": "pkg.task",
        "task_id": "0c1e",
        "attempt": 2,
        "nesting": 0,
        "node": "w1@host",
        "pid": 4711,
        "fence": 17,
        "acquired_at": 1700000000.25,
        "held": True,
        "redelivered": True,
        **more,
    }
    return f'{{"token":"x","v":{version},{json.dumps(record)[1:]}'.encode()


@pytest.mark.parametrize(
    "version", ["2", "1", "0", "-1", "1.5", "true", "null", '"3"', "[3]", "NaN"]
)
def test_a_value_of_no_newer_version_is_read(version, caplog) -> None:
    holder = holders.parse(of_version(version), 5.0)
    assert (holder.task_id, holder.pid, holder.fence) == ("0c1e", 4711, 17)
    assert holder.held_for_retry
    assert holders.decode(of_version(version))["redelivered"] is True
    assert not caplog.records


def test_a_value_without_a_version_is_the_first_and_is_read(caplog) -> None:
    holder = holders.parse(b'{"token":"x","task":"pkg.task","task_id":"0c1e","pid":4711}', 5.0)
    assert holder == Holder(task="pkg.task", task_id="0c1e", pid=4711, ttl=5.0)
    assert not caplog.records


@pytest.fixture
def newer_versions_unseen(monkeypatch) -> None:
    monkeypatch.setattr(holders, "_newer_was_told", False)


@pytest.mark.usefixtures("newer_versions_unseen")
@pytest.mark.parametrize("version", ["3", "2.5", "1e999", "9" * 40])
@pytest.mark.parametrize("more", [{}, {"reserved": True}, {"pid": "another type"}], ids=str)
def test_a_value_of_a_newer_version_is_held_by_whom_it_names_and_no_more(version, more) -> None:
    value = of_version(version, **more)
    holder = holders.parse(value, 5.0)
    assert holder == Holder(task="pkg.task", task_id="0c1e", ttl=5.0)
    assert str(holder) == "pkg.task[0c1e]"
    assert set(holders.decode(value)) == {"token", "v"}, "nothing else is believed"


@pytest.mark.usefixtures("newer_versions_unseen")
@pytest.mark.parametrize(
    ("names", "holder"),
    [
        ({"task": ["pkg.task"], "task_id": "0c1e"}, Holder(task_id="0c1e", ttl=5.0)),
        ({"task": "pkg.task", "task_id": 5}, Holder(task="pkg.task", ttl=5.0)),
        ({"task": None, "task_id": None}, Holder(ttl=5.0)),
    ],
    ids=str,
)
def test_names_of_a_newer_version_that_are_no_text_are_left_out(names, holder) -> None:
    assert holders.parse(of_version("3", **names), 5.0) == holder


@pytest.mark.usefixtures("newer_versions_unseen")
def test_a_newer_version_is_told_once(caplog) -> None:
    for version in ("3", "3", "4"):
        holders.parse(of_version(version, task="pkg\ntask"), 5.0)
        holders.decode(of_version(version))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("celery_redislock", "WARNING")
    said = record.getMessage()
    assert "a newer celery-redislock holds the lock of pkg\\ntask[0c1e]" in said
    assert "version 3" in said
    assert "up to version 2" in said


@pytest.mark.usefixtures("newer_versions_unseen")
def test_a_lock_of_a_newer_version_is_held_and_can_be_broken(redis_server, client, label) -> None:
    lock = RedisLock(redis_server.url, label, ttl=5)
    client.set(lock.key, of_version("3"), px=60_000)
    assert lock.acquire(timeout=0) is False
    assert lock.holder().task_id == "0c1e"
    with pytest.raises(LockConflict, match=r"held by pkg\.task\[0c1e\]\)"):
        RedisLock(redis_server.url, label, ttl=5, timeout=0).__enter__()
    lock._store.locks.break_lock(lock._keys, 5)
    assert lock.holder() is None


def test_every_error_is_a_lock_error_and_what_celery_takes_it_for() -> None:
    assert all(isinstance(error, LockError) for error in ERRORS)
    assert issubclass(TaskSkipped, TaskRevokedError)
    assert issubclass(ConfigError, ImproperlyConfigured)
