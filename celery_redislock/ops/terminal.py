"""Text that fits a terminal: its width, cut and wrapped cells, aligned columns.

Anybody who sends a task chooses names, so characters that could move the cursor are not printed.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

import click
from wcwidth import wcwidth

from ..protocol.holders import escaped

#: The width without a terminal: in a pipe or a file. The variable COLUMNS overrides it.
PIPED: Final = 120
#: No table is narrower than this; a narrower terminal breaks the lines.
NARROWEST: Final = 60
#: The most lines that a wrapped cell takes; a longer text loses its middle.
LINES: Final = 6
#: A line of a name ends after one of these characters, or at a space. No character is left out.
_BREAKS: Final = frozenset(":/.,;=_-)]}")
_EMOJI: Final = "\ufe0f"
#: The combining class of the signs that join two letters of Indic scripts.
_VIRAMA: Final = 9


def terminal_width() -> int:
    """How many columns fit."""
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
    return 1 if char == _EMOJI or is_mark else wcwidth(char)


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


def cut(text: str, width: int, head: float = 0.5) -> str:
    """The text without its middle, if it is too wide; `head` is the share of the kept characters
    that comes from the beginning.
    """
    if width_of(text) <= width:
        return text
    front = round((width - 1) * head)
    back = _end(text[::-1], width - 1 - front) if front < width - 1 else 0
    return f"{text[: _end(text, front)]}~{text[len(text) - back :]}"


def cut_end(text: str, width: int) -> str:
    """The text without its end, if it is too wide."""
    return cut(text, width, 1.0)


def initials(text: str) -> str:
    """A task's name with the initials of its packages."""
    *packages, name = text.split(".")
    return ".".join([*(each[:1] for each in packages), name])


def cut_path(text: str, width: int) -> str:
    """A task's name, cut to keep its end: package names become initials, and then disappear."""
    parts = text.split(".")
    for number, part in enumerate(parts[:-1]):
        if width_of(".".join(parts)) <= width:
            break
        parts[number] = part[:1]
    short = ".".join(parts)
    if width_of(short) <= width:
        return short
    return cut(parts[-1] if len(parts) == 1 else f"~{parts[-1]}", width)


def cut_node(text: str, width: int) -> str:
    """A node's name, cut to keep its host: the domain goes first, then a default worker name."""
    worker, at, host = text.rpartition("@")
    while width_of(f"{worker}{at}{host}") > width and "." in host.strip("."):
        host = host.rpartition(".")[0]
    if width_of(f"{worker}{at}{host}") > width and worker == "celery":
        worker, at = "", ""
    return cut(f"{worker}{at}{host}", width, 0.7)


def wrap(text: str, width: int, most: int | None = None) -> list[str]:
    """The text as lines of at most this width, broken at spaces, or after punctuation in a name. If
    it takes more than `most` lines, its middle is cut.
    """
    if most is None or width_of(text) <= width * most:
        lines = list(_wrapped(text, width, _break_in))
        if most is None or len(lines) <= most:
            return lines
    return list(_wrapped(cut(text, (width - 1) * most), width, len))


def _wrapped(text: str, width: int, break_in: Callable[[str], int]) -> Iterator[str]:
    start = 0
    while (end := _end(text, width, start)) < len(text):
        end = max(end, start + 1)
        if text[end : end + 1] not in ("", " "):
            end = start + break_in(text[start:end])
        yield text[start:end].rstrip()
        start = end
        while text[start : start + 1] == " ":
            start += 1
    yield text[start:]


def _break_in(line: str) -> int:
    """Where to break a full line."""
    space = line.rfind(" ") + 1
    if space > len(line) // 3:
        return space
    sign = max((index + 1 for index, char in enumerate(line) if char in _BREAKS), default=0)
    return sign if sign > len(line) // 2 else len(line)


