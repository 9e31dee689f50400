"""Asks the FastAPI application of examples/ to start tasks. Prints what it answers, as JSON."""

from __future__ import annotations

import json
import sys

from fastapi.testclient import TestClient

from celery_redislock.testing import memory_locks
from examples.fastapi_app import api, sync
from examples.fastapi_app import settle as settle_task
from tests.support.waiting import eventually

client = TestClient(api)


def state(answer) -> str:
    return client.get(f"/tasks/{answer.json()['task_id']}").json()["state"]


def ended(answer) -> str:
    return eventually(
        lambda: (s := state(answer)) in ("SUCCESS", "REVOKED", "FAILURE") and s, "it ends"
    )


account = int(sys.argv[1])
first = client.post(f"/accounts/{account}/sync")
# Another pool process could be quicker with what is sent next.
eventually(lambda: sync.lock_holder(account), "the first runs")
others = [client.post(f"/accounts/{account}/sync") for _ in range(3)]
export, refused = (client.post(f"/accounts/{account}/export") for _ in range(2))
settle = client.post(f"/accounts/{account}/settle")
settled = eventually(lambda: settle_task.lock_holder(account), "it runs")
meanwhile = client.post(f"/accounts/{account}/adjust")
closed = client.post(f"/accounts/{account}/close")
with memory_locks() as locks, locks.unreachable():
    away = [client.post(f"/accounts/{account}/{each}") for each in ("adjust", "close")]
json.dump(
    {
        "statuses": [each.status_code for each in (first, *others, export, refused)],
        "ids": len({each.json()["task_id"] for each in (first, *others)}),
        "states": [ended(each) for each in (first, *others)],
        "refused": refused.json(),
        "export": export.json(),
        "exported": ended(export),
        "settled": ended(settle),
        "closed": closed.json()["fence"] - meanwhile.json()["fence"],
        "away": [each.status_code for each in away],
        "adjusted": meanwhile.json()["fence"] - settled.fence,
    },
    sys.stdout,
)
