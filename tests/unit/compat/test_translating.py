"""Which options of ours another package's options and settings come to, and what is refused."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_redislock import ConfigError, LockUnavailable, RedisLock, SingletonTask, Skip, Wait
from celery_redislock.app.settings import app_locks
from celery_redislock.compat.celery_once import QueueOnce
from celery_redislock.compat.celery_singleton import Singleton
from celery_redislock.compat.leftovers import section

URL = "redis://127.0.0.1:1/7"  # never asked
ONCE = section("celery-once")
SINGLETON = section("celery-singleton")


def define(app: Celery, base: type[Any], **options: Any) -> Any:
    """Define a task and bind it, as a worker's start does."""

    def body(a, b=1): ...

    task = app.task(base=base, name="compat.task", shared=False, **options)(body)
    _ = task.name  # binds it
    app.finalize()
    return app.tasks["compat.task"]


def options_of(app: Celery, base: type[Any], **options: Any) -> dict[str, Any]:
    return define(app, base, **options).lock_options._asdict()


# -- their options ----------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "duplicate"), [(QueueOnce, "raise"), (Singleton, "existing")])
def test_a_task_is_unique_until_it_has_ended(make_app, base, duplicate):
    options = options_of(make_app(), base)
    assert options["lock_scope"] == "queued+running"
    assert options["on_queued_conflict"] == duplicate
    assert options["lock_queued_ttl"] == 3600
    assert options["lock_key"] is None
    assert options["on_conflict"] == Skip()


def once(given: object, *expected: object) -> tuple[object, ...]:
    return QueueOnce, {"once": given}, *expected


def single(given: object, *expected: object) -> tuple[object, ...]:
    return Singleton, given, *expected


@pytest.mark.parametrize(
    ("base", "given", "option", "value"),
    [
        once({"graceful": True}, "on_queued_conflict", "existing"),
        once({"graceful": False}, "on_queued_conflict", "raise"),
        once({"unlock_before_run": True}, "lock_scope", "queued"),
        once({"timeout": 36000}, "lock_queued_ttl", 36000.0),
        once({"keys": ["a"]}, "lock_key", ("a",)),
        once({"keys": ("b", "a", "b")}, "lock_key", ("b", "a")),
        once({"keys": {"b", "a"}}, "lock_key", ("a", "b")),
        once({"keys": []}, "lock_key", "compat.task:all"),
        once({"keys": None}, "lock_key", None),
        once({}, "on_queued_conflict", "raise"),
        single({"unique_on": "a"}, "lock_key", ("a",)),
        single({"unique_on": ["a", "b"]}, "lock_key", ("a", "b")),
        single({"unique_on": []}, "lock_key", None),
        single({"raise_on_duplicate": True}, "on_queued_conflict", "raise"),
        single({"raise_on_duplicate": False}, "on_queued_conflict", "existing"),
        single({"lock_expiry": 10}, "lock_queued_ttl", 10.0),
    ],
)
def test_their_options_say_options_of_ours(make_app, base, given, option, value):
    assert options_of(make_app(), base, **given)[option] == value
    annotated = make_app(task_annotations={"compat.task": given})
    assert options_of(annotated, base)[option] == value


@pytest.mark.parametrize(
    ("base", "given", "says"),
    [
        once({"kys": ["a"]}, "has an unknown key 'kys'; accepted: 'graceful', 'keys', 'timeout',"),
        once(
            {"keys": "a"}, "once['keys']='a' is not accepted; it must be a list of argument names"
        ),
        once({"keys": [1]}, "once['keys']=[1]"),
        once({"keys": ["c"]}, "lock_key names 'c', which is not an argument"),
        once({"graceful": "no"}, "once['graceful']='no' is not accepted; it must be True or False"),
        once({"unlock_before_run": 1}, "once['unlock_before_run']=1"),
        once({"timeout": None}, "once['timeout']=None is not accepted; it must be a number of"),
        once({"timeout": -1}, "once['timeout']=-1"),
        once([], "once=[] is not accepted; it must be a dict"),
        single(
            {"unique_on": 5}, "unique_on=5 is not accepted; it must be a list of argument names"
        ),
        single({"unique_on": ["c"]}, "lock_key names 'c'"),
        single({"raise_on_duplicate": "yes"}, "raise_on_duplicate='yes'"),
        single({"lock_expiry": 0}, "lock_expiry=0 is not accepted; it must be a number of seconds"),
        single({"typing": False, "unique_on": "a"}, "typing=False"),
    ],
)
def test_a_wrong_option_is_refused_when_the_task_is_bound(make_app, base, given, says):
    with pytest.raises(ConfigError) as caught:
        define(make_app(), base, **given)
    message = str(caught.value)
    assert message.startswith("task compat.task: ")
    assert says in message
    assert message.count(ONCE if base is QueueOnce else SINGLETON) == 1


