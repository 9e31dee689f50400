"""Draws lines on a terminal, and scrolls them by keys. Without a terminal, it prints them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.utils import is_dumb_terminal

from .terminal import cut

HELP: Final = "arrows, PgUp, PgDn: scroll   q: quit"
#: How far a key scrolls, in lines and in pages.
_MOVES: Final[dict[str, tuple[int, int]]] = {
    **dict.fromkeys(("up", "k"), (-1, 0)),
    **dict.fromkeys(("down", "j"), (1, 0)),
    **dict.fromkeys(("pageup", "b"), (0, -1)),
    **dict.fromkeys(("pagedown", " "), (0, 1)),
    **dict.fromkeys(("home", "g"), (-(10**9), 0)),
    **dict.fromkeys(("end", "G"), (10**9, 0)),
}
#: In raw mode, Ctrl-C is a key and not a signal.
_QUIT: Final = ("q", "Q", "c-c")


class Screen:
    """Lines on the terminal: the head stays, the body scrolls."""

    def __init__(self, keys: Input, output: Output) -> None:
        self._keys, self._output = keys, output
        self._head: list[str] = []
        self._body: list[str] = []
        self._offset = 0

    def show(self, head: Sequence[str], body: Sequence[str]) -> None:
        """Draw these lines, with the body scrolled as before."""
        self._head, self._body = list(head), list(body)
        self._draw()

    def wait(self, seconds: float) -> bool:
        """Obey keys for so many seconds. False if a key says to quit, or the terminal is gone."""
        return asyncio.run(self._obey(time.monotonic() + seconds))

    async def _obey(self, until: float) -> bool:
        pressed = asyncio.Event()
        with self._keys.attach(pressed.set), contextlib.suppress(asyncio.TimeoutError):
            while not self._keys.closed:
                await asyncio.wait_for(pressed.wait(), until - time.monotonic())
                pressed.clear()
                for press in self._keys.read_keys():
                    if press.key in _QUIT:
                        return False
                    lines, pages = _MOVES.get(press.key, (0, 0))
                    self._offset += lines + pages * self._page()
                    self._draw()
        return not self._keys.closed

    def _page(self) -> int:
        """How many lines of the body fit."""
        return max(self._output.get_size().rows - len(self._head) - 1, 1)

    def _draw(self) -> None:
        page = self._page()
        self._offset = max(min(self._offset, len(self._body) - page), 0)
        shown = self._body[self._offset : self._offset + page]
        last = self._offset + len(shown)
        where = f"{self._offset + 1}-{last} of {len(self._body)} lines   " if shown else ""
        lines = [*self._head, *shown, *[""] * (page - len(shown)), f"{where}{HELP}"]
        self._output.cursor_goto()
        for number, line in enumerate(lines):
            self._output.write_raw("\r\n" if number else "")
            # Before the line: after a line that fills the terminal, it erases the last character.
            self._output.erase_end_of_line()
            self._output.write(cut(line, self._output.get_size().columns, 1.0))
        self._output.flush()


class Printed:
    """Prints lines where there is no terminal, such as in a pipe."""

    def show(self, head: Sequence[str], body: Sequence[str]) -> None:
        click.echo("\n".join([*head, *body]))

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return True


@contextlib.contextmanager
def screen() -> Iterator[Screen | Printed]:
    """A `Screen`, or `Printed` without a terminal. The terminal is restored whatever happens."""
    if not sys.stdout.isatty() or is_dumb_terminal():
        yield Printed()
        return
    keys, output = create_input(always_prefer_tty=True), create_output()
    terminated = signal.signal(signal.SIGTERM, _exit)
    output.enter_alternate_screen()
    output.hide_cursor()
    try:
        with keys.raw_mode():
            yield Screen(keys, output)
    finally:
        output.show_cursor()
        output.quit_alternate_screen()
        output.flush()
        signal.signal(signal.SIGTERM, terminated)


def _exit(*_: Any) -> None:
    raise SystemExit(128 + signal.SIGTERM)
