"""Workers and senders of both sides: with the other package, and with ours in its place."""

from __future__ import annotations

import gc

import pytest

from tests.support.rights import grant
from tests.support.unshared import App
from tests.support.waiting import eventually

from .jobs import configure, define

#: Seconds after which the lock of a dead worker is free.
TTL = 2


@pytest.fixture(scope="module")
def sides(conf, redis_server):
    """The configuration of each side. Theirs needs a user who may do anything."""
    with redis_server.client() as client:  # as docs/migrating.md has it
        grant(client, "workers", "~qo_*", "~SINGLETONLOCK_*")
    return {
        "theirs": {**conf, "test_side": "theirs", "test_locks": f"{redis_server.url}/5"},
        "ours": {
            **conf,
            "redislock_ttl": TTL,
            "test_side": "ours",
            "test_locks": conf["redislock_url"],
        },
    }


@pytest.fixture(scope="module")
def senders(sides, journal):
    """The tasks, as a sender of each side has them."""
    made = {}
    for side, conf in sides.items():
        app = App(f"sender-{side}", set_as_current=False)
        app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 1}}
        configure(app, conf)
        app.conf.task_default_queue = f"compat-{side}"
        made[side] = define(app, side, journal)
    yield made
    gc.collect()  # results that nobody asked for, while there is a server to tell


@pytest.fixture(scope="module")
def workers(start_module_worker, sides):
    """A worker of each side, for all tests of a module."""
    started = [
        start_module_worker(
            app="tests.behaviour.compat.jobs",
            queues=f"compat-{side}",
            concurrency=4,
            conf=conf,
            wait=False,
        )
        for side, conf in sides.items()
    ]
    return [each.ready() for each in started]


@pytest.fixture(params=["theirs", "ours"])
def side(request):
    return request.param


@pytest.fixture
def jobs(side, senders, workers):
    """The tasks of one side, and a worker that runs them."""
    return senders[side]


@pytest.fixture
def ours(senders, workers):
    return senders["ours"]


@pytest.fixture
def theirs(senders, workers):
    return senders["theirs"]


@pytest.fixture
def starts(journal, label):
    """Waits until so many runs have started, and returns their tasks' ids in order."""

    def starts(count=1):
        def found():
            entries = journal.read(label, "start")
            return len(entries) >= count and [entry.task_id for entry in entries]

        return eventually(found, f"{count} started")

    return starts


@pytest.fixture
def end(journal):
    """Lets tasks go on, and returns their results."""

    def end(*results):
        for result in results:
            journal.let_go(result.id)
        # Before 5.7 Celery tells only one of the objects that wait for one result (#4925).
        for result in results:
            eventually(result.ready, f"{result.id} has ended", 20)
        return [result.get(timeout=20) for result in results]

    return end


@pytest.fixture
def operator(sides, redis_server, journal):
    """Our side's app, with a user that may list all locks, which workers may not."""
    app = App("operator", set_as_current=False)
    configure(app, {**sides["ours"], "test_locks": f"{redis_server.url}/0"})
    define(app, "ours", journal)
    return app
