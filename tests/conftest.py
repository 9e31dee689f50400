"""Fixtures: real servers, real workers, and the faults that happen to them."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, _state
from celery.result import AsyncResult
from hypothesis import HealthCheck, settings

from tests.support import sharing
from tests.support.clusters import ClusterSet
from tests.support.ending import end_all_with_this_process
from tests.support.journal import Journal
from tests.support.rights import as_user, cluster_rights, denials, grant
from tests.support.servers import (
    SQS,
    Program,
    Proxy,
    RabbitMQ,
    RedisServer,
    shared_rabbitmq,
)
from tests.support.tls import Certificate
from tests.support.workers import Worker, make_app, running

#: Where Celery has what it does for `shared_task`, and for `app.task` unless `shared=False`.
SHARING = ("celery.app", "celery.app.base")
POOLS = ("prefork", "threads", "solo", "gevent")

# A machine that stands still for a fifth of a second is no failure of a property.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


#: Where a file runs for a minute and more, the longest first, as `--durations=0` says: its tests
#: run one after another, and whoever begins such a file last keeps all others waiting.
LONG = (
    "proofs/faults/",
    "behaviour/test_ends",
    "simulation/test_simulation",
    "contract/servers/test_async_server",
    "behaviour/ops/web/test_page",
    "behaviour/test_lost",
    "behaviour/test_exits",
    "contract/worker/test_notes",
    "behaviour/test_retries",
    "behaviour/test_rooms",
    "behaviour/lock/",
    "behaviour/",
    "contract/servers/",
    "project/",
)


def pytest_configure() -> None:
    end_all_with_this_process()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first. Within a file the order stays."""

    def place(item: pytest.Item) -> int:
        return next((n for n, name in enumerate(LONG) if f"tests/{name}" in item.nodeid), len(LONG))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What was collected stays: a full collection of garbage would look through all of it. Tasks of
    apps that were imported get into no other app, which fixtures of modules may make.
    """
    gc.freeze()
    _state._on_app_finalizers.difference_update(_shared())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Iterator[None]:
    with sharing.slot():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Where a test fails, say what its workers have logged."""
    report = yield
    if report.failed:
        for pid, process in running.items():
            tail = process.log().rpartition("[tasks]")[2].splitlines()[-60:]
            report.sections.append((f"Log of pid {pid}", "\n".join(tail)))
    return report


