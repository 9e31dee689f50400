"""After `lock_min_hold` the next one starts at once."""

from __future__ import annotations

import pytest

from tests.behaviour.apps.house import TASKS
from tests.behaviour.conftest import HOUSE
from tests.support.waiting import eventually

QUEUE = "cool-downs"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(app=HOUSE, queues=QUEUE, concurrency=12)


@pytest.mark.parametrize("seconds", [0.5, 0.0], ids=["comes-in-the-run", "comes-in-the-pause"])
@pytest.mark.parametrize("name", ["cools_wait", "cools_queue", "cools_two_wait", "cools_two_queue"])
def test_the_next_one_starts_when_the_pause_ends(send, journal, label, name, seconds):
    """If nobody woke it, it would start two seconds later and more, each time."""
    holders = TASKS[name].get("lock_limit", 1)
    labels = [f"{label}-{number}" for number in range(3)]
    sent = [send(name, each, seconds) for each in labels for _ in range(holders)]
    for each in labels:
        eventually(lambda each=each: journal.count(each, "start") == holders, "the first run")
        sent.append(send(name, each, 0.0))

    assert all(result.get(timeout=20) for result in sent)
    late = []
    for each in labels:
        # By the server's clock.
        acquired = sorted(entry.data["fence"] / 1e6 for entry in journal.read(each, "start"))
        late.append(acquired[holders] - acquired[0] - TASKS[name]["lock_min_hold"])
    assert min(late) >= -0.001, "before its end"
    assert min(late) < 1
