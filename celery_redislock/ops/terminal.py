"""Text that fits a terminal: its width, cut and wrapped cells, aligned columns.

Anybody who sends a task chooses names, so characters that could move the cursor are not printed.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final

import click
from wcwidth import wcwidth

from ..protocol.holders import escaped

#: The width without a terminal: in a pipe or a file. The variable COLUMNS overrides it.
PIPED: Final = 120
#: No table is narrower than this; a narrower terminal breaks the lines.
NARROWEST: Final = 60
#: The most lines that a cell takes; a longer text loses its end.
LINES: Final = 6
#: A line of a name ends after one of these characters, or at a space. No character is left out.
_BREAKS: Final = frozenset(":/.,;=_-)]}@")
_EMOJI_VARIATION: Final = "\ufe0f"
#: The combining class of the signs that join two letters of Indic scripts.
_VIRAMA: Final = 9


def terminal_width() -> int:
    return max(shutil.get_terminal_size((PIPED, 24)).columns, NARROWEST)


def plain(text: str) -> str:
    """The text as it can be printed here: on one line, in the terminal's encoding."""
    text = escaped(text)
    if text.isascii():
        return text
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def width_of(text: str) -> int:
    """How many columns a text takes at most."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(char: str) -> int:
    # An emoji selector or a combining mark may make the character before it wide; a virama the one
    # behind it.
    is_mark = unicodedata.category(char) == "Mc" or unicodedata.combining(char) == _VIRAMA
    return 1 if char == _EMOJI_VARIATION or is_mark else wcwidth(char)


def _end(text: str, width: int, start: int = 0) -> int:
    """The index at which the text from `start` no longer fits; its length if all fits."""
    if text.isascii():
        return min(start + width, len(text))
    taken = 0
    for index in range(start, len(text)):
        taken += _width(text[index])
        if taken > width:
            return index
    return len(text)


def cut(text: str, width: int) -> str:
    """The text without its end, if it is too wide."""
    return wrap(text, width, 1)[0]


def wrap(text: str, width: int, max_lines: int | None = None) -> list[str]:
    """Lines of this width, broken at spaces or after punctuation; cut after `max_lines`."""
    lines: list[str] = []
    start = 0
    while (end := _end(text, width, start)) < len(text):
        if len(lines) + 1 == max_lines:
            return [*lines, f"{text[start : _end(text, width - 1, start)]}~"]
        end = max(end, start + 1)
        if text[end] != " ":
            end = start + _break_in(text[start:end])
        lines.append(text[start:end].rstrip())
        while text[end : end + 1] == " ":
            end += 1
        start = end
    return [*lines, text[start:]]


def _break_in(line: str) -> int:
    space = line.rfind(" ") + 1
    if space > len(line) // 3:
        return space
    sign = max((index + 1 for index, char in enumerate(line) if char in _BREAKS), default=0)
    return sign if sign > len(line) // 2 else len(line)


# -- tables -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and how its cells fit that are too wide."""

    head: str
    of: Callable[[Any], Any]  # what a row has here; None shows as "-"
    lines: int = 0  # at most so many; 0 for a column that is never narrower than its cells
    least: int = 8  # its width, unless the terminal is too narrow
    right: bool = False  # its cells end at the right: for numbers
    rare: bool = False  # it is left out if no row has a value for it


def grid(
    columns: Iterable[Column],
    rows: Iterable[Any],
    width: int | None = None,
    color: Callable[[Any], str] = lambda row: "",
) -> list[str]:
    """The lines of a table that fits the terminal, or `width`; `color` tells a row's colour."""
    rows = list(rows)
    head, *by_row = lines_by_row(columns, rows, width)
    for row, lines in zip(rows, by_row, strict=True):
        fg = color(row)
        head += [click.style(line, fg=fg) for line in lines] if fg else lines
    return head


def lines_by_row(
    columns: Iterable[Column], rows: Sequence[Any], width: int | None = None
) -> list[list[str]]:
    """As `grid`: the lines of the head, and those of each row."""
    limit = terminal_width() if width is None else width
    shown: list[Column] = []
    cells: list[Sequence[str]] = []
    for column in columns:
        values = [column.of(row) for row in rows]
        if any(values) or not column.rare:
            shown.append(column)
            cells.append([plain("-" if each is None else str(each)) for each in values])
    widths = _widths(shown, cells, limit)
    lines = [[_line([column.head for column in shown], shown, widths, limit)]]
    for row in zip(*cells, strict=True):
        fitted = (
            wrap(cell, width, column.lines) if column.lines else [cell]
            for column, cell, width in zip(shown, row, widths, strict=True)
        )
        lines += [
            [_line(each, shown, widths, limit) for each in zip_longest(*fitted, fillvalue="")]
        ]
    return lines


def _line(
    cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], limit: int
) -> str:
    padded = (
        gap + cell if column.right else cell + gap
        for cell, column, width in zip(cells, columns, widths, strict=True)
        for gap in [" " * (width - width_of(cell))]
    )
    return cut("  ".join(padded).rstrip(), limit)


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], limit: int) -> list[int]:
    """The width of each column. Of those that can be narrower, the widest shrink first."""
    needed = [
        max([len(column.head), *map(width_of, texts)])
        for column, texts in zip(columns, cells, strict=True)
    ]
    room = limit - 2 * (len(columns) - 1)
    for keep_least in (True, False):
        for most in range(min(max(needed), limit), 3, -1):
            widths = [
                min(need, max(most, column.least, len(column.head)) if keep_least else most)
                if column.lines
                else need
                for column, need in zip(columns, needed, strict=True)
            ]
            if sum(widths) <= room:
                return widths
    return widths


# -- paragraphs -------------------------------------------------------------------------------


def is_plain() -> bool:
    """Whether to use no colours: https://no-color.org, --no-color, or the terminal has none."""
    context = click.get_current_context(silent=True)
    chosen = context is not None and bool(getattr(context.obj, "no_color", False))
    has_none = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return chosen or has_none or bool(os.environ.get("NO_COLOR"))


def show_lines(lines: Iterable[str], err: bool = False) -> None:
    """Print the lines, if there are any: without colours in a pipe, and where nobody wants them."""
    if text := "\n".join(lines):
        click.echo(text, err=err, color=False if is_plain() else None)


def say(text: str, err: bool = False) -> None:
    """Print the text in lines that fit the terminal; in a pipe as one that the reader can wrap."""
    show_lines(_fitted(plain(text)), err)


def named_values(values: Iterable[tuple[str, Any]]) -> list[str]:
    """Lines of names with values, but for None, wrapped to fit the terminal, if there is one."""
    pairs = [(name, plain(str(value))) for name, value in values if value is not None]
    widest = max((len(name) for name, _ in pairs), default=0) + 2
    return [
        f"{name.ljust(widest)}{line}".rstrip()
        for each, value in pairs
        for name, line in zip_longest([each], _fitted(value, widest), fillvalue="")
    ]


def _fitted(text: str, indent: int = 0) -> list[str]:
    is_width_known = shutil.get_terminal_size((0, 0)).columns > 0
    return wrap(text, terminal_width() - indent) if is_width_known else [text]