@pytest.fixture(scope="session", autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    """What a fixture has started and not ended is ended here, and is an error."""
    yield
    workers, servers = list(running.values()), list(Program.started)
    for process in workers:
        process.close()
    for server in servers:
        server.kill()
    left = [*(process.log_path for process in workers), *(server.name for server in servers)]
    assert not left, f"left running: {left}"


@pytest.fixture(autouse=True)
def _log_level() -> None:
    """An embedded worker sets the root logger's level, and leaves it so."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture(autouse=True)
def _no_shared_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests' tasks do not get into every app of this process, as Celery shares them."""
    ours = _state._on_app_finalizers - _shared()
    monkeypatch.setattr(_state, "_on_app_finalizers", ours)


def _shared() -> set[Any]:
    """What makes tasks of every app that is finalized from here on."""
    return {each for each in _state._on_app_finalizers if each.__module__ in SHARING}


@pytest.fixture(name="make_app")
def _make_app() -> Iterator[Callable[..., Celery]]:
    """Makes apps that connect to nothing."""
    made = []

    def make(**settings: Any) -> Celery:
        app = Celery("unconnected", set_as_current=False)
        nowhere = {"broker_url": "memory://", "redislock_url": "redis://127.0.0.1:1/0"}
        app.conf.update({**nowhere, **settings})
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A server for everything that does no harm to it."""
    with RedisServer() as server:
        yield server
        with server.client() as client:
            assert denials(client, "workers") == [], "the suite runs with the documented rights"


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A lock server of this test's own, to be killed, stopped, and restarted empty."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def three_servers() -> Iterator[list[RedisServer]]:
    """Independent servers of this test's own, for a quorum."""
    with RedisServer() as one, RedisServer() as two, RedisServer() as three:
        yield [one, two, three]


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """A way to the shared server that can be cut off."""
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """One for the whole test run: its start takes five seconds of a core."""
    if RabbitMQ.binary() is None:
        if os.environ.get("CI"):
            pytest.fail("RabbitMQ is missing, and in CI it must be there")
        pytest.skip("no rabbitmq-server on this machine")
    folder = tmp_path_factory.getbasetemp()
    with shared_rabbitmq(
        folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    ) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterSet]:
    """A Redis Cluster for everything that does no harm to it. One for each process: fleets that
    have their brokers apart must not share their locks.
    """
    with ClusterSet(replicas=0) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """For servers with TLS."""
    return Certificate.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def sqs() -> Iterator[SQS]:
    """One for the process: its start takes two seconds of a core."""
    server = SQS()
    try:
        yield server.start()
    finally:
        server.kill()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The tests of a module that says so are run with each of these lock servers. Those with a
    `proxy` have it in front of the one server.
    """
    kinds = getattr(metafunc.module, "LOCKS", None)
    if kinds and "locks_at" in metafunc.fixturenames and "proxy" not in metafunc.fixturenames:
        metafunc.parametrize("locks_at", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def locks_at(request: pytest.FixtureRequest) -> Any:
    """Where workers have their locks: on the shared server, or in the shared cluster."""
    kind = getattr(request, "param", "redis")
    return request.getfixturevalue({"redis": "redis_server", "cluster": "cluster"}[kind])


@pytest.fixture
def client(locks_at: Any) -> Iterator[Any]:
    """A client that looks into where the locks are."""
    with locks_at.client() as client:
        yield client


@pytest.fixture
def locks_of(locks_at: Any) -> Iterator[Callable[[str], list[str]]]:
    """The keys of the locks that a task holds, by its id: the value names it."""
    # Without decoding: another test's foreign value may be anything.
    with locks_at.client(decode_responses=False) as raw:

        def locks_of(task_id: str) -> list[str]:
            keys = raw.scan_iter("redislock:*:lock:*", count=10_000, _type="string")
            return [key.decode() for key in keys if task_id.encode() in (raw.get(key) or b"")]

        yield locks_of


@pytest.fixture
def label() -> str:
    """A name that no other test uses."""
    return uuid.uuid4().hex


@pytest.fixture(scope="session")
def conf(redis_server: RedisServer, locks_at: Any) -> dict[str, Any]:
    """The configuration of senders and workers: everything on one server, in its own database. The
    locks are those of a user who may do what docs/operations.md says, and no more.
    """
    is_cluster = isinstance(locks_at, ClusterSet)
    for node in locks_at.nodes if is_cluster else [locks_at]:
        with node.client() as client:
            grant(client, "workers", *(cluster_rights() if is_cluster else ()))
    return {
        "broker_url": f"{redis_server.url}/1",
        "result_backend": f"{redis_server.url}/2",
        "redislock_url": f"{as_user(locks_at.url, 'workers')}/0",
        "test_journal": f"{redis_server.url}/3",
        "broker_connection_retry_on_startup": True,
        "worker_prefetch_multiplier": 1,
        "result_expires": 300,
        "worker_hijack_root_logger": True,
    }


@pytest.fixture(scope="session")
def journal(redis_server: RedisServer) -> Journal:
    return Journal(redis_server.client(db=3))


StartWorker = Callable[..., Worker]


def _starter(conf: dict[str, Any]) -> Iterator[StartWorker]:
    with contextlib.ExitStack() as started:

        def start(*arguments: str, wait: bool = True, **options: Any) -> Worker:
            overrides = options.pop("conf", {})
            worker = started.enter_context(
                Worker(*arguments, conf={**conf, **overrides}, **options)
            )
            return worker.ready() if wait else worker

        yield start


@pytest.fixture
def queue() -> str:
    """A queue of this test's own: what it leaves behind disturbs nobody."""
    return f"q{uuid.uuid4().hex}"


@pytest.fixture
def start_worker(conf: dict[str, Any]) -> Iterator[StartWorker]:
    """Starts workers of this test's own."""
    yield from _starter(conf)


@pytest.fixture(scope="module")
def start_module_worker(conf: dict[str, Any]) -> Iterator[StartWorker]:
    """Starts workers that a module's tests share."""
    yield from _starter(conf)


@pytest.fixture(scope="session")
def sender(conf: dict[str, Any]) -> Iterator[Celery]:
    """An app that sends by name, and knows no task's code."""
    yield make_app({k: v for k, v in conf.items() if not k.startswith("test_")})
    gc.collect()  # results that nobody asked for, while there is a server to tell


@pytest.fixture
def send(request: pytest.FixtureRequest, sender: Celery) -> Callable[..., AsyncResult[Any]]:
    """Sends a task by name, to the QUEUE of the test's module unless it is told another."""

    def send(name: str, *args: Any, **options: Any) -> AsyncResult[Any]:
        return sender.send_task(name, args, **{"queue": request.module.QUEUE, **options})

    return send
