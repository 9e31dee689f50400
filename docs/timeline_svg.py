"""Timelines as pictures: from what was recorded of a burst of calls to an SVG. Pure.

`make_timelines.py` records, and the pictures are in docs/pictures. `timeline_demo.py` draws the
demo with the same signs.

Not by matplotlib: its files have one set of colours, where these follow the reader's light or dark
scheme; they have no words for who does not see them; they are three times as long, and change with
its version, so that no test could say that a picture is what was recorded.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

#: Seconds that a stretch must last to be seen.
VISIBLE = 0.04


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened to a call.

    Attributes:
        at: seconds since the first call was sent.
        call: which call, from 1.
        what: "sent"; "arrives" in a pool slot and "leaves" it; "starts" and "ends", of the body;
            or how a conflict ended, in the words of `ConflictDetails.outcome`.
    """

    at: float
    call: int
    what: str


@dataclasses.dataclass(frozen=True)
class Recording:
    """What was recorded of one policy.

    Attributes:
        policy: the policy, as it is written.
        slots: how many pool slots the worker has.
        events: in the order of their times.
        results: for each call, the state in which it ended and what its result says.
    """

    policy: str
    slots: int
    events: Sequence[Event]
    results: dict[int, tuple[str, str]]

    @property
    def calls(self) -> list[int]:
        return sorted({event.call for event in self.events})

    @property
    def end(self) -> float:
        return max(event.at for event in self.events)

    def of(self, call: int) -> list[Event]:
        return [event for event in self.events if event.call == call]

    @classmethod
    def load(cls, data: dict[str, Any]) -> Recording:
        """A recording from the plain data that `dump` gave."""
        return cls(
            data["policy"],
            data["slots"],
            [Event(*each) for each in data["events"]],
            {int(call): (state, text) for call, (state, text) in data["results"].items()},
        )

    def dump(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "slots": self.slots,
            "events": [[round(e.at, 4), e.call, e.what] for e in self.events],
            "results": {str(call): list(result) for call, result in self.results.items()},
        }


# -- what a recording says --------------------------------------------------------------------

#: After a conflict that ended so the call is elsewhere, and will come again.
PARKED = ("queued", "coalesced", "debounced", "replacing")
ELSEWHERE = {"deferred": "sleeps", **dict.fromkeys(PARKED, "parked")}
OVER = ("skipped", "skipped with a result", "raised")


def stretches(recording: Recording, call: int) -> Iterator[tuple[str, float, float]]:
    """What a call does, from when until when: "sent" (in the queue), "slot" (it holds a pool slot
    and does not run), "sleeps", "parked", "runs".
    """
    state, since = "", 0.0
    for event in recording.of(call):
        following = {
            "sent": "sent",
            "arrives": "slot",
            "starts": "runs",
            "ends": "ended",
            **ELSEWHERE,
            **dict.fromkeys((*OVER, "replaced"), "ended"),
        }.get(event.what)
        if following is None or state == "ended":
            continue
        if state:
            yield state, since, event.at
        state, since = following, event.at
    if state not in ("", "ended"):
        yield state, since, recording.end


def visible(recording: Recording, call: int) -> list[tuple[str, float, float]]:
    """The stretches that can be seen; of one that was interrupted for a moment, the whole."""
    seen: list[tuple[str, float, float]] = []
    for kind, since, until in stretches(recording, call):
        if until - since < VISIBLE:
            continue
        if seen and seen[-1][0] == kind and since - seen[-1][2] < VISIBLE:
            since = seen.pop()[1]
        seen.append((kind, since, until))
    return seen


def slots_in_use(recording: Recording) -> list[tuple[float, int]]:
    """How many pool slots are taken, from when on."""
    used, steps = 0, [(0.0, 0)]
    for event in recording.events:
        if event.what in ("arrives", "leaves"):
            used += 1 if event.what == "arrives" else -1
            steps.append((event.at, used))
    return steps


def gaps(recording: Recording) -> list[float]:
    """Seconds from the end of each run to the start of the next, where one waited for it."""
    ends = sorted(e.at for e in recording.events if e.what == "ends")
    starts = sorted(e.at for e in recording.events if e.what == "starts")
    sent = {e.call: e.at for e in recording.events if e.what == "sent"}
    first = {e.call: e.at for e in reversed(recording.events) if e.what == "starts"}
    return [
        start - end
        for end, start in zip(ends, starts[1:], strict=False)
        if any(sent[call] < end and at >= start for call, at in first.items())
    ]


def summary(recording: Recording) -> str:
    """The figures of a recording, in a line."""
    ran = len({e.call for e in recording.events if e.what == "starts"})
    parts = [f"{len(recording.calls)} calls sent, {ran} ran"]
    waited = gaps(recording)
    if waited:
        longest = f" ({in_seconds(max(waited))} at most)" if len(waited) > 1 else ""
        parts.append(f"{in_seconds(statistics.median(waited))} from one run to the next{longest}")
    parts.append(f"{max(used for _, used in slots_in_use(recording))} pool slots at most")
    return "; ".join(parts)


