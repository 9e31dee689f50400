"""Draws on a terminal, which keys scroll. Where there is none, it prints instead."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from .terminal import cut

#: The alternate screen, so that what was on the terminal comes back; no cursor.
ENTER: Final = "\x1b[?1049h\x1b[?25l"
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HELP: Final = "arrows, PgUp, PgDn: scroll   q: quit"
#: By what terminals send: how far to go, in lines and in pages; None quits.
_KEYS: Final[dict[str, tuple[int, int] | None]] = {
    **dict.fromkeys(("\x1b[A", "\x1bOA", "k"), (-1, 0)),
    **dict.fromkeys(("\x1b[B", "\x1bOB", "j"), (1, 0)),
    **dict.fromkeys(("\x1b[5~", "b"), (0, -1)),
    **dict.fromkeys(("\x1b[6~", " "), (0, 1)),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "g"), (-(10**9), 0)),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "G"), (10**9, 0)),
    **dict.fromkeys(("q", "Q"), None),
}
_KEY: Final = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


class Screen:
    """A picture on the terminal: its head stays, its body scrolls."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._body: list[str] = []
        self._offset = 0

    def show(self, head: Sequence[str], body: Sequence[str]) -> None:
        """Draw this, with the body scrolled as before."""
        self._head, self._body = list(head), list(body)
        self._draw()

    def wait(self, seconds: float) -> bool:
        """Obey keys for so many seconds. False if one says to quit."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for key in _pressed(left):
                if key not in _KEYS:
                    continue
                move = _KEYS[key]
                if move is None:
                    return False
                self._offset += move[0] + move[1] * self._page()
                self._draw()
        return True

    def _page(self) -> int:
        """How many lines of the body fit."""
        return max(shutil.get_terminal_size().lines - len(self._head) - 1, 1)

    def _draw(self) -> None:
        width, page = shutil.get_terminal_size().columns, self._page()
        self._offset = max(min(self._offset, len(self._body) - page), 0)
        shown = self._body[self._offset : self._offset + page]
        last = self._offset + len(shown)
        where = f"{self._offset + 1}-{last} of {len(self._body)} lines   " if shown else ""
        lines = [*self._head, *shown, *[""] * (page - len(shown)), f"{where}{HELP}"]
        text = "\x1b[K\r\n".join(cut(line, width, 1.0) for line in lines)
        _write(f"\x1b[H{text}\x1b[J")


class Printed:
    """Takes a screen's place where there is none, such as in a pipe."""

    def show(self, head: Sequence[str], body: Sequence[str]) -> None:
        """Print this."""
        click.echo("\n".join([*head, *body]))

    def wait(self, seconds: float) -> bool:
        """Wait."""
        time.sleep(seconds)
        return True


@contextlib.contextmanager
def screen() -> Iterator[Screen | Printed]:
    """The terminal, or what takes its place. It is restored whatever happens."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield Printed()
        return
    terminated = signal.signal(signal.SIGTERM, _exit)
    _write(ENTER)
    try:
        with _unbuffered():
            yield Screen()
    finally:
        _write(LEAVE)
        signal.signal(signal.SIGTERM, terminated)


def _write(text: str) -> None:
    """Write it unchanged: where there are to be no colors, `click.echo` strips what draws."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _exit(*_: Any) -> None:
    raise SystemExit(128 + signal.SIGTERM)


@contextlib.contextmanager
def _unbuffered() -> Iterator[None]:
    """Keys come as they are pressed, and are not shown."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(seconds: float) -> list[str]:
    """The keys that were pressed within so many seconds."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return []
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    if not ready:
        return []
    data = os.read(sys.stdin.fileno(), 1024)
    # Nothing to read although it is ready: the terminal is gone.
    return _KEY.findall(data.decode(errors="replace")) if data else ["q"]
