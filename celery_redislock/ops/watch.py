"""`celery redislock watch`: a live table of locks, drawn also while the server is away."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import click
from prompt_toolkit import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.utils import is_dumb_terminal

from ..app.settings import app_locks
from ..errors import LockUnavailable
from ..inspection.listener import EVENTS, Listener
from ..inspection.locks import Found, lock, snapshot
from ..inspection.rooms import waiting
from ..inspection.why import is_denied, why
from ..protocol.holders import Holder
from .table import (
    LOCKS,
    ORDERS,
    columns_of,
    described,
    in_order,
    in_units,
    in_words,
    is_trouble,
    summary,
    waiting_table,
)
from .terminal import is_plain, lines_by_row, plain, terminal_width, wrap

#: What the keys do: in the table, as a filter is typed or set, and in a lock that is open. Beside
#: the numbers of the lines, and a filter of `FILTER` columns, each fits a terminal of 80 columns.
HELP: Final = "/ filter  s r sort  Tab Enter open  q quit"
TYPING_HELP: Final = "Enter keep  Esc clear"
FILTER_HELP: Final = "/ change  q quit"
OPEN_HELP: Final = "arrows scroll  Esc back"
FILTER: Final = 20
#: How far a key scrolls, in lines and in pages.
MOVES: Final[dict[str, tuple[int, int]]] = {
    **dict.fromkeys(("up", "k"), (-1, 0)),
    **dict.fromkeys(("down", "j"), (1, 0)),
    **dict.fromkeys(("pageup", "b"), (0, -1)),
    **dict.fromkeys(("pagedown", " "), (0, 1)),
    **dict.fromkeys(("home", "g"), (-(10**9), 0)),
    **dict.fromkeys(("end", "G"), (10**9, 0)),
}
#: The ends of the types of our events that mean neither a conflict nor a lost lock.
NO_CONFLICT: Final = ("acquired", "recovered", "revoked")

#: A line that is drawn: its style, as prompt_toolkit has it, and its text.
StyledLine = tuple[str, str]


class Rates:
    """Counts the workers' events."""

    def __init__(self, app: Any) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._since = time.monotonic()
        self.listener = Listener(app, self._count)

    @property
    def heard(self) -> str:
        """Why the rates may be wrong or missing; "" if events come."""
        why = self.listener.trouble or (
            "" if self.listener.any else "no event yet: workers with -E?"
        )
        return f" ({why})" if why else ""

    def since_last(self) -> dict[str, float]:
        """Conflicts and lost locks per second since the last call."""
        counts, self._counts = self._counts, collections.Counter()
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        return {kind: counts[kind] / max(seconds, 0.001) for kind in ("conflicts", "lost")}

    def _count(self, event: dict[str, Any]) -> None:
        kind = str(event.get("type", ""))
        if kind.startswith(EVENTS):
            kind = kind.removeprefix(EVENTS)
            if kind not in NO_CONFLICT:
                self._counts["lost" if kind == "lost" else "conflicts"] += 1