@pytest.mark.parametrize("once", [{"keys": ["a"]}, {"unlock_before_run": True}])
def test_what_celery_once_ignores_in_a_call_is_refused(make_app, once):
    task = define(make_app(), QueueOnce)
    with pytest.raises(ConfigError, match=r"a call of task .* accepted: 'graceful', 'timeout'"):
        task.apply_async((1,), once=once)


def test_the_setting_once_says_where_the_locks_are(make_app):
    settings = {"url": URL, "default_timeout": 60, "blocking": False, "blocking_timeout": 1}
    app = make_app(ONCE={"backend": "celery_once.backends.Redis", "settings": settings})
    app.conf.redislock_url = None
    task = define(app, QueueOnce)
    assert task.lock_options.lock_queued_ttl == 60
    app.conf.redislock_url = URL.replace("7", "8")
    assert app_locks(app, refresh=True).address.url.endswith("8"), "ours wins"


@pytest.mark.parametrize(
    ("base", "setting", "says"),
    [
        (QueueOnce, {"ONCE": {"backend": "a.File"}}, "ONCE['backend']='a.File'"),
        (
            QueueOnce,
            {"ONCE": {"settings": {"blocking": True}}},
            "ONCE['settings']['blocking']=True is not accepted",
        ),
        (
            QueueOnce,
            {"ONCE": {"settings": {"location": "/"}}},
            "ONCE['settings'] has an unknown key 'location'",
        ),
        (QueueOnce, {"ONCE": {"setting": {}}}, "unknown key 'setting'; accepted: 'backend', 'set"),
        (
            QueueOnce,
            {"ONCE": {"settings": {"default_timeout": 0}}},
            "ONCE['settings']['default_timeout']=0",
        ),
        (QueueOnce, {"ONCE": {"settings": {"url": "http://x"}}}, "redis://"),
        single({"singleton_backend_class": "shop.B"}, "singleton_backend_class='shop.B'"),
        single({"singleton_backend_class": SingletonTask}, "singleton_backend_class=<"),
        single({"singleton_key_prefix": "{a}"}, "singleton_key_prefix='{a}' is not accepted"),
        single({"singleton_raise_on_duplicate": "yes"}, "singleton_raise_on_duplicate='yes'"),
        single({"singleton_lock_expiry": "1h"}, "singleton_lock_expiry='1h'"),
        single({"singleton_backend_kwargs": {"retries": 1}}, "retries"),
    ],
)
def test_a_setting_that_cannot_be_kept_is_refused(make_app, base, setting, says):
    if base is QueueOnce:  # which names a server, too
        setting = {"redislock_url": None, **setting}
    app = make_app(**setting)
    with pytest.raises(ConfigError) as caught:
        define(app, base)
    assert says in str(caught.value)
    assert (ONCE if base is QueueOnce else SINGLETON) in str(caught.value)


def test_its_settings_are_the_defaults_of_its_options(make_app):
    app = make_app(singleton_lock_expiry=20, singleton_raise_on_duplicate=True)
    options = options_of(app, Singleton)
    assert (options["lock_queued_ttl"], options["on_queued_conflict"]) == (20, "raise")
    app = make_app(singleton_lock_expiry=20, singleton_raise_on_duplicate=True)
    options = options_of(app, Singleton, lock_expiry=30, raise_on_duplicate=False)
    assert (options["lock_queued_ttl"], options["on_queued_conflict"]) == (30, "existing")


def test_its_settings_say_where_the_locks_are(make_app):
    app = make_app(
        singleton_backend_url=URL,
        singleton_backend_class="celery_singleton.backends.redis.RedisBackend",
        singleton_backend_kwargs={"client_name": "shop"},
        singleton_key_prefix="SHOP_",
        redislock_url=None,
    )
    task = define(app, Singleton)
    assert task.app_locks.address == (URL, {"client_name": "shop"})
    assert task.lock_key_for(1).startswith("SHOP_:{")


def test_settings_in_a_namespace_are_read_as_there():
    app = Celery("namespace", set_as_current=False)
    settings = {
        "CELERY_BROKER_URL": "memory://",
        "CELERY_SINGLETON_BACKEND_URL": URL,
        "CELERY_SINGLETON_LOCK_EXPIRY": 9,
        "CELERY_ONCE": {"settings": {"url": URL, "default_timeout": 8}},
    }
    app.config_from_object(SimpleNamespace(**settings), namespace="CELERY")
    task = define(app, Singleton)
    assert (task.app_locks.address.url, task.lock_options.lock_queued_ttl) == (URL, 9)

    def other(a): ...

    assert app.task(base=QueueOnce, shared=False)(other).lock_options.lock_queued_ttl == 8


