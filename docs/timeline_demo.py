"""The moving picture of the home page: a run of the demo, as an SVG. Pure.

`python -m examples.demo --record` records it, and the demo's own history reads it. The signs and
colours are those of `timeline_svg.py`. What moves is CSS. Without motion, and at the end, the whole
run is seen.
"""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from docs.timeline_svg import BAR, Scale, head, mark, stretch, text_at
from examples.demo import scenes
from examples.demo.events import Event
from examples.demo.history import History, Run

#: Narrow, so that its words can be read on a telephone. Where there is room it is shown larger.
WIDTH, MARGIN, LARGER = 440, 16, 1.15
#: A row has its words, and below them its runs: how far below, and where their part begins.
TOP, ROW, WORDS, RUNS, GAP = 104, 50, 16, 16, 3
SIZE = 14
#: Characters in a line of a caption, and its lines.
CAPTION, LINES = 57, 3
#: Seconds for which the whole is seen before it starts again, and how often it plays.
PAUSE, TIMES = 4.0, 5
#: Seconds that a wait must last to be drawn.
VISIBLE = 0.2
#: How a run on each worker is drawn.
ON = dict(zip(scenes.NODES, ("runs", "other"), strict=True))
COLOURS = ".other{fill:#0969da}@media (prefers-color-scheme:dark){.other{fill:#4493f8}}"
TITLE = "Two workers, beat, ten callers and a kill -9"


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A run of the demo: what happened, and what was said at which second."""

    history: History
    captions: Sequence[tuple[float, str]]

    @classmethod
    def load(cls, path: Path) -> Recorded:
        data = json.loads(path.read_text(encoding="utf-8"))
        names = ("kind", "at", "node", "pid", "task_id", "row", "data")
        events = [Event(**dict(zip(names, row, strict=True))) for row in data["events"]]
        began = min(event.at for event in events)
        moved = [dataclasses.replace(event, at=event.at - began) for event in events]
        captions = [(max(at - began, 0), text) for at, text in data["captions"]]
        return cls(History(moved), captions)

    @property
    def end(self) -> float:
        return max(run.until for run in self.history.runs)


def counts(history: History, row: str) -> str:
    """What became of a row's calls."""
    told = {
        "ran": len(history.ended(row)),
        "skipped": len(history.duplicates("skipped", row)),
        "killed": len(history.killed(row)),
    }
    return ", ".join(f"{count} {what}" for what, count in told.items() if count)


def overlaps(history: History) -> int:
    """How many runs of one lock started before the run before had ended."""
    rows = [history.runs_of(row) for row in scenes.ROWS]
    return sum(later.start < earlier.until for runs in rows for earlier, later in pairwise(runs))


def summary(recorded: Recorded) -> str:
    """The run in a line."""
    history = recorded.history
    sent, ran = len(history.fired(*scenes.ROWS)), len(history.runs_of(*scenes.ROWS))
    return f"{sent} calls sent, {ran} runs; runs of one lock that overlap: {overlaps(history)}"


def in_words(recorded: Recorded) -> str:
    """The run for those who do not see it."""
    told = [f"{row}: {counts(recorded.history, row)}." for row in scenes.ROWS]
    said = [text for _, text in recorded.captions]
    return " ".join([*said, summary(recorded) + ".", *told])


# -- the drawing ------------------------------------------------------------------------------


def draw(recorded: Recorded) -> str:
    """The picture, as the text of an SVG."""
    history, end = recorded.history, recorded.end
    bottom = TOP + len(scenes.ROWS) * ROW
    height = bottom + 112
    scale = Scale(math.ceil(end), MARGIN, WIDTH - MARGIN)
    clock = Clock(end)
    parts = [
        f'<rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        text_at(MARGIN, 28, TITLE, "text", size=17),
        *_captions(recorded, clock),
        *_axis(scale, bottom),
    ]
    for number, row in enumerate(scenes.ROWS):
        top = TOP + number * ROW
        parts += [text_at(MARGIN, top + WORDS, row, size=SIZE)]
        parts += _state(history, row, top + WORDS, clock)
        parts += _runs(history, row, top + WORDS + RUNS, scale)
        parts += [_cover(top + WORDS)]
    parts += _legend(history, bottom + 42)
    style = clock.style(scale(end) - MARGIN)
    words = in_words(recorded)
    start = head(WIDTH, height, TITLE, words, style, LARGER)
    return "\n".join([*start, *parts, "</svg>", ""])


