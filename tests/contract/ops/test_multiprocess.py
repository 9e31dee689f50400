"""prometheus-client's multi-process files, which several processes read and fold at once."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")

from tests.unit.ops.test_multiprocess import NO_PID, directory, files, sums, write

__all__ = ["directory"]


def scrape_often(directory: Path) -> list[float]:
    return [sums(directory)["counter"] for _ in range(20)]


def test_nothing_is_lost_or_counted_twice_by_scrapes_at_once(directory):
    for number in range(300):
        write(NO_PID + number, counter=1)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        found = [pool.submit(scrape_often, directory).result for _ in range(2)]
        assert {value for each in found for value in each()} == {300}
    assert files(directory) == {"counter_folded.db"}