@pytest.mark.parametrize("base", [QueueOnce, Singleton])
def test_other_options_of_ours_may_be_set_too(make_app, base):
    options = options_of(make_app(), base, lock_ttl=5, on_conflict="wait", lock_label="{a}")
    assert (options["lock_ttl"], options["on_conflict"], options["lock_label"]) == (
        5,
        Wait(),
        "{a}",
    )


@pytest.mark.parametrize("base", [QueueOnce, Singleton])
@pytest.mark.parametrize(
    "own",
    [
        {"lock_key": ["a"]},
        {"lock_scope": "queued"},
        {"lock_queued_ttl": 5},
        {"on_queued_conflict": "publish"},
    ],
)
def test_an_option_of_ours_that_theirs_say_is_refused(make_app, base, own):
    (option,) = own
    with pytest.raises(ConfigError) as caught:
        define(make_app(), base, **own)
    assert f"task compat.task: {option}=" in str(caught.value)
    assert "base=SingletonTask" in str(caught.value)


@pytest.mark.parametrize(
    ("base", "name"),
    [
        *((QueueOnce, name) for name in ("get_key", "once_backend", "unlock_before_run")),
        *((Singleton, name) for name in ("generate_lock", "unlock", "release_lock")),
    ],
)
def test_a_method_that_nothing_calls_here_cannot_be_overridden(make_app, base, name):
    own = type("Own", (base,), {"abstract": True, name: lambda self, *args: "mine"})
    with pytest.raises(ConfigError, match=f"it overrides '{name}', which nothing calls here"):
        define(make_app(), own)


@pytest.mark.parametrize(
    ("base", "option", "says"),
    [
        (QueueOnce, "unique_on", "'unique_on' is an option of celery-"),
        (Singleton, "once", "'once' is an option of celery-"),
        (QueueOnce, "lock_tll", "unknown option 'lock_tll'"),
        (Singleton, "lock_expirys", "unknown option 'lock_expirys'"),
    ],
)
def test_an_option_of_the_other_package_and_a_typo_are_refused(make_app, base, option, says):
    with pytest.raises(ConfigError, match=says):
        define(make_app(), base, **{option: {}})


def test_a_class_of_ones_own_may_have_the_options(make_app):
    class Own(QueueOnce):
        abstract = True
        once = {"graceful": True}  # noqa: RUF012  as it is used there

    assert options_of(make_app(), Own)["on_queued_conflict"] == "existing"


def test_two_packages_must_name_one_server(make_app):
    once = {"settings": {"url": "redis://127.0.0.1:1/6"}}
    app = make_app(ONCE=once, singleton_backend_url=URL)
    with pytest.raises(ConfigError, match="two values for redislock_url: all locks"):
        define(app, Singleton)


def test_a_redis_lock_of_the_app_is_in_the_same_place(make_app):
    app = make_app(singleton_backend_url=URL, redislock_url=None)
    RedisLock(app, "a lock")
    assert app_locks(app).address.url == URL


@pytest.mark.parametrize("name", ["celery_once", "celery_singleton"])
def test_each_module_has_the_packages_public_names(name):
    theirs = importlib.import_module(name)
    ours = importlib.import_module(f"celery_redislock.compat.{name}")
    public = {each for each in vars(theirs) if not each.startswith("_")}
    modules = {"backends", "config", "exceptions", "helpers", "singleton", "tasks", "util"}
    assert public - modules == {*ours.__all__}


def test_a_task_that_is_sent_eagerly_takes_no_lock(make_app):
    app = make_app(task_always_eager=True)
    task = define(app, QueueOnce)
    assert task.apply_async((1,), once={"graceful": True}).state == "SUCCESS"


def test_a_lock_of_an_original_that_cannot_be_deleted_is_named(make_app, monkeypatch, caplog):
    def fails(*asked, **options):
        raise LockUnavailable(None, None, "no answer")

    task = define(make_app(), QueueOnce)
    away = SimpleNamespace(ask=fails)
    monkeypatch.setattr(QueueOnce, "_redislock_original_server", lambda task: away)
    task._redislock_clear((1,), {}, "its-id")
    assert "could not delete qo_compat.task_a-1, by which senders with celery-once" in caplog.text
    assert "compat.task[its-id]: no answer" in caplog.text
