"""Programs that a body starts, when its pool process is gone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import eventually

QUEUE = "programs"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(app="tests.behaviour.apps.programs", queues=QUEUE, concurrency=2)


def programs(label: str) -> set[int]:
    """The processes of this test's task that its body has started."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"TEST_LABEL={label}".encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def left(label: str) -> Iterator[None]:
    yield
    for pid in programs(label):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize("signame", ["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("name", ["plain", "tied"])
def test_programs_of_a_body_end_with_its_process_only_if_they_are_tied_to_it(
    send, client, locks_of, label, name, signame
):
    result = send(name, label)
    eventually(lambda: len(programs(label)) >= 3, "a shell and two programs run")
    (key,) = locks_of(result.id)
    os.kill(json.loads(client.get(key))["pid"], signal.Signals[signame])
    eventually(lambda: not locks_of(result.id), "the lock is free", 10)
    if name == "tied":
        eventually(lambda: not programs(label), "the programs have ended", 15)
    else:
        assert programs(label), "they run on, without the lock"
