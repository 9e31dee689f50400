"""A broker that we do not know: nothing that it says of a message rules out a copy."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu.transport import TRANSPORT_ALIASES, memory, virtual

from celery_redislock import SingletonTask
from celery_redislock.testing import memory_locks


class Unheard(virtual.Transport):
    """A transport of somebody's own."""

    Channel = memory.Channel
    global_state = virtual.BrokerState()
    implements = memory.Transport.implements
    driver_type = driver_name = "unheard"

    def driver_version(self) -> str:
        return "1"


@pytest.mark.parametrize(("broker", "runs"), [("memory", 2), ("unheard", 1)])
def test_what_comes_again_under_an_id_is_a_copy_if_the_broker_cannot_tell(
    monkeypatch: pytest.MonkeyPatch, label: str, broker: str, runs: int
) -> None:
    monkeypatch.setitem(TRANSPORT_ALIASES, "unheard", f"{__name__}:Unheard")
    app = Celery(label, broker=f"{broker}://", backend="cache+memory://", set_as_current=False)
    app.conf.update(broker_transport_options={"polling_interval": 0.01}, task_acks_late=True)
    ran: list[str] = []

    @app.task(name="job", base=SingletonTask, shared=False, lock_key=["label"])
    def job(label: str) -> None:
        ran.append(label)

    fit = {"pool": "threads", "concurrency": 1, "perform_ping_check": False}
    with memory_locks(), start_worker(app, shutdown_timeout=20, **fit):
        for _ in range(2):
            # By name, as a sender does that gives its messages no identity.
            app.send_task("job", [label], task_id=label).get(timeout=20)
        app.send_task("job", [f"{label}-last"]).get(timeout=20)
    assert ran.count(label) == runs
    app.close()
