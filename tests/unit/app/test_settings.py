"""The settings of an app, and the server that they lead to."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_redislock import ConfigError, Raise, Skip
from celery_redislock.app.options import SETTINGS
from celery_redislock.app.settings import Address, app_locks
from celery_redislock.testing import memory_locks
from tests.unit.app.test_options import URL, body, define


def test_the_apps_defaults_stand_in_for_what_a_task_leaves_out(make_app) -> None:
    app = make_app(redislock_ttl=7, redislock_on_conflict="raise", redislock_on_lock_lost="abort")
    options = define(app).lock_options
    assert (options.lock_ttl, options.on_conflict, options.on_lock_lost) == (7, Raise(), "abort")


def with_namespace(**settings: Any) -> Celery:
    app = Celery("namespace", set_as_current=False)
    app.config_from_object(type("Settings", (), settings), namespace="CELERY")
    return app


def test_the_settings_are_read_from_a_namespace_of_celerys() -> None:
    more = {"CELERY_REDISLOCK_TTL": 11, "CELERY_REDISLOCK_PREFIX": "spaced"}
    app = with_namespace(CELERY_BROKER_URL="memory://", CELERY_REDISLOCK_URL=URL, **more)
    task = define(app)
    assert task.lock_options.lock_ttl == 11
    assert task.lock_key_for().startswith("spaced:{")
    assert app_locks(app).require_address().url == URL


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
        ("redislok_ttl", "redislock_ttl"),
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


def test_a_near_miss_of_a_namespaces_setting_is_refused_and_others_are_not_ours() -> None:
    settings = {"CELERY_REDISLOCK_URL": URL, "REDIS_LOCK_TIMEOUT": 5, "CELERY_REDIS_BLOCKING": 1}
    assert define(with_namespace(**settings)).lock_options.lock_ttl == 30
    for near in ("redis_lock_ttl", "redislock_tll"):
        app = with_namespace(**settings, **{f"CELERY_{near.upper()}": 5})
        with pytest.raises(ConfigError, match=f"'{near}'; did you mean redislock_ttl"):
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
        ("redislock_transport_options", ["db"], "redislock_transport_options: a list is not"),
        ("redislock_transport_options", {"socket_timeout": 5}, "'socket_timeout'. Accepted: "),
        ("redislock_url", "amqp://host", "redislock_url: amqp is not accepted"),
        ("redislock_url", "localhost:6379", "one of: redis://, rediss://, unix://"),
        ("redislock_url", 6379, "redislock_url: "),
        ("redislock_url", "", "redislock_url: "),
        ("redislock_url", "sentinel://host", "redislock_transport_options: a sentinel:// URL"),
    ],
)
def test_a_bad_setting_is_refused_by_name(make_app, setting, value, says) -> None:
    with pytest.raises(ConfigError) as caught:
        define(make_app(**{setting: value}))
    assert says in str(caught.value)
    assert str(caught.value).count("redislock_transport_options") <= 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["other.task"], "redislock_tasks=['other.task'] is not accepted"),
        ({5: {}}, "redislock_tasks[5] is not accepted; it must be a task's name or a glob"),
        ({"other.task": 60}, "redislock_tasks['other.task']=60"),
        ({"o.*": {"lock_tll": 1}}, "redislock_tasks['o.*']: unknown option 'lock_tll'; did you me"),
        ({"o.*": {"expires": 1}}, "redislock_tasks['o.*']: unknown option 'expires'"),
    ],
)
def test_what_is_wrong_with_redislock_tasks_ends_a_workers_start(
    make_app, start_worker_of, value, says
) -> None:
    app = make_app(redislock_tasks=value)
    task = define(app)
    with pytest.raises(SystemExit) as caught:
        start_worker_of(app)
    assert says in str(caught.value)
    assert task.lock_key_for(), "it harms no other task"


@pytest.mark.parametrize("setting", ["redis_lock_tasks", "redislock_task"])
def test_a_near_miss_of_a_setting_ends_a_worker_without_any_locked_task(
    make_app, start_worker_of, setting
) -> None:
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
        "redis://user:12/secret@host/0",
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


def test_without_any_redis_url_a_task_is_refused_and_told_what_to_set() -> None:
    app = Celery("none", broker="memory://", set_as_current=False)
    with pytest.raises(ConfigError) as caught:
        define(app)
    assert "set redislock_url" in str(caught.value)


RESULTS, SSL = "redis://results/1", {"ssl_ca_certs": "/c"}
SENTINELS = "sentinel://one:26379;sentinel://two:26379"
#: For the result backend. What does not tell how to connect is not for locks.
OTHERS = {"retry_policy": {"timeout": 5}, "visibility_timeout": 60, "socket_timeout": 120}


@pytest.mark.parametrize(
    ("settings", "url", "options"),
    [
        ({"redislock_url": "redis://own/3", "result_backend": RESULTS}, "own/3", {}),
        (
            {"result_backend": RESULTS, "broker_url": "redis://broker/2"},
            "results/1",
            {},
        ),
        ({"result_backend": "rpc://", "broker_url": "redis://broker/2"}, "broker/2", {}),
        ({"result_backend": None, "broker_url": "rediss://broker/2"}, "broker/2", {}),
        ({"broker_url": ["amqp://first//", "redis://second/2"]}, "second/2", {}),
        ({"broker_url": "amqp://first//;redis://second/2"}, "second/2", {}),
        ({"broker_url": "redis+socket:///run/redis.sock?virtual_host=2"}, "/run/redis.sock", {}),
        (
            {
                "result_backend": RESULTS,
                "result_backend_transport_options": {**OTHERS, "client_name": "results"},
            },
            "results/1",
            {"client_name": "results"},
        ),
        (
            {
                "broker_url": SENTINELS,
                "broker_transport_options": {"master_name": "main", "visibility_timeout": 5},
                "redislock_transport_options": {"db": 4},
            },
            SENTINELS,
            {"master_name": "main", "db": 4},
        ),
        (
            {
                "result_backend": RESULTS,
                "redis_backend_use_ssl": {"ssl_ca_certs": "/c"},
            },
            "results/1",
            {"ssl_ca_certs": "/c"},
        ),
        (
            {"broker_url": "redis://broker/1", "broker_use_ssl": {"ssl_ca_certs": "/c"}},
            "broker/1",
            {"ssl_ca_certs": "/c"},
        ),
    ],
)
def test_the_server_is_the_set_one_or_the_result_backend_or_the_broker(
    make_app, settings, url, options
) -> None:
    app = make_app(**{"redislock_url": None, **settings})
    define(app)
    address = app_locks(app).require_address()
    assert url in address.url
    assert address.options == options


def test_defining_a_task_leaves_celerys_settings_of_other_tasks_alone(make_app) -> None:
    define(make_app())
    other = define(make_app(task_acks_late=True, task_serializer="pickle"))
    assert other.acks_late is True
    assert other.serializer == "pickle"


def test_the_server_is_told_with_its_prefix_and_without_its_password(make_app) -> None:
    app = make_app(redislock_url="redis://user:secret@cache:6380/3", redislock_prefix="shop")
    assert app_locks(app).describe_server() == "redis://cache:6380/3, prefix 'shop'"
    with memory_locks():
        assert app_locks(app).describe_server() == "memory, prefix 'shop'"


@pytest.mark.parametrize(
    ("broker", "backend", "prefix"),
    [
        ({}, {}, "redislock"),
        ({"global_keyprefix": "prod:"}, {}, "prod:redislock"),
        ({}, {"global_keyprefix": "prod_"}, "prod_redislock"),
        ({"global_keyprefix": "broker:"}, {"global_keyprefix": "backend:"}, "broker:redislock"),
        ({"global_keyprefix": "{prod}:"}, {}, "prod:redislock"),
        ({"global_keyprefix": ""}, {"global_keyprefix": None}, "redislock"),
        (None, None, "redislock"),
    ],
)
def test_the_default_prefix_follows_that_of_the_keys_in_broker_or_backend(
    make_app, broker, backend, prefix
) -> None:
    app = make_app(broker_transport_options=broker, result_backend_transport_options=backend)
    assert app_locks(app).prefix == prefix
    assert define(app).lock_key_for().startswith(f"{prefix}:{{")
    app.conf.redislock_prefix = "ours"
    assert app_locks(app, refresh=True).prefix == "ours"


def test_an_address_shows_no_password_to_those_who_show_variables():
    assert "secret" not in repr(Address("redis://:secret@cache", {"password": "secret"}))
