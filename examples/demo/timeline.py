"""The live drawing, with rich: two lines for each lock, and time that flows to the right."""

from __future__ import annotations

import dataclasses
import textwrap
import time
from collections import Counter
from itertools import groupby
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from . import scenes
from .figures import Figures, table_of, verdict_of
from .history import History
from .screen import Screen

#: Seconds that there is room for; more if the machine is slow.
_SPAN: Final = 20.0
_TICK: Final = 5
#: Drawings a second, at most.
_DRAWINGS: Final = 10
#: Columns for the labels, left of the time.
_LABEL: Final = 20
_WIDEST: Final = 140
#: Lines that a caption may have. It always gets as many, so that the drawing does not jump.
_CAPTION: Final = 2
#: Seconds below which an arrival that is followed by its start has not waited.
_WAITED: Final = 0.2

_STYLES: Final = {
    **dict(zip(scenes.NODES, ("cyan", "magenta"), strict=True)),
    "skipped": "yellow",
    "deferred": "bright_blue",
    "waits": "white",
    "killed": "bold white on red",
    "ruler": "dim",
    "now": "bold",
}


@dataclasses.dataclass(frozen=True)
class Glyphs:
    """The characters of the drawing. A run's first cell sets it off from the run before."""

    first: str = "▐"
    run: str = "█"
    skipped: str = "×"  # noqa: RUF001  # meant
    deferred: str = "→"
    waits: str = "·"
    killed: str = "K"
    ruler: str = "─"
    now: str = "▼"


ASCII: Final = Glyphs("[", "=", "x", ">", ".", "K", "-", "v")


