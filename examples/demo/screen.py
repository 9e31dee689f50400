"""What the demo shows while it plays: nothing, plain lines, or (in `timeline`) a live drawing. Or
it goes to a file.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final, TextIO

from . import scenes
from .events import Event
from .figures import Figures, table_of, verdict_of
from .history import History


class Screen:
    """Shows nothing: for machines, which read the figures at the end."""

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leave the terminal as it was."""

    def caption(self, text: str) -> None:
        """Say what is going on."""

    def note(self, text: str) -> None:
        """Say something that stays to be read."""

    def begin(self) -> None:
        """The stage is set: from here on there is something to see."""

    def event(self, event: Event, history: History) -> None:
        """Something happened; the history knows it already."""

    def refresh(self, history: History) -> None:
        """Called some ten times a second."""

    def summary(self, figures: Figures) -> None:
        """The end."""


class PlainScreen(Screen):
    """One line for each event, with seconds since the start. Needs no terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._origin = time.monotonic()

    def caption(self, text: str) -> None:
        self._print(time.monotonic(), f"-- {text}")

    def note(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def event(self, event: Event, history: History) -> None:
        text = _sentence(event, history)
        if text:
            # The tasks of one account look alike but for their ids.
            self._print(event.at, f"{history.row_of(event):9}  {event.task_id[:4]}  {text}")

    def summary(self, figures: Figures) -> None:
        lines = ["", *table_of(figures), "", *verdict_of(figures)]
        print(*(line.rstrip() for line in lines), sep="\n", file=self._out, flush=True)

    def _print(self, at: float, text: str) -> None:
        print(f"{at - self._origin:6.2f}  {text}", file=self._out, flush=True)


#: What a picture of the demo is drawn from.
_DRAWN: Final = ("fired", "arrived", "start", "end", "killed", "conflict")


class RecordingScreen(Screen):
    """Shows nothing, and writes what happened to a file. `docs.timeline_demo` draws it.

    The tasks and processes get numbers in the order in which they are first seen.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._origin = 0.0
        self._captions: list[tuple[float, str]] = []
        self._events: list[Event] = []

    def begin(self) -> None:
        self._origin = time.monotonic()

    def caption(self, text: str) -> None:
        if self._origin:
            self._captions.append((round(time.monotonic() - self._origin, 3), text))

    def event(self, event: Event, history: History) -> None:
        if event.kind in _DRAWN:
            self._events.append(event)

    def summary(self, figures: Figures) -> None:
        if figures.problems:
            return
        tasks: dict[str, str] = {}
        pids: dict[int, int] = {}
        rows = [
            [
                *(event.kind, round(event.at - self._origin, 3), event.node),
                pids.setdefault(event.pid, len(pids) + 1),
                tasks.setdefault(event.task_id, str(len(tasks) + 1)),
                *(event.row, {k: v for k, v in event.data.items() if k in ("fence", "outcome")}),
            ]
            for event in sorted(self._events, key=lambda event: event.at)
        ]
        captions, events = (
            ",\n".join(json.dumps(row) for row in each) for each in (self._captions, rows)
        )
        self._path.write_text(
            f'{{"captions": [\n{captions}\n],\n"events": [\n{events}\n]}}\n', encoding="utf-8"
        )


def _sentence(event: Event, history: History) -> str:
    """What a plain line says of an event; "" if it says nothing."""
    if event.kind == "fired":
        return "fired by beat" if event.node == "beat" else "asked for"
    if event.kind == "arrived" and event.row == scenes.IMPORT and history.running(event.row):
        return "waits for its turn"
    if event.kind == "start":
        return f"RUNS on worker {event.node}, pid {event.pid}{_after_kill(event, history)}"
    if event.kind == "end":
        return f"ended after {_duration(event, history):.1f} s"
    if event.kind == "killed":
        return f"KILLED in mid-run: SIGKILL to pid {event.pid} on worker {event.node}"
    if event.kind == "lost":
        return "LOST its lock"
    if event.kind == "conflict":
        return _conflict(event)
    return ""


def _after_kill(event: Event, history: History) -> str:
    killed = [run.until for run in history.killed(event.row)]
    return f", {(event.at - killed[-1]) * 1000:.0f} ms after the kill" if killed else ""


def _duration(event: Event, history: History) -> float:
    return next(event.at - run.start for run in history.runs if run.end == event.at)


def _conflict(event: Event) -> str:
    outcome, countdown = event.data["outcome"], event.data["countdown"]
    if outcome == "waited":
        return "its turn has come: the lock is free"
    after = "" if countdown is None else f" for {countdown:.1f} s"
    holder = event.data["holder_node"]
    by = "" if holder is None else f": it runs on worker {holder.partition('@')[0]}"
    return f"{outcome}{after}{by}"
