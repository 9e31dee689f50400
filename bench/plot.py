"""A table's picture, as SVG, for light and dark pages: horizontal bars, or curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from xml.sax.saxutils import escape

from .report import Bars, Curves, Row, Table

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 860, 260, 90, 44, 24, 14
#: Where curves are in the picture. Their names are on the right.
CURVES_LEFT, CURVES_RIGHT, CURVES_HEIGHT = 70, 220, 320
COLOURS = (
    *("#0969da", "#1a7f37", "#bf3989", "#9a6700", "#8250df", "#cf222e", "#0a7ea4", "#656d76"),
    *("#d4691e", "#2da44e", "#6639ba", "#57606a"),
)

_STYLE = (
    "<style>"
    "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}"
    ".panel{fill:#ffffff;stroke:#d1d9e0}.peer{fill:#818b98}.ours{fill:#1a7f37}"
    ".plain{fill:#0969da}.curve{fill:none;stroke-width:2}.grid{stroke:#818b98;stroke-opacity:.3}"
    "@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.panel{fill:#0d1117;stroke:#3d444d}"
    ".peer{fill:#656c76}.ours{fill:#3fb950}.plain{fill:#4493f8}}"
    "</style>"
)


def picture(table: Table) -> str | None:
    """The text of the table's SVG, if it has one."""
    if table.bars:
        return draw(table, table.bars)
    return draw_curves(table, table.curves) if table.curves else None


def draw(table: Table, bars: Bars) -> str:
    """The text of an SVG. Rows without a figure have no bar."""
    rows = [row for row in table.rows if row.get(bars.value) is not None]
    return _panel(bars.title, TOP + ROW * len(rows) + 14, _bars(rows, bars))


def draw_curves(table: Table, curves: Curves) -> str:
    """The text of an SVG: sizes to the right, figures upwards, both by powers of ten."""
    return _panel(curves.title, TOP + CURVES_HEIGHT + 40, _curves(table.rows, curves))


def _panel(title: str, height: int, content: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">',
            f'<title id="title">{escape(title)}</title>',
            _STYLE,
            f'<rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}"'
            ' rx="8"/>',
            f'<text x="16" y="26" style="font-size:14px">{escape(title)}</text>',
            *content,
            "</svg>",
            "",
        ]
    )


def _curves(rows: Sequence[Row], curves: Curves) -> Iterator[str]:
    figures = {
        key: [(row[curves.size], float(row[key])) for row in rows if row.get(key)]
        for key in curves.lines
    }
    points = [point for line in figures.values() for point in line]
    if not points:
        return
    across = _Axis([size for size, _ in points], CURVES_LEFT, WIDTH - CURVES_RIGHT)
    up = _Axis([figure for _, figure in points], TOP + CURVES_HEIGHT, TOP + 10)
    for power in across.powers:
        x = across.place(power)
        yield f'<line class="grid" x1="{x:.1f}" y1="{up.end}" x2="{x:.1f}" y2="{up.start}"/>'
        yield f'<text x="{x:.1f}" y="{up.start + 18}" text-anchor="middle">{power:,.0f}</text>'
    for power in up.powers:
        y = up.place(power)
        yield (
            f'<line class="grid" x1="{across.start}" y1="{y:.1f}" x2="{across.end}" y2="{y:.1f}"/>'
            f'<text x="{across.start - 8}" y="{y + 4:.1f}" text-anchor="end">{_short(power)}</text>'
        )
    drawn = [(key, line) for key, line in figures.items() if line]
    ends = [up.place(line[-1][1]) for _, line in drawn]
    for number, (key, line) in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{across.place(size):.1f},{up.place(figure):.1f}" for size, figure in line)
        yield f'<polyline class="curve" stroke="{colour}" points="{path}"/>'
        y = apart(ends)[number] + 4
        label = f"{escape(curves.lines[key])}: {_short(line[-1][1])}"
        yield f'<text x="{across.end + 10}" y="{y:.1f}" style="fill:{colour}">{label}</text>'


class _Axis:
    """Where a figure is between two edges of a picture, by powers of ten."""

    def __init__(self, figures: Sequence[float], start: int, end: int) -> None:
        self.start, self.end = start, end
        self._low = math.floor(math.log10(min(figures)))
        self._high = max(math.ceil(math.log10(max(figures))), self._low + 1)
        self.powers = [10.0**power for power in range(self._low, self._high + 1)]

    def place(self, figure: float) -> float:
        share = (math.log10(figure) - self._low) / (self._high - self._low)
        return self.start + share * (self.end - self.start)


def apart(places: Sequence[float], least: float = 15.0) -> list[float]:
    """These places, in their order from the top, moved down until they are so far apart."""
    found = list(places)
    before = -math.inf
    for number in sorted(range(len(found)), key=found.__getitem__):
        before = found[number] = max(found[number], before + least)
    return found


def _bars(rows: list[Row], bars: Bars) -> Iterator[str]:
    figures = [float(row[bars.value]) for row in rows]
    for number, (row, length) in enumerate(zip(rows, lengths(figures, bars.log), strict=True)):
        y = TOP + ROW * number
        label = ", ".join(str(row[key]) for key in bars.label)
        width = length * (WIDTH - LEFT - RIGHT)
        yield (
            f'<text x="{LEFT - 10}" y="{y + BAR - 3}" text-anchor="end">{escape(label)}</text>'
            f'<rect class="{kind(row, label)}" x="{LEFT}" y="{y}" width="{width:.1f}"'
            f' height="{BAR}" rx="2"/>'
            f'<text x="{LEFT + width + 6:.1f}" y="{y + BAR - 3}">{_short(figures[number])}</text>'
        )


def lengths(figures: list[float], log: bool) -> list[float]:
    """The lengths of the bars; the longest is 1. Logarithmic ones begin at a power of ten."""
    if not figures:
        return []
    most = max(figures) or 1.0
    if not log:
        return [figure / most for figure in figures]
    start = math.floor(math.log10(min(figures)) - 0.01)
    span = math.log10(most) - start
    return [(math.log10(figure) - start) / span for figure in figures]


def kind(row: Row, label: str) -> str:
    """Which colour a bar has."""
    if row.get("ours") or label.startswith("celery-redislock"):
        return "ours"
    return "plain" if label.startswith(("floor", "plain")) else "peer"


def _short(figure: float) -> str:
    if figure >= 1000:
        return f"{figure:,.0f}"
    return f"{figure:.3g}"
