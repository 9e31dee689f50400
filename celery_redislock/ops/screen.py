"""Draws lines on a terminal, and obeys keys. Without a terminal, it prints them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

import click
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.styles import DEFAULT_ATTRS
from prompt_toolkit.utils import is_dumb_terminal

from .terminal import cut, is_plain

#: How far a key scrolls, in lines and in pages.
_MOVES: Final[dict[str, tuple[int, int]]] = {
    **dict.fromkeys(("up", "k"), (-1, 0)),
    **dict.fromkeys(("down", "j"), (1, 0)),
    **dict.fromkeys(("pageup", "b"), (0, -1)),
    **dict.fromkeys(("pagedown", " "), (0, 1)),
    **dict.fromkeys(("home", "g"), (-(10**9), 0)),
    **dict.fromkeys(("end", "G"), (10**9, 0)),
}
#: Seconds after which an escape is a key of its own.
ESCAPE: Final = 0.05


class Line(NamedTuple):
    """A line that scrolls.

    Attributes:
        text: the text.
        style: "", "trouble" or "chosen".
    """

    text: str
    style: str = ""


class Picture(NamedTuple):
    """What is drawn.

    Attributes:
        head: the lines that stay at the top.
        body: the lines that scroll.
        foot: the last line.
        about: what it shows. Another thing is shown from its beginning.
    """

    head: list[str]
    body: list[Line]
    foot: str
    about: str = ""


class Shown(Protocol):
    """What a screen shows."""

    def picture(self) -> Picture:
        """What is drawn now."""

    def press(self, key: str) -> bool | None:
        """Obey a key. False to quit; None if it is not known here: it may scroll."""


class Screen:
    """Lines on the terminal: the head stays, the body scrolls."""

    def __init__(self, keys: Input, output: Output) -> None:
        self._keys, self._output = keys, output
        self._offset = 0
        self._picture = Picture([], [], "")

    def show(self, shown: Shown) -> None:
        """Draw it, with the body scrolled as before."""
        self._picture = shown.picture()
        self._draw()

    def wait(self, seconds: float, shown: Shown) -> bool:
        """Obey keys for so many seconds. False if a key says to quit, or the terminal is gone."""
        return asyncio.run(self._obey(time.monotonic() + seconds, shown))

    async def _obey(self, until: float, shown: Shown) -> bool:
        pressed = asyncio.Event()
        with self._keys.attach(pressed.set), contextlib.suppress(asyncio.TimeoutError):
            while not self._keys.closed:
                await asyncio.wait_for(pressed.wait(), until - time.monotonic())
                pressed.clear()
                for key in await self._read():
                    # In raw mode, Ctrl-C is a key and not a signal.
                    is_known = key != "c-c" and shown.press(key)
                    if is_known is False:
                        return False
                    before, self._picture = self._picture, shown.picture()
                    if self._picture.about != before.about:
                        self._offset = 0
                    if is_known:
                        self._see_chosen()
                    else:
                        lines, pages = _MOVES.get(key, (0, 0))
                        self._offset += lines + pages * self._page()
                    self._draw()
        return not self._keys.closed

    async def _read(self) -> list[str]:
        """The keys that were pressed."""
        presses = self._keys.read_keys()
        if not presses and not self._keys.closed:
            await asyncio.sleep(ESCAPE)  # it may be the beginning of another key
            presses = [*self._keys.read_keys(), *self._keys.flush_keys()]
        return [str(getattr(press.key, "value", press.key)) for press in presses]

    def _page(self) -> int:
        """How many lines of the body fit."""
        return max(self._output.get_size().rows - len(self._picture.head) - 1, 1)

    def _see_chosen(self) -> None:
        """Scroll so that the chosen line is seen, if there is one."""
        for number, line in enumerate(self._picture.body):
            if line.style == "chosen":
                self._offset = min(max(self._offset, number - self._page() + 1), number)
                return

    def _draw(self) -> None:
        head, body, foot, _ = self._picture
        page = self._page()
        self._offset = max(min(self._offset, len(body) - page), 0)
        shown = body[self._offset : self._offset + page]
        last = self._offset + len(shown)
        where = f"{self._offset + 1}-{last} of {len(body)} lines  " if shown else ""
        empty = [Line("")] * (page - len(shown))
        lines = [*map(Line, head), *shown, *empty, Line(f"{where}{foot}")]
        self._output.cursor_goto()
        for number, (text, style) in enumerate(lines):
            self._output.write_raw("\r\n" if number else "")
            # Before the line: after a line that fills the terminal, it erases the last character.
            self._output.erase_end_of_line()
            self._write(cut(text, self._output.get_size().columns, 1.0), style)
        self._output.flush()

    def _write(self, text: str, style: str) -> None:
        look = DEFAULT_ATTRS
        if style == "chosen":
            look = look._replace(reverse=True)
        elif style == "trouble" and not is_plain():
            look = look._replace(color="ansired")
        if look == DEFAULT_ATTRS:
            self._output.write(text)
            return
        self._output.set_attributes(look, ColorDepth.DEPTH_4_BIT)
        self._output.write(text)
        self._output.reset_attributes()


class Printed:
    """Prints lines where there is no terminal, such as in a pipe."""

    def show(self, shown: Shown) -> None:
        head, body, *_ = shown.picture()
        click.echo("\n".join([*head, *(line.text for line in body)]))

    def wait(self, seconds: float, shown: Shown) -> bool:
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
