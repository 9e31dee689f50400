"""The demo: that its figures are counted from what happened, its screens, and what it needs."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs import timeline_demo
from examples.demo import scenes
from examples.demo.__main__ import main
from examples.demo.events import Event
from examples.demo.figures import figures_of
from examples.demo.history import History
from examples.demo.screen import PlainScreen, RecordingScreen
from examples.demo.stage import WHEELS, NoRedisError, find_redis_server, shield
from tests.support.servers import redis_server_binary

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


# -- what it needs, and what it must not touch ------------------------------------------------


def test_without_a_redis_server_it_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for wheel in WHEELS:
        monkeypatch.setitem(sys.modules, wheel, None)
    assert main(["--json"]) == 2
    said = capsys.readouterr()
    assert "Install Redis" in said.err
    assert said.out == ""


def test_without_a_web_server_it_says_what_to_install(monkeypatch, capsys):
    binary = Path(redis_server_binary()).parent
    monkeypatch.setenv("PATH", f"{binary}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["--web"]) == 2
    said = capsys.readouterr()
    assert "celery-redislock[web]" in said.err
    assert said.out == ""


@pytest.mark.parametrize("wheel", WHEELS)
def test_a_wheels_server_is_taken_if_there_is_no_other(monkeypatch, tmp_path, wheel):
    monkeypatch.setenv("PATH", str(tmp_path))
    for each in WHEELS:
        monkeypatch.setitem(sys.modules, each, None)
    monkeypatch.delitem(sys.modules, wheel)
    server = tmp_path / wheel / WHEELS[wheel].replace("*", "linux")
    server.parent.mkdir(parents=True)
    (tmp_path / wheel / "__init__.py").touch()
    server.touch(mode=0o755)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_redis_server() == str(server)
    server.chmod(0o644)
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


# -- the recording ----------------------------------------------------------------------------


def recorded(path: Path, events: list[Event], **changes: Any) -> None:
    screen, history = RecordingScreen(path), History()
    screen.caption("Starting.")
    screen.begin()
    screen.caption("Beat fires.")
    for each in events:
        history.add(each)
        screen.event(each, history)
    screen.summary(replace(figures_of(history, []), **changes))


def test_what_is_recorded_reads_as_it_was(tmp_path):
    path = tmp_path / "demo.json"
    events = good_story()
    recorded(path, events)
    read = timeline_demo.Recorded.load(path)
    history = History(events)
    for row in scenes.ROWS:
        assert timeline_demo.counts(read.history, row) == timeline_demo.counts(history, row)
        assert [r.node for r in read.history.runs_of(row)] == [r.node for r in history.runs_of(row)]
    assert [text for _, text in read.captions] == ["Beat fires."]
    assert "</svg>" in timeline_demo.draw(read)


def test_a_run_whose_figures_do_not_hold_is_not_recorded(tmp_path):
    recorded(tmp_path / "demo.json", good_story(), problems=["two at once"])
    assert not (tmp_path / "demo.json").exists()