def in_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.1f} s"


def in_words(recording: Recording) -> str:
    """A recording for those who do not see the picture."""
    lines = []
    for call in recording.calls:
        told = [
            f"{WORDS[kind]} from {since:.2f} s to {until:.2f} s"
            for kind, since, until in visible(recording, call)
            if kind != "sent"
        ]
        sent = next(e.at for e in recording.of(call) if e.what == "sent")
        lines.append(
            ", ".join([f"Call {call} is sent at {sent:.2f} s", *told])
            + f", and ends as {_result(recording, call)}."
        )
    return " ".join(lines)


def _result(recording: Recording, call: int) -> str:
    state, text = recording.results[call]
    return f"{state}: {text}" if text else state


# -- the drawing ------------------------------------------------------------------------------

WORDS = {
    "sent": "in the queue",
    "slot": "waits in a pool slot",
    "sleeps": "sleeps as a message with a countdown",
    "parked": "waits in Redis",
    "runs": "runs",
}

WIDTH, LEFT, RIGHT = 860, 92, 236
TOP, ROW, BAR = 68, 26, 14
SLOTS = 34  # the height of the strip that shows the pool
SPACE = 22

# Without CSS variables: not everything that shows an SVG knows them.
LIGHT = {
    "panel": "fill:#ffffff;stroke:#d1d9e0",
    "text": "fill:#1f2328",
    "quiet": "fill:#59636e",
    "grid": "stroke:#d1d9e0",
    "runs": "fill:#1a7f37",
    "slot": "fill:#bf8700",
    "stripe": "stroke:#ffffff",
    "parked": "stroke:#8250df",
    "sleeps": "stroke:#0969da",
    "queue": "stroke:#818b98",
    "dot": "fill:#1f2328",
    "skipped": "stroke:#9a6700",
    "failed": "stroke:#cf222e",
    "done": "stroke:#1a7f37",
    "pool": "fill:#818b98",
}
DARK = {
    "panel": "fill:#0d1117;stroke:#3d444d",
    "text": "fill:#f0f6fc",
    "quiet": "fill:#9198a1",
    "grid": "stroke:#3d444d",
    "runs": "fill:#3fb950",
    "slot": "fill:#d29922",
    "stripe": "stroke:#0d1117",
    "parked": "stroke:#ab7df8",
    "sleeps": "stroke:#4493f8",
    "queue": "stroke:#656c76",
    "dot": "fill:#f0f6fc",
    "skipped": "stroke:#d29922",
    "failed": "stroke:#f85149",
    "done": "stroke:#3fb950",
    "pool": "fill:#656c76",
}
LINES = {"parked": "7 4", "sleeps": "1.5 4.5", "sent": ""}


def draw(recording: Recording, span: float) -> str:
    """The picture, as the text of an SVG.

    Args:
        recording: what was recorded.
        span: seconds that the axis shows; the same for all pictures that are to be compared.
    """
    rows = len(recording.calls)
    bottom = TOP + rows * ROW
    pool = bottom + 14
    axis = pool + SLOTS
    height = axis + 62
    scale = Scale(span)
    name = f"on_conflict={recording.policy}"
    parts = [
        *head(WIDTH, height, f"A burst of calls under {name}", in_words(recording)),
        f'<rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        text_at(16, 28, name, "text code", size=15),
        text_at(16, 48, summary(recording), "quiet"),
        *_axis(scale, axis),
    ]
    for number, call in enumerate(recording.calls):
        parts += _row(recording, call, TOP + number * ROW + ROW / 2, scale)
    parts += _pool(recording, pool, scale)
    parts += _legend(recording, height - 18)
    return "\n".join([*parts, "</svg>", ""])


@dataclasses.dataclass(frozen=True)
class Scale:
    """Where a time is, in a plot from `left` to `right` that shows `span` seconds."""

    span: float
    left: float = LEFT
    right: float = WIDTH - RIGHT

    def __call__(self, seconds: float) -> float:
        return self.left + (self.right - self.left) * seconds / self.span


def head(
    width: float, height: float, title: str, words: str, style: str = "", larger: float = 1
) -> Iterator[str]:
    """The start of a picture: its title, the same in words, its colours, and how large it is shown
    where there is room.
    """
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * larger:g}"'
        f' height="{height * larger:g}"'
        f' viewBox="0 0 {width} {height}" role="img" aria-labelledby="title desc">'
    )
    yield f'<title id="title">{escape(title)}</title>'
    yield f'<desc id="desc">{escape(words)}</desc>'
    yield "<style>"
    yield "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
    yield ".code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}"
    yield "".join(rules(LIGHT))
    yield f"@media (prefers-color-scheme:dark){{{''.join(rules(DARK))}}}"
    if style:
        yield style
    yield "</style>"
    yield (
        '<defs><pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><rect class="slot" width="6" height="6"/>'
        '<path class="stripe" d="M0 0V6" stroke-width="5"/></pattern></defs>'
    )