# -- tables -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        head: the heading.
        of: what a row has here; None shows as "-".
        fit: cuts or wraps a cell that is too wide; None for a column that is never narrower than
            its cells.
        least: the least width, unless the terminal is too narrow.
        right: its cells end at the right: for numbers.
        rare: it is left out if no row has a value for it.
        alike: shortens a cell; if one is too wide, all are shortened by this, in one style, and
            `fit` does the rest.
    """

    head: str
    of: Callable[[Any], Any]
    fit: Callable[[str, int], str | list[str]] | None = None
    least: int = 8
    right: bool = False
    rare: bool = False
    alike: Callable[[str], str] | None = None

    def lines(self, cell: str, width: int) -> list[str]:
        """The cell as lines of at most this width."""
        if self.fit is None or width_of(cell) <= width:
            return [cell]
        fitted = self.fit(cell, width)
        return [fitted] if isinstance(fitted, str) else fitted


def by_wrapping(text: str, width: int) -> list[str]:
    return wrap(text, width, LINES)


def grid(
    columns: Iterable[Column],
    rows: Iterable[Any],
    width: int | None = None,
    color: Callable[[Any], str] = lambda row: "",
) -> list[str]:
    """The lines of a table, none of them wider than the terminal, or than `width`. `color` tells
    the colour of a row, or "".
    """
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
    widths, cells = _widths(shown, cells, limit)
    lines = [[_line([column.head for column in shown], shown, widths, limit)]]
    for row in zip(*cells, strict=True):
        fitted = zip_longest(*map(Column.lines, shown, row, widths), fillvalue="")
        lines.append([_line(each, shown, widths, limit) for each in fitted])
    return lines


def _line(
    cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], limit: int
) -> str:
    padded = (
        gap + cell if column.right else cell + gap
        for cell, column, width in zip(cells, columns, widths, strict=True)
        for gap in [" " * (width - width_of(cell))]
    )
    return cut("  ".join(padded).rstrip(), limit, 1.0)


def _widths(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], limit: int
) -> tuple[list[int], list[Sequence[str]]]:
    """The width of each column, and its cells, shortened alike if they must be."""
    needed = [
        max([len(column.head), *map(width_of, texts)])
        for column, texts in zip(columns, cells, strict=True)
    ]
    widths = _shared_out(columns, needed, limit)
    cells = [
        [*map(column.alike, texts)] if column.alike and width < need else texts
        for column, texts, width, need in zip(columns, cells, widths, needed, strict=True)
    ]
    # A cut cell may need less than its width: a node's domain goes as a whole. Share the rest.
    used = [
        need if width >= need else min(need, _used(column, texts, width, need))
        for column, texts, width, need in zip(columns, cells, widths, needed, strict=True)
    ]
    return _shared_out(columns, used, limit), cells


def _used(column: Column, texts: Iterable[str], width: int, need: int) -> int:
    """How much of this width the cells of the column need."""
    fitted = [column.lines(text, width) for text in texts]
    if any(len(lines) > 1 for lines in fitted):
        return need
    return max([len(column.head), *(width_of(line) for (line,) in fitted)])


def _shared_out(columns: Sequence[Column], needed: Sequence[int], limit: int) -> list[int]:
    """The width of each column. Of those that can be narrower, the widest shrink first."""
    room = limit - 2 * (len(columns) - 1)
    for keep_least in (True, False):
        for most in range(min(max(needed), limit), 3, -1):
            widths = [
                need
                if column.fit is None
                else min(need, max(most, column.least, len(column.head)) if keep_least else most)
                for column, need in zip(columns, needed, strict=True)
            ]
            if sum(widths) <= room:
                return widths
    return widths


# -- paragraphs -------------------------------------------------------------------------------


def is_plain() -> bool:
    """Whether the terminal has no colours, or the user wants none: https://no-color.org, or
    Celery's --no-color.
    """
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
    """Lines of names with values, wrapped to fit the terminal; in a pipe, one line for each. Those
    without a value are left out.
    """
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
