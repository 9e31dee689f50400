"""A table's picture: horizontal bars, as SVG, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from .report import Bars, Row, Table

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 860, 260, 90, 44, 24, 14

_STYLE = (
    "<style>"
    "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}"
    ".panel{fill:#ffffff;stroke:#d1d9e0}.peer{fill:#818b98}.ours{fill:#1a7f37}"
    ".plain{fill:#0969da}"
    "@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.panel{fill:#0d1117;stroke:#3d444d}"
    ".peer{fill:#656c76}.ours{fill:#3fb950}.plain{fill:#4493f8}}"
    "</style>"
)


def draw(table: Table, bars: Bars) -> str:
    """The text of an SVG. Rows without a figure have no bar."""
    rows = [row for row in table.rows if row.get(bars.value) is not None]
    height = TOP + ROW * len(rows) + 14
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">',
            f'<title id="title">{escape(bars.title)}</title>',
            _STYLE,
            f'<rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}"'
            ' rx="8"/>',
            f'<text x="16" y="26" style="font-size:14px">{escape(bars.title)}</text>',
            *_bars(rows, bars),
            "</svg>",
            "",
        ]
    )


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
    """Of the bars, the longest being 1. Logarithmic ones begin at a power of ten."""
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
