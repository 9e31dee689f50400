"""What a task replaces itself with is its own successor, never its duplicate."""

from __future__ import annotations

import pytest

from tests.support.waiting import eventually


@pytest.mark.parametrize(("how", "ends_in"), [("alone", "second"), ("chain", "last")])
def test_a_replacement_that_comes_before_the_release_runs(
    start, send_here, conf, proxy, journal, label, queue, how, ends_in
):
    """The release is late: it goes by a slow way, and the replacement asks by a fast one."""
    there = f"{queue}-there"
    start(conf={"redislock_url": proxy.in_front_of(conf["redislock_url"])}, concurrency=1)
    start(queues=there, concurrency=1)
    result = send_here("hands_on", label, how, there)
    eventually(lambda: journal.count(label, "start") == 1, "it runs")
    proxy.to_server.delay = 0.3
    journal.let_go(result.id)
    assert result.get(timeout=30) == ends_in
    proxy.heal()
    assert [entry.data for entry in journal.read(label, "start")] == ["first", "second"]
    assert journal.overlaps(label) == []
    assert journal.count(label, "last") == (how == "chain")


@pytest.mark.parametrize("how", ["alone", "chain"])
def test_no_replacement_is_skipped_in_many_runs(start, send_here, journal, label, queue, how):
    start(concurrency=4)
    labels = [f"{label}-{number}" for number in range(20)]
    results = [send_here("hands_on", each, how, queue) for each in labels]
    for result in results:
        journal.let_go(result.id)
    ends_in = "last" if how == "chain" else "second"
    assert [result.get(timeout=40, propagate=False) for result in results] == [ends_in] * 20