class Watch:
    """The picture of the locks that is drawn, and what the keys make of it."""

    def __init__(
        self,
        app: Any,
        rates: Rates,
        choose: Callable[[list[Found]], list[Found]],
        sort: tuple[str, bool],
        limit: int | None,
    ) -> None:
        self._app, self._rates, self._choose, self._limit = app, rates, choose, limit
        self._order, self._reverse = sort
        self._locks = app_locks(app)
        self._found: list[Found] = []
        self._counted = {"conflicts": 0.0, "lost": 0.0}
        self._seen_at: float | None = None
        self._filter, self._typing = "", False
        #: The key of the lock that is chosen, and the name of the one that is open; "" for none.
        self._chosen, self._open = "", ""
        self._opened: list[str] = []
        #: The first line of the body that is seen, how many are, and whether the chosen one is.
        self._offset, self._page, self._follows = 0, 1, False
        self.trouble: LockUnavailable | None = None

    def look(self) -> None:
        """Read the locks; without an answer the picture stays, and only a refusal raises."""
        self._counted = self._rates.since_last()
        try:
            self._found = self._choose(snapshot(self._app))
            opened = self._open
            lines = self._read_open(opened) if opened else []
            if opened == self._open:  # a key may have closed it meanwhile
                self._opened = lines
            self._seen_at, self.trouble = time.monotonic(), None
        except LockUnavailable as exc:
            if is_denied(exc):
                raise
            self.trouble = exc

    def _read_open(self, name: str) -> list[str]:
        """All about the lock that is open."""
        slots = lock(self._app, name)
        (room,) = waiting(self._app, [name])
        lines = [line for each in slots for line in (*described(each), "")]
        lines = lines or ["Nobody holds it, and nobody waits for it.", ""]
        return [*lines, f"waiting: {room.total}", *waiting_table(room.waiting)]

    # -- drawing ------------------------------------------------------------------------------

    def picture(self, rows: int | None = None) -> list[StyledLine]:
        """The lines to draw; with `rows` as many as fit, and what the keys do."""
        head, body = [("", line) for line in self._head()], self._body()
        if not self._open:
            table, *body = body
            head.append(table)
        if rows is None:
            return [*head, *body]
        self._page = page = max(rows - len(head) - 1, 1)
        chosen = [number for number, (style, _) in enumerate(body) if style == "reverse"]
        if self._follows and chosen:
            self._offset = min(max(self._offset, chosen[-1] - page + 1), chosen[0])
        self._offset = max(min(self._offset, len(body) - page), 0)
        shown = body[self._offset : self._offset + page]
        last = self._offset + len(shown)
        where = f"{self._offset + 1}-{last} of {len(body)} lines  " if shown else ""
        empty = [("", "")] * (page - len(shown))
        return [*head, *shown, *empty, ("", f"{where}{self._foot()}")]

    def _head(self) -> list[str]:
        where = f"{time.strftime('%H:%M:%S')}  {self._locks.describe_server()}"
        texts = [where, *self._troubles(), f"{self._open}:" if self._open else self._counts()]
        return [line for text in texts for line in wrap(plain(text), terminal_width())]

    def _counts(self) -> str:
        found, rates = self._found, self._counted
        waiting = sum({each.name: each.waiting for each in found if each.is_lock}.values())
        return (
            f"{summary(found)}, {waiting} waiting,"
            f" {rates['conflicts']:.1f} conflicts/s, {rates['lost']:.1f} lost/s"
            f"{self._rates.heard}"
        )

    def _body(self) -> list[StyledLine]:
        """The lock that is open; or else the table, with its head."""
        if self._open:
            return [("", plain(each)) for each in self._opened]
        wanted = self._wanted()
        shown = wanted[: self._limit]
        if not shown:
            return [("", "")]
        head, *rows = lines_by_row(columns_of(shown, LOCKS), shown)
        body = [("", line) for line in head]
        for each, lines in zip(shown, rows, strict=True):
            body += [(self._style(each), line) for line in lines]
        more = len(wanted) - len(shown)
        return [*body, ("", f"... and {more} more")] if more else body

    def _style(self, each: Found) -> str:
        if each.key == self._chosen:
            return "reverse"
        return "ansired" if is_trouble(each) and not is_plain() else ""

    def _wanted(self) -> list[Found]:
        """The locks that the filter matches: those with trouble first, and each part in order."""
        text = self._filter.lower()
        matching = [each for each in self._found if text in text_of(each).lower()]
        return sorted(
            in_order(matching, self._order, self._reverse), key=lambda each: not is_trouble(each)
        )

    def _foot(self) -> str:
        if self._open or not (self._filter or self._typing):
            return OPEN_HELP if self._open else HELP
        shown, cursor = plain(self._filter)[-FILTER:], "_" * self._typing
        return f"filter: {shown}{cursor}  {TYPING_HELP if self._typing else FILTER_HELP}"

    def _troubles(self) -> Iterator[str]:
        if self.trouble is None:
            return
        verdict, _, reason = why(self.trouble).partition(": ")
        yield f"{verdict.upper()}: {reason}"
        if self._seen_at is not None:
            yield f"As it was {in_units(time.monotonic() - self._seen_at)} ago:"

    # -- keys ---------------------------------------------------------------------------------

    def press(self, key: str) -> bool:
        """Obey a key. False to quit."""
        self._follows = True
        if self._typing:
            self._type(key)
        elif self._open and key in ("escape", "q", "c-h"):
            self._open, self._opened, self._offset = "", [], 0
        elif key in ("q", "Q"):
            return False
        elif self._open or not self._obey(key):
            lines, pages = MOVES.get(key, (0, 0))
            self._offset, self._follows = self._offset + lines + pages * self._page, False
        return True

    def _obey(self, key: str) -> bool:
        """Obey a key that is for the table; False for another one."""
        match key:
            case "/":
                self._typing = True
            case "s":
                names = list(ORDERS)
                self._order = names[(names.index(self._order) + 1) % len(names)]
            case "r":
                self._reverse = not self._reverse
            case "c-i" | "s-tab":
                self._choose_next(1 if key == "c-i" else -1)
            case "c-m":
                self._open_chosen()
            case _:
                return False
        return True

    def _type(self, key: str) -> None:
        if key in ("c-m", "escape"):
            self._typing = False
            self._filter = self._filter if key == "c-m" else ""
        elif key == "c-h":
            self._filter = self._filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self._filter += key

    def _choose_next(self, step: int) -> None:
        keys = [each.key for each in self._wanted()[: self._limit]]
        if keys:
            known = keys.index(self._chosen) + step if self._chosen in keys else 0
            self._chosen = keys[known % len(keys)]

    def _open_chosen(self) -> None:
        """Open the lock that is chosen, or else the first."""
        wanted = self._wanted()
        for each in [*(each for each in wanted if each.key == self._chosen), *wanted][:1]:
            self._open, self._opened, self._offset = each.name, ["..."], 0


