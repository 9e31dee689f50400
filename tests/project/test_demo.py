"""The demo: it plays, serves its page, ends as it is told, and touches nothing of its user."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.demo import scenes
from examples.demo.history import History
from examples.demo.stage import shield
from examples.demo.timeline import LiveScreen
from tests.support.servers import redis_server_binary
from tests.support.waiting import eventually

#: Starts a command as from a terminal. In the background a shell has SIGINT ignored, and so would
#: the demo.
FROM_A_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Demo:
    """The command in a process, with a mark on all that it starts, and its own /tmp."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        binary = Path(redis_server_binary()).parent
        self.process = subprocess.Popen(
            [sys.executable, "-c", FROM_A_TERMINAL, "-m", "examples.demo", *arguments],
            env={
                **os.environ,
                "DEMO_MARK": self.mark,
                "TMPDIR": str(folder),
                "PATH": f"{binary}{os.pathsep}{os.environ['PATH']}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def pids(self, *words: str) -> list[int]:
        """Its processes, itself included, whose commands have these words."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                ours = f"DEMO_MARK={self.mark}".encode() in (path / "environ").read_bytes()
                command = (path / "cmdline").read_bytes().decode().split("\0")
            except OSError:  # gone, or somebody else's
                continue
            if ours and all(word in command for word in words):
                found.append(int(path.name))
        return found

    def read_until(self, text: str) -> str:
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if text in line:
                return line
        _, _, err = self.wait()
        raise AssertionError(f"it ended without saying {text!r}:\n{''.join(seen)}{err}")

    def wait(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err

    def remains(self) -> list[object]:
        return [*self.pids(), *self.folder.iterdir()]


@pytest.fixture
def start_demo(tmp_path) -> Iterator[Any]:
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        started.append(Demo(tmp_path, *arguments))
        return started[-1]

    yield start
    for demo in started:
        for pid in demo.pids():
            os.kill(pid, signal.SIGKILL)
        demo.process.communicate()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


def test_the_figures_hold_and_the_page_shows_the_locks_until_ctrl_c(
    start_demo,
):
    demo = start_demo("--plain", "--web")
    said = demo.read_until("http://127.0.0.1:")
    url = said.split()[-1]

    def locks() -> dict[str, Any]:
        return {each["task"]: each for each in json.loads(get(f"{url}api/locks"))}

    # When: it plays.
    assert demo.pids("worker")
    assert b"<title>Locks</title>" in get(url)
    report = eventually(lambda: locks().get(scenes.REPORT), "the page has the report's lock")
    assert report["state"] == "held"
    assert 0 < report["lives_for"] <= scenes.LOCK_TTL
    demo.read_until("all figures hold")
    assert url in demo.read_until("The page stays up")
    # Then: jobs go on, from beat as well.
    eventually(lambda: demo.pids("beat") and locks().get(scenes.REPORT), "a report holds its lock")
    eventually(lambda: locks().get(scenes.IMPORT, {}).get("waiting"), "an import waits")
    demo.process.send_signal(signal.SIGINT)
    status, out, err = demo.wait()
    assert (status, err) == (0, "")
    assert "Ended by Ctrl-C; nothing remains." in out
    assert demo.remains() == []


def test_the_users_own_servers_are_out_of_its_reach():
    environment = {
        "CELERY_BROKER_URL": "redis://theirs",
        "DJANGO_SETTINGS_MODULE": "x",
        "HOME": "/",
    }
    shield(environment)
    assert environment == {"HOME": "/"}


class SlowTerminal(io.StringIO):
    """Takes nothing after `is_slow` is set until `takes` is."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow, self.is_full, self.takes = (threading.Event() for _ in range(3))

    def write(self, text: str) -> int:
        if self.is_slow.is_set():
            self.is_full.set()
            assert self.takes.wait(60)
        return super().write(text)


def test_what_is_drawn_last_is_seen_and_nobody_waits_for_a_slow_terminal():
    terminal = SlowTerminal()
    screen = LiveScreen(Console(file=terminal, force_terminal=True, width=60, height=24))
    with screen:
        terminal.is_slow.set()
        screen.caption("Not seen.")
        assert terminal.is_full.wait(60)
        # When: the terminal takes nothing. Then: the story goes on all the same.
        screen.begin()
        screen.caption("Seen at last.")
        screen.refresh(History())
        terminal.takes.set()
    assert "Seen at last." in terminal.getvalue()
