"""Text that fits a terminal: its width, cut and wrapped cells, aligned columns.

Names come from whoever sends a task. Nothing here prints a character that could move the cursor.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from wcwidth import wcwidth

from ..protocol.holders import escaped

#: The width without a terminal: in a pipe or a file. The variable COLUMNS overrides it.
PIPED: Final = 120
#: No table is narrower; a narrower terminal breaks its lines.
NARROWEST: Final = 60
#: The most lines that a wrapped cell takes; a longer text loses its middle.
LINES: Final = 6
#: A name is broken after these, and at spaces. Nothing is left out there.
_BREAKS: Final = frozenset(":/.,;=_-)]}")
_EMOJI: Final = "\ufe0f"


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
    # Both may make the character before them wide.
    is_widening = char == _EMOJI or unicodedata.category(char) == "Mc"
    return 1 if is_widening else wcwidth(char)


def _end(text: str, width: int, start: int = 0) -> int:
    """Where the text that begins at `start` no longer fits; its length if all fits."""
    if text.isascii():
        return min(start + width, len(text))
    taken = 0
    for index in range(start, len(text)):
        taken += _width(text[index])
        if taken > width:
            return index
    return len(text)


def _first(text: str, width: int) -> str:
    """As much of the text's beginning as fits."""
    return text[: _end(text, width)]


def _last(text: str, width: int) -> str:
    """As much of the text's end as fits."""
    return _first(text[::-1], width)[::-1] if width > 0 else ""


def cut(text: str, width: int, head: float = 0.5) -> str:
    """The text without its middle, if it is too wide.

    Args:
        text: the text.
        width: the columns that it may take.
        head: the beginning's share of what is left.
    """
    if width_of(text) <= width:
        return text
    front = round((width - 1) * head)
    return f"{_first(text, front)}~{_last(text, width - 1 - front)}"


def cut_path(text: str, width: int) -> str:
    """A task's name cut to keep its end: its packages become letters, and then they go."""
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
    """A node's name cut to keep its host: the domain goes first, then the worker's name, if that is
    the default one.
    """
    worker, at, host = text.rpartition("@")
    while width_of(f"{worker}{at}{host}") > width and "." in host.strip("."):
        host = host.rpartition(".")[0]
    if width_of(f"{worker}{at}{host}") > width and worker == "celery":
        worker, at = "", ""
    return cut(f"{worker}{at}{host}", width, 0.7)


def wrap(text: str, width: int, most: int | None = None) -> list[str]:
    """The text on lines of that width: broken at spaces, or after punctuation in a name.

    Args:
        text: the text.
        width: of a line.
        most: lines, None for any number; what does not fit is cut from the middle.
    """
    if most is None:
        return list(_wrapped(text, width, _break_in))
    if width_of(text) <= width * most:
        found = list(_wrapped(text, width, _break_in))
        if len(found) <= most:
            return found
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


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        head: its heading.
        fit: makes lines of a cell that is too wide; None for a column that is never narrower than
            its cells.
        least: its least width, if that is possible.
    """

    head: str
    fit: Callable[[str, int], list[str]] | None = None
    least: int = 8


def by_wrapping(text: str, width: int) -> list[str]:
    return wrap(text, width, LINES)


def whole(text: str, width: int) -> list[str]:
    return wrap(text, width)


def by_path(text: str, width: int) -> list[str]:
    return [cut_path(text, width)]


def by_node(text: str, width: int) -> list[str]:
    return [cut_node(text, width)]


def by_cutting(text: str, width: int) -> list[str]:
    return [cut(text, width)]


def grid(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int | None = None
) -> list[str]:
    """The lines of a table, none of them wider than the terminal.

    Args:
        columns: its columns.
        rows: its cells, as texts.
        width: instead of the terminal's.
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    limit = terminal_width() if width is None else width
    widths = _widths(columns, cells, limit)
    found = [_line([column.head for column in columns], widths, limit)]
    for row in cells:
        fitted = [
            [cell] if column.fit is None or width_of(cell) <= width else column.fit(cell, width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        for number in range(max(map(len, fitted))):
            line = [each[number] if number < len(each) else "" for each in fitted]
            found.append(_line(line, widths, limit))
    return found


def _line(cells: Sequence[str], widths: Sequence[int], limit: int) -> str:
    padded = (
        cell + " " * (width - width_of(cell)) for cell, width in zip(cells, widths, strict=True)
    )
    return cut("  ".join(padded).rstrip(), limit, 1.0)


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], limit: int) -> list[int]:
    """The width of each column."""
    by_column = list(zip(*cells, strict=True)) or [()] * len(columns)
    needed = [
        max([len(column.head), *map(width_of, texts)])
        for column, texts in zip(columns, by_column, strict=True)
    ]
    widths = _shared_out(columns, needed, limit)
    # A cut cell may leave room, as a node's domain goes as a whole. Other columns get that room.
    used = [
        _used(column, texts, width) if width < need else need
        for column, texts, width, need in zip(columns, by_column, widths, needed, strict=True)
    ]
    return _shared_out(columns, used, limit)


def _used(column: Column, texts: Iterable[str], width: int) -> int:
    """How much of that width its cells need."""
    fitted = [column.fit(text, width) if column.fit else [text] for text in texts]
    if any(len(lines) > 1 for lines in fitted):
        return max(len(column.head), *map(width_of, texts))
    return max([len(column.head), *(width_of(line) for (line,) in fitted)])


def _shared_out(columns: Sequence[Column], needed: Sequence[int], limit: int) -> list[int]:
    """The width of each column. Of those that can be narrower, the widest shrink first."""
    room = limit - 2 * (len(columns) - 1)
    for keep_least in (True, False):
        for most in range(min(max(needed), limit), 3, -1):
            widths = [
                _narrowed(column, need, most, keep_least)
                for column, need in zip(columns, needed, strict=True)
            ]
            if sum(widths) <= room:
                return widths
    return widths


def _narrowed(column: Column, need: int, most: int, keep_least: bool) -> int:
    if column.fit is None:
        return need
    return min(need, max(most, column.least, len(column.head)) if keep_least else most)


def paragraph(text: str) -> list[str]:
    """The text on lines that fit the terminal; in a pipe on one line, which the reader can wrap."""
    return wrap(plain(text), terminal_width()) if _is_width_known() else [plain(text)]


def _is_width_known() -> bool:
    return shutil.get_terminal_size((0, 0)).columns > 0


def named_values(values: Iterable[tuple[str, str]]) -> list[str]:
    """The lines of names with their values, which are wrapped beside them; in a pipe each is on one
    line, which the reader can wrap.
    """
    pairs = [(name, plain(value)) for name, value in values]
    widest = max((len(name) for name, _ in pairs), default=0)
    is_known = _is_width_known()
    found = []
    for name, value in pairs:
        first, *more = wrap(value, terminal_width() - widest - 2) if is_known else [value]
        found.append(f"{name.ljust(widest)}  {first}".rstrip())
        found += [" " * (widest + 2) + line for line in more]
    return found