class LiveScreen(Screen):
    """Redraws the timeline in place, and leaves the last drawing on the terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._drawing = Group()
        # Cropped: a drawing that is higher than the terminal could not be drawn over. Its thread
        # writes the latest drawing: the story does not wait for a slow terminal.
        self._live = Live(
            console=self._console,
            get_renderable=lambda: self._drawing,
            refresh_per_second=_DRAWINGS,
            vertical_overflow="crop",
        )
        self._started = time.monotonic()
        self._origin: float | None = None
        self._caption = ""
        self._history = History()

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def caption(self, text: str) -> None:
        self._caption = text
        self._draw()

    def note(self, text: str) -> None:
        # Above the drawing, while there is one.
        self._console.print(Text(text, "bold"))

    def begin(self) -> None:
        self._origin = time.monotonic()

    def refresh(self, history: History) -> None:
        self._history = history
        self._draw()

    def summary(self, figures: Figures) -> None:
        head, *rows = table_of(figures)
        *verdict, last = verdict_of(figures)
        lines = [("", ""), (head, "dim"), *((line, "") for line in (*rows, "", *verdict))]
        for line, style in (*lines, (last, "bold red" if figures.problems else "bold green")):
            self._console.print(Text(line, style))

    def _draw(self) -> None:
        self._drawing = Group(*self._frame(time.monotonic()))

    def _frame(self, now: float) -> list[Text]:
        # One column less: a line that fills the terminal wraps on some.
        width = min(self._console.width - 1, _WIDEST)
        title = f"{'celery-redislock, live':{width - 8}}{now - self._started:6.1f} s"
        frame = [Text(title, "bold"), *_captioned(self._caption, width)]
        if self._origin is not None:
            glyphs = ASCII if self._console.options.ascii_only else Glyphs()
            scale = Scale(self._origin, now, max(width - _LABEL, 10))
            frame += draw(self._history, scale, glyphs)
        for line in frame:
            line.no_wrap, line.overflow = True, "crop"
        return frame


class Scale:
    """Which column a time falls into."""

    def __init__(self, origin: float, now: float, columns: int) -> None:
        self.origin = origin
        self.now = now
        self.columns = columns
        self.span = max(_SPAN, now - origin)

    def column(self, at: float) -> int:
        """The column of a time, within bounds; a run that has not ended ends now."""
        passed = min(at, self.now) - self.origin
        return min(max(int(passed / self.span * self.columns), 0), self.columns - 1)


class Strip:
    """One line of the timeline, cell by cell."""

    def __init__(self, columns: int) -> None:
        self._cells = [(" ", "")] * columns

    def put(self, column: int, text: str, style: str) -> None:
        """Write text from this column on, as far as there is room."""
        for offset, char in enumerate(text[: len(self._cells) - column]):
            self._cells[column + offset] = (char, style)

    def labelled(self, label: str, style: str) -> Text:
        alike = groupby(self._cells, key=lambda cell: cell[1])
        drawn = (("".join(char for char, _ in cells), style) for style, cells in alike)
        return Text.assemble((f" {label:{_LABEL - 1}}", style), *drawn)


def draw(history: History, scale: Scale, glyphs: Glyphs) -> list[Text]:
    """The timeline, from the ruler to the legend."""
    lines = [_ruler(scale, glyphs)]
    for row in scenes.ROWS:
        lines.append(_runs(history, row, scale, glyphs).labelled(row, "bold"))
        lines.append(_marks(history, row, scale, glyphs).labelled(_counts(history, row), "dim"))
    return [*lines, Text(), *_legend(glyphs, _LABEL + scale.columns)]


def _captioned(caption: str, width: int) -> list[Text]:
    lines = textwrap.wrap(caption, width, max_lines=_CAPTION) + [""] * _CAPTION
    return [*(Text(line, "italic") for line in lines[:_CAPTION]), Text()]


def _ruler(scale: Scale, glyphs: Glyphs) -> Text:
    strip = Strip(scale.columns)
    strip.put(0, glyphs.ruler * scale.columns, _STYLES["ruler"])
    for second in range(0, int(scale.span), _TICK):
        column = int(second / scale.span * scale.columns)
        strip.put(column, f"{second} s", _STYLES["ruler"])
    strip.put(scale.column(scale.now), glyphs.now, _STYLES["now"])
    return strip.labelled("", "")


def _runs(history: History, row: str, scale: Scale, glyphs: Glyphs) -> Strip:
    strip = Strip(scale.columns)
    for run in history.runs_of(row):
        start, until = scale.column(run.start), scale.column(run.until)
        strip.put(start, glyphs.first + glyphs.run * (until - start - 1), _STYLES[run.node])
    return strip


def _marks(history: History, row: str, scale: Scale, glyphs: Glyphs) -> Strip:
    strip = Strip(scale.columns)
    for kind, glyph in (("skipped", glyphs.skipped), ("deferred", glyphs.deferred)):
        columns = Counter(scale.column(event.at) for event in history.duplicates(kind, row))
        for column, count in columns.items():
            strip.put(column, glyph if count == 1 else str(min(count, 9)), _STYLES[kind])
    for start, until in history.waits(row) if row == scenes.IMPORT else ():
        end = scale.now if until is None else until
        if end - start > _WAITED:
            length = scale.column(end) - scale.column(start)
            strip.put(scale.column(start), glyphs.waits * length, _STYLES["waits"])
    for run in history.killed(row):
        strip.put(scale.column(run.until), glyphs.killed, _STYLES["killed"])
    return strip


def _counts(history: History, row: str) -> str:
    counts = {
        "ran": len(history.ended(row)),
        "skipped": len(history.duplicates("skipped", row)),
        "deferred": len(history.duplicates("deferred", row)),
        "killed": len(history.killed(row)),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _legend(glyphs: Glyphs, width: int) -> list[Text]:
    bar, killed = glyphs.first + glyphs.run * 3, glyphs.killed
    runs = [(bar, f"on worker {node}", node) for node in scenes.NODES]
    duplicates = [
        (glyphs.skipped, "skipped", "skipped"),
        (glyphs.deferred, "deferred (3: three at once)", "deferred"),
        (glyphs.waits * 3, "waits", "waits"),
    ]
    return [
        *_listed("runs", [*runs, (killed, "killed", "killed")], width),
        *_listed("duplicates", duplicates, width),
    ]


def _listed(label: str, entries: list[tuple[str, str, str]], width: int) -> list[Text]:
    """The signs with their meanings, on as many lines as it takes."""
    lines = [Text(f" {label:{_LABEL - 1}}", "dim")]
    for sign, meaning, style in entries:
        entry = Text.assemble((sign, _STYLES[style]), f" {meaning}   ", style="dim")
        if len(lines[-1]) > _LABEL and len(lines[-1]) + len(entry.plain.rstrip()) > width:
            lines.append(Text(" " * _LABEL))
        lines[-1].append_text(entry)
    return lines