def text_of(each: Found) -> str:
    """What the filter looks at."""
    holder = each.holder or Holder()
    texts = (each.task, each.name, in_words(each), holder.label, holder.node, holder.task_id)
    return " ".join(text for text in texts if text)


def watch(
    app: Any,
    every: float,
    times: int | None,
    choose: Callable[[list[Found]], list[Found]],
    sort: tuple[str, bool],
    limit: int | None,
) -> None:
    """Draw so many times, or until interrupted; raises if the last look failed."""
    rates = Rates(app)
    with contextlib.closing(rates.listener), contextlib.suppress(KeyboardInterrupt):
        watched = Watch(app, rates, choose, sort, limit)
        if sys.stdout.isatty() and not is_dumb_terminal():
            asyncio.run(_draw(watched, every, times))
        else:
            _print(watched, every, times)
    if times is not None and watched.trouble is not None:
        raise watched.trouble


def _print(watched: Watch, every: float, times: int | None) -> None:
    """Without a terminal, such as in a pipe."""
    for number in itertools.count(1):
        watched.look()
        click.echo("\n".join(text for _, text in watched.picture()))
        if number == times:
            break
        time.sleep(every)


def _screen(watched: Watch, keys: KeyBindings) -> Application[BaseException | None]:
    """What shows the picture, on the whole terminal."""

    def picture() -> StyleAndTextTuples:
        parts: StyleAndTextTuples = []
        for line in watched.picture(drawn.output.get_size().rows):
            parts += [line, ("", "\n")]
        return parts[:-1]

    drawn: Application[BaseException | None] = Application(
        Layout(Window(FormattedTextControl(picture, show_cursor=False), always_hide_cursor=True)),
        key_bindings=keys,
        full_screen=True,
        input=create_input(always_prefer_tty=True),
    )
    drawn.ttimeoutlen = 0.05  # seconds after which an escape is a key of its own
    return drawn


async def _draw(watched: Watch, every: float, times: int | None) -> None:
    """On a terminal, which is restored whatever happens. Keys are obeyed during a look, too."""
    loop, keys, entered = asyncio.get_running_loop(), KeyBindings(), threading.Event()

    @keys.add("<any>", eager=True)
    def _press(event: Any) -> None:
        key = event.key_sequence[0].key
        key = str(getattr(key, "value", key))
        if key in ("c-c", "<sigint>") or not watched.press(key):
            leave()
        elif key == "c-m":
            entered.set()  # look into what is open by now

    drawn = _screen(watched, keys)

    def leave(because: BaseException | None = None) -> None:
        if not drawn.is_done:
            drawn.exit(result=because)

    def look() -> None:
        because = None
        try:
            for number in itertools.count(1):
                entered.clear()
                watched.look()
                if number == times:
                    break
                drawn.invalidate()
                entered.wait(every)
        except Exception as exc:
            because = exc
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(leave, because)

    def end(*_: Any) -> None:
        loop.call_soon_threadsafe(leave, SystemExit(128 + signal.SIGTERM))

    def begin() -> None:
        signal.signal(signal.SIGTERM, end)
        # A daemon: a look at a server that is away takes seconds, and `q` ends at once.
        threading.Thread(target=look, name="redislock-watch", daemon=True).start()

    before = signal.getsignal(signal.SIGTERM)
    try:
        because = await drawn.run_async(pre_run=begin)
    finally:
        signal.signal(signal.SIGTERM, before)
    if because is not None:
        raise because