class Clock:
    """When something is seen: classes of CSS, collected while the picture is drawn."""

    def __init__(self, end: float) -> None:
        self.end = end
        self._rules: list[str] = []
        self._frames: list[str] = []

    @property
    def whole(self) -> float:
        return self.end + PAUSE

    def between(self, since: float, until: float) -> str:
        """The class of something that is seen then, and not in the still picture."""
        name = f"t{len(self._rules)}"
        first, last = (100 * min(at, self.end) / self.whole for at in (since, until))
        self._rules.append(name)
        self._frames.append(
            f"@keyframes {name}{{0%{{opacity:0}}{first:.2f}%{{opacity:1}}{last:.2f}%{{opacity:0}}}}"
        )
        return f"moment {name}"

    def style(self, distance: float) -> str:
        """The rules. What is seen without motion is what the elements are without them."""
        stop = f"{100 * self.end / self.whole:.2f}%"
        play = f"{self.whole:.1f}s linear {TIMES}"
        names = "".join(f".{name}{{animation-name:{name}}}" for name in self._rules)
        return "\n".join(
            [
                COLOURS,
                ".moment,.now{opacity:0}",
                "@media (prefers-reduced-motion:no-preference){",
                f".moment{{animation:{self.whole:.1f}s step-end {TIMES}}}{names}",
                f".still{{animation:still {self.whole:.1f}s step-end {TIMES}}}",
                f".now{{animation:now {play}}}",
                "}",
                f"@keyframes still{{0%{{opacity:0}}{stop}{{opacity:1}}}}",
                "@keyframes now{0%{opacity:1;transform:none}"
                f"{stop}{{opacity:1;transform:translateX({distance:.1f}px)}}"
                f"{float(stop[:-1]) + 0.01:.2f}%,to{{opacity:0}}}}",
                *self._frames,
            ]
        )


def _captions(recorded: Recorded, clock: Clock) -> Iterator[str]:
    yield f'<g class="still">{text_at(MARGIN, 52, summary(recorded), "quiet", size=SIZE)}</g>'
    ends = [at for at, _ in recorded.captions[1:]] + [recorded.end]
    for (at, text), until in zip(recorded.captions, ends, strict=True):
        if at >= recorded.end or until - at < VISIBLE:
            continue
        yield f'<g class="{clock.between(at, until)}">'
        for number, line in enumerate(textwrap.wrap(text, CAPTION)[:LINES]):
            yield text_at(MARGIN, 52 + 19 * number, line, "quiet", size=SIZE)
        yield "</g>"


def _axis(scale: Scale, bottom: float) -> Iterator[str]:
    """Lines behind the runs of each row, and none through its words."""
    tops = [TOP + number * ROW + WORDS + GAP for number in range(len(scenes.ROWS))]
    for second in range(0, int(scale.span) + 1, 5):
        x = scale(second)
        lines = "".join(f"M{x:.1f} {top}v{ROW - WORDS - GAP}" for top in tops)
        yield f'<path class="grid" d="{lines}" stroke-width="1"/>'
        label, anchor = (f"{second} s", "middle") if second else ("0", "start")
        yield text_at(x, bottom + 15, label, "quiet", anchor, 12)


def _cover(top: float) -> str:
    """What hides a row's runs until they have happened, and its edge. It leaves on the right."""
    height = ROW - WORDS - GAP
    return (
        f'<svg y="{top + GAP}" width="{WIDTH - MARGIN / 2}" height="{height}">'
        f'<rect class="panel now" x="{MARGIN}" width="{WIDTH}" height="{height}" stroke-width="0"/>'
        f'<path class="grid now" d="M{MARGIN} 0v{height}" stroke-width="2"/></svg>'
    )


def _runs(history: History, row: str, y: float, scale: Scale) -> Iterator[str]:
    for since, until in history.waits(row) if row == scenes.IMPORT else ():
        if until is not None and until - since > VISIBLE:
            yield stretch("slot", scale(since), scale(until), y + BAR / 2 + 1)
    for run in history.runs_of(row):
        yield stretch(ON[run.node], scale(run.start), scale(run.until) - 1, y - 4)
    for event in history.duplicates("deferred", row):
        yield mark("deferred", scale(event.at), y + 9)
    for event in history.duplicates("skipped", row):
        yield mark("skipped", scale(event.at), y - 4)
    for run in history.killed(row):
        yield mark("raised", scale(run.until), y - 4)


def _state(history: History, row: str, y: float, clock: Clock) -> Iterator[str]:
    """Who has the lock at each time; in the still picture, what became of all."""
    x = WIDTH - MARGIN
    told = text_at(x, y, counts(history, row), anchor="end", size=SIZE)
    yield f'<g class="still">{told}</g>'
    for since, until, text in _states(history.runs_of(row)):
        moment = clock.between(since, until if until < math.inf else clock.end)
        kind = "text" if text != "free" else "quiet"
        yield f'<g class="{moment}">{text_at(x, y, text, kind, "end", SIZE)}</g>'


def _states(runs: Sequence[Run]) -> Iterator[tuple[float, float, str]]:
    """From when until when the lock is held and free."""
    at = 0.0
    for run in runs:
        if run.start - at > VISIBLE:
            yield at, run.start, "free"
        at = run.until
        yield run.start, at, f"held by {run.node}"
    yield at, math.inf, "free"


def _legend(history: History, y: float) -> Iterator[str]:
    entries = [("runs", "runs on worker one", 0, 0), ("other", "on worker two", 200, 0)]
    entries += [("skipped", "is skipped", 0, 1), ("slot", "waits", 200, 1)]
    entries += [("raised", "its process is killed", 0, 2)]
    entries += [("deferred", "deferred, comes again", 200, 2)]
    for kind, words, left, line in entries:
        x, at = MARGIN + left, y + 25 * line
        is_bar = kind in (*ON.values(), "slot")
        yield stretch(kind, x, x + 20, at) if is_bar else mark(kind, x + 10, at)
        yield text_at(x + 27, at + 5, words, "quiet", size=SIZE)
