"""prometheus-client's multi-process files: read whatever happens to them, and folded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.mmap_dict import MmapedDict, mmap_key

from celery_redislock import prometheus
from celery_redislock.ops import multiprocess
from celery_redislock.ops.multiprocess import Processes

#: Above the highest that Linux gives.
NO_PID = 2**22 + 1


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(prometheus.DIRECTORY, str(tmp_path))
    return tmp_path


def write(pid: int, **values: float) -> None:
    """What a process with this pid counts, by kind of metric; of a gauge, with its mode."""
    for kind, value in values.items():
        labels = {"task": "shop.sync"}
        series = kind
        if kind == "histogram":
            labels["le"], series = "+Inf", f"{kind}_bucket"
        file = MmapedDict(f"{os.environ[prometheus.DIRECTORY]}/{kind}_{pid}.db")
        key = mmap_key(kind, series, list(labels), list(labels.values()), "help")
        file.write_value(key, value, 0.0)
        file.close()


def sums(directory: Path) -> dict[str, float]:
    """The values in a scrape, by the names of their series."""
    return {
        sample.name: sample.value
        for metric in Processes(str(directory)).collect()
        for sample in metric.samples
    }


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*.db")}


def test_the_files_of_600_dead_processes_become_one_of_each_kind_with_the_same_sums(directory):
    write(os.getpid(), counter=5, histogram=1, gauge_livesum=2, gauge_max=7)
    for number in range(600):
        write(NO_PID + number, counter=2, histogram=1)
    write(NO_PID, gauge_livesum=9, gauge_max=8, gauge_sum=3, gauge_all=6)
    expected = {
        "counter": 1205,
        "histogram_bucket": 601,
        "histogram_count": 601,
        "gauge_livesum": 2,
        "gauge_max": 8,
        "gauge_sum": 3,
        "gauge_all": 6,
    }
    assert sums(directory) == expected
    mine = {f"{kind}_{os.getpid()}.db" for kind in ("counter", "histogram", "gauge_livesum")}
    folded = {f"{kind}_folded.db" for kind in ("counter", "histogram", "gauge_max", "gauge_sum")}
    named = {f"gauge_all_{NO_PID}.db", f"gauge_max_{os.getpid()}.db"}
    assert files(directory) == mine | folded | named
    assert sums(directory) == expected, "also from the folded ones"
    write(NO_PID + 600, counter=3, gauge_max=1)
    assert sums(directory) == {**expected, "counter": 1208}
    assert files(directory) == mine | folded | named


class Killed(BaseException):
    """The process is killed here."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Has a process killed just before, or after, its nth change of a directory."""
    calls: list[int] = []

    def kill_at(step: int) -> None:
        calls[:] = [step]

    def cut(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **kwargs: Any) -> Any:
            for after in (False, True):
                if calls and calls[0] == 0:
                    calls.clear()
                    raise Killed
                if calls:
                    calls[0] -= 1
                if not after:
                    change(*args, **kwargs)

        return changed

    for owner, name in ((os, "replace"), (Path, "unlink"), (Path, "write_text")):
        monkeypatch.setattr(owner, name, cut(getattr(owner, name)))
    yield kill_at
    calls.clear()


def test_nothing_is_lost_or_counted_twice_if_a_scrape_is_killed(directory, kill_at):
    total, step, killed = 0, 0, True
    while killed:
        for number in range(3):
            write(NO_PID + number, counter=1, histogram=1, gauge_livesum=1)
            total += 1
        kill_at(step)
        try:
            sums(directory)
            killed = False
        except Killed:
            step += 1
        assert sums(directory) == dict.fromkeys(
            ("counter", "histogram_bucket", "histogram_count"), total
        ), f"killed at step {step}"
        assert files(directory) == {"counter_folded.db", "histogram_folded.db"}
    assert step > 20


def test_a_file_that_is_just_being_made_or_vanishes_fails_no_scrape(directory, monkeypatch):
    write(os.getpid(), counter=1)
    (directory / f"histogram_{os.getpid()}.db").touch()
    (directory / f"gauge_livesum_{os.getpid()}.db").write_bytes(bytes(1 << 16))
    assert sums(directory) == {"counter": 1}
    (directory / f"histogram_{NO_PID}.db").touch()
    assert sums(directory) == {"counter": 1}
    vanished = directory / f"counter_{os.getpid()}9.db"
    listed = [*directory.glob("*.db"), vanished]
    monkeypatch.setattr(Path, "glob", lambda *_: listed)
    assert sums(directory) == {"counter": 1}


def test_a_file_that_cannot_be_read_is_left_out_and_said(directory, caplog):
    write(os.getpid(), counter=1)
    for pid in (os.getpid(), NO_PID):
        write(pid, histogram=1)
        broken = directory / f"histogram_{pid}.db"
        broken.write_bytes(broken.read_bytes().replace(b'["histogram"', b'!"histogram"'))
    assert sums(directory) == {"counter": 1}
    assert f"histogram_{NO_PID}.db.broken; its counts are missing" in caplog.text
    assert (directory / f"histogram_{NO_PID}.db.broken").exists()
    assert f"histogram_{os.getpid()}.db cannot be read" in caplog.text


def test_nothing_is_folded_where_files_cannot_be_locked(directory, monkeypatch):
    monkeypatch.setattr(multiprocess, "fcntl", None)
    write(os.getpid(), counter=5)
    write(NO_PID, counter=2)
    before = files(directory)
    assert sums(directory) == {"counter": 7}
    assert files(directory) == before