def rules(colours: dict[str, str]) -> Iterator[str]:
    for name, rule in colours.items():
        yield f".{name}{{{rule}}}"


def text_at(
    x: float, y: float, text: str, kind: str = "text", anchor: str = "start", size: int = 12
) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        f' style="font-size:{size}px">{escape(text)}</text>'
    )


def _axis(scale: Scale, bottom: float) -> Iterator[str]:
    for second in range(int(scale.span) + 1):
        x = scale(second)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}" stroke-width="1"/>'
        label = f"{second} s" if second else "0"
        yield text_at(x, bottom + 15, label, "quiet", "middle", 11)


def _row(recording: Recording, call: int, y: float, scale: Scale) -> Iterator[str]:
    yield text_at(16, y + 4, f"call {call}")
    for kind, since, until in visible(recording, call):
        yield stretch(kind, scale(since), scale(until), y)
    dot = scale(next(event.at for event in recording.of(call) if event.what == "sent"))
    yield f'<circle class="dot" cx="{dot:.1f}" cy="{y}" r="3.5"/>'
    for event in recording.of(call):
        x = scale(event.at)
        if event.what in (*OVER, "replaced"):
            yield mark(event.what, max(x, dot + 11), y)  # beside the dot, not over it
        elif event.what == "deferred" and x > dot + 5:
            yield mark(event.what, x, y)
    yield text_at(WIDTH - RIGHT + 18, y + 4, _result(recording, call))


def stretch(kind: str, left: float, right: float, y: float) -> str:
    if kind not in LINES:
        fill = ' style="fill:url(#stripes)"' if kind == "slot" else ""
        return (
            f'<rect class="{kind}"{fill} x="{left:.1f}" y="{y - BAR / 2}"'
            f' width="{right - left:.1f}" height="{BAR}" rx="2"/>'
        )
    name = "queue" if kind == "sent" else kind
    dashes = f' stroke-dasharray="{LINES[kind]}"' if LINES[kind] else ""
    return (
        f'<path class="{name}" d="M{left:.1f} {y}H{right:.1f}" fill="none"'
        f' stroke-width="3" stroke-linecap="butt"{dashes}/>'
    )


def mark(what: str, x: float, y: float) -> str:
    if what == "deferred":
        return f'<path class="sleeps" d="M{x:.1f} {y - 6}v12" fill="none" stroke-width="1.5"/>'
    if what == "skipped with a result":
        path, kind = f"M{x - 5:.1f} {y}l4 4.5l7 -9", "done"
    else:
        path = f"M{x - 4.5:.1f} {y - 4.5}l9 9m0 -9l-9 9"
        kind = "failed" if what == "raised" else "skipped"
    return f'<path class="{kind}" d="{path}" fill="none" stroke-width="2.5"/>'


def _pool(recording: Recording, top: float, scale: Scale) -> Iterator[str]:
    """How many slots are taken, as a step for each change."""
    unit = SLOTS / recording.slots
    base = top + SLOTS
    path = [f"M{scale(0):.1f} {base}"]
    for at, used in slots_in_use(recording):
        path.append(f"H{scale(at):.1f}V{base - used * unit:.1f}")
    yield f'<path class="pool" d="{"".join(path)}H{scale(recording.end):.1f}V{base}Z"/>'
    yield f'<path class="grid" d="M{LEFT} {base}H{WIDTH - RIGHT}M{LEFT} {top}H{WIDTH - RIGHT}"/>'
    yield text_at(16, top + SLOTS / 2 + 4, "pool slots")
    yield text_at(LEFT - 6, base, "0", "quiet", "end", 10)
    yield text_at(LEFT - 6, top + 8, str(recording.slots), "quiet", "end", 10)


def _legend(recording: Recording, y: float) -> Iterator[str]:
    """What the signs mean; only those that are there."""
    seen = {kind for call in recording.calls for kind, _, _ in visible(recording, call)}
    ended = {event.what for event in recording.events}
    x = 16.0
    entries: list[tuple[str, str]] = [("dot", "sent")]
    entries += [(kind, words) for kind, words in WORDS.items() if kind in seen]
    for outcome, words in (
        ("deferred", "asks again"),
        ("skipped", "ends without running"),
        ("replaced", "ends without running"),
        ("skipped with a result", "ends with a result, without running"),
        ("raised", "fails without running"),
    ):
        if outcome in ended and words not in [w for _, w in entries]:
            entries.append((outcome, words))
    for kind, words in entries:
        yield from _sign(kind, x, y)
        x += 30
        yield text_at(x, y + 4, words, "quiet", size=11)
        x += _width(words) + SPACE


def _sign(kind: str, x: float, y: float) -> Iterable[str]:
    if kind == "dot":
        return [f'<circle class="dot" cx="{x + 16}" cy="{y}" r="3.5"/>']
    if kind in WORDS:
        return [stretch(kind, x, x + 24, y)]
    return [mark(kind, x + 14, y)]


def _width(text: str) -> float:
    """About how wide a legend's text is, in pixels."""
    return len(text) * 5.6
