"""After `lock_min_hold` the next one starts at once."""

from __future__ import annotations

import statistics

import pytest

from tests.behaviour.apps.house import TASKS
from tests.support.lateness import elapsed
from tests.support.waiting import eventually


@pytest.mark.parametrize("seconds", [0.5, 0.0], ids=["comes-in-the-run", "comes-in-the-pause"])
@pytest.mark.parametrize("name", ["cools_wait", "cools_queue", "cools_two_wait", "cools_two_queue"])
def test_the_next_one_starts_when_the_pause_ends(
    start_house, sender, journal, label, queue, name, seconds
):
    start_house(concurrency=3)
    holders = TASKS[name].get("lock_limit", 1)

    def late_by(here):
        """Seconds from the end of the pause until the next one starts."""
        sent = [sender.send_task(name, [here, seconds], queue=queue) for _ in range(holders)]
        eventually(lambda: journal.count(here, "start") == holders, "the first run")
        sent.append(sender.send_task(name, [here, 0.0], queue=queue))
        for result in sent:
            assert result.get(timeout=20) == here
        entries = journal.read(here, "start")
        acquired = [entry.data["fence"] / 1e6 for entry in entries]  # by the server's clock
        pause = TASKS[name]["lock_min_hold"]
        assert acquired[holders] >= min(acquired[:holders]) + pause - 0.001, "before its end"
        return elapsed(entries[0].at + pause, entries[holders].at)

    # On an idle machine it is less than 50 ms.
    late = [late_by(f"{label}-{number}") for number in range(3)]
    assert statistics.median(late) < 0.5, f"late by so many seconds: {late}"
