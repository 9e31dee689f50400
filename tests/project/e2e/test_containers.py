"""Workers, brokers and Redis in containers, by pytest-celery's `celery_setup`.

Each test runs once for each of its brokers, Redis and RabbitMQ, with two workers. The images are
those of the compose file; what pytest-celery mounts into the workers' is `tasks.py`, beside this
file, and an app.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import celery._state
import docker
import pytest
from celery import Celery, states
from docker.models.images import Image
from pytest_celery import (
    CELERY_RABBITMQ_BROKER,
    CELERY_REDIS_BROKER,
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    DEFAULT_WORKER_VOLUME,
    CeleryTestBroker,
    CeleryTestWorker,
    CeleryWorkerCluster,
    CeleryWorkerContainer,
)
from pytest_docker_tools import container, fxtr
from pytest_docker_tools.wrappers import container as wrapper

from celery_redislock.testing import assert_free, assert_locked, assert_skipped
from tests.project.e2e import tasks
from tests.support.compose import on_an_engine
from tests.support.waiting import eventually
from tests.support.workers import ROOT

pytestmark = pytest.mark.timeout(600)  # the image is built, others are pulled

#: What makes the shared tasks of `tasks` tasks of an app. tests/conftest.py takes all such from the
#: tests, and the app that pytest-celery sends from would not know its tasks.
MAKE_TASKS = {
    each
    for each in celery._state._on_app_finalizers
    if getattr(inspect.getclosurevars(each).nonlocals.get("fun"), "__module__", "")
    == tasks.__name__
}


@pytest.fixture(autouse=True)
def _shared_tasks(_no_shared_tasks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with_ours = celery._state._on_app_finalizers | MAKE_TASKS
    monkeypatch.setattr(celery._state, "_on_app_finalizers", with_ours)


@pytest.fixture(autouse=True)
def _as_pytest_celery_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-celery asks localhost for published ports. pytest-docker-tools takes itself to be in a
    container where /.dockerenv exists, and would say the containers' own.
    """
    monkeypatch.setattr(wrapper, "tests_inside_container", lambda: False)


class WorkerContainer(CeleryWorkerContainer):
    """A worker with this checkout's package."""

    @classmethod
    def worker_name(cls) -> str:
        return "e2e"

    @classmethod
    def tasks_modules(cls) -> set[ModuleType]:
        return {tasks}

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        command: list[str] = super().command("--concurrency", "2", *args, **kwargs)
        return command


@pytest.fixture
def default_worker_container_cls() -> type[CeleryWorkerContainer]:
    return WorkerContainer


@pytest.fixture(scope="session")
def default_worker_container_session_cls() -> type[CeleryWorkerContainer]:
    return WorkerContainer


def _worker() -> Any:
    return container(
        image="{redislock_image.id}",
        ports=fxtr("default_worker_ports"),
        environment=fxtr("default_worker_env"),
        network="{default_pytest_celery_network.name}",
        volumes={"{default_worker_volume.name}": DEFAULT_WORKER_VOLUME},
        wrapper_class=WorkerContainer,
        timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
        command=fxtr("default_worker_command"),
    )


@pytest.fixture(scope="module")
def redislock_image(docker_client: docker.DockerClient) -> Iterator[Image]:
    """Without a name: those of other checkouts stay what they are."""
    image, _ = docker_client.images.build(path=str(ROOT), dockerfile="examples/Dockerfile", rm=True)
    yield image
    docker_client.images.remove(image.id, force=True)


@pytest.fixture
def default_redis_broker_image() -> str:
    return "redis:7"


@pytest.fixture
def default_redis_backend_image() -> str:
    return "redis:7"


@pytest.fixture
def default_rabbitmq_broker_image() -> str:
    return "rabbitmq:4"


default_worker_container = _worker()
second_worker_container = _worker()


@pytest.fixture(params=[CELERY_REDIS_BROKER, CELERY_RABBITMQ_BROKER])
def celery_broker(request: pytest.FixtureRequest) -> Iterator[CeleryTestBroker]:
    """As the plugin's own, in an order that does not change: pytest-xdist wants that."""
    broker: CeleryTestBroker = request.getfixturevalue(request.param)
    yield broker
    broker.teardown()


@pytest.fixture
def celery_worker_cluster(
    celery_worker: CeleryTestWorker,
    second_worker_container: WorkerContainer,
    default_worker_app: Celery,
) -> Iterator[CeleryWorkerCluster]:
    second = CeleryTestWorker(second_worker_container, app=default_worker_app)
    cluster = CeleryWorkerCluster(celery_worker, second)
    yield cluster
    cluster.teardown()


@on_an_engine
def test_of_two_calls_on_two_workers_one_is_skipped(celery_setup, label):
    first = tasks.skip.delay(label, 5)
    eventually(lambda: first.state == states.STARTED, "it runs", 30)
    eventually(lambda: tasks.skip.lock_holder(label), "Celery says so before it has the lock", 30)
    assert assert_skipped(tasks.skip.delay(label), 30).holder.task_id == first.id
    assert first.get(timeout=30)
    assert_free(tasks.skip, label)


@on_an_engine
def test_what_queues_runs_one_after_another(celery_setup, label):
    results = [tasks.queue.delay(label, 0.2) for _ in range(4)]
    times = sorted(result.get(timeout=60) for result in results)
    for (_, ended), (began, _) in pairwise(times):
        assert began >= ended - 0.001, "all containers have the engine's clock"


@on_an_engine
def test_the_lock_of_a_container_that_was_killed_lapses(celery_setup, label):
    first = tasks.skip.delay(label, 600)
    eventually(lambda: first.state == states.STARTED, "it runs", 30)
    eventually(lambda: tasks.skip.lock_holder(label), "Celery says so before it has the lock", 30)
    node = assert_locked(tasks.skip, label).node
    (holder,) = (each for each in celery_setup.worker_cluster if each.hostname() == node)
    holder.kill()
    eventually(lambda: tasks.skip.lock_holder(label) is None, "it lapses", 30)
    assert tasks.skip.delay(label).get(timeout=30)


# -- all but the engine -----------------------------------------------------------------------


def test_the_image_has_what_it_is_made_of():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    lines = (ROOT / "examples/Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert all((ROOT / each).exists() and each not in ignored for each in copied), copied
    # Without one of these pip cannot build the wheel.
    assert {"pyproject.toml", "README.md", "LICENSE"} < set(copied)
    assert {path.name for path in ROOT.glob("celery_redislock*")} <= set(copied)
