"""`celery redislock watch`: a live table of locks, drawn also while the server is away."""

from __future__ import annotations

import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..app.settings import app_locks
from ..errors import LockUnavailable
from .hear import EVENTS, Ear
from .screen import screen
from .survey import Found, all_locks
from .table import in_units, locks_table, summary
from .terminal import plain, terminal_width, wrap
from .why import is_denied, why

#: The ends of the types of our events that mean neither a conflict nor a lost lock.
NO_CONFLICT: Final = ("acquired", "recovered", "revoked")


class Rates:
    """Counts the workers' events."""

    def __init__(self, app: Any) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._since = time.monotonic()
        self.ear = Ear(app, self._count)

    @property
    def heard(self) -> str:
        """Why the rates may be wrong or missing; "" if events come."""
        why = self.ear.trouble or ("" if self.ear.any else "no event yet: workers with -E?")
        return f" ({why})" if why else ""

    def take(self) -> dict[str, float]:
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
    """The picture of the locks that is drawn.

    Args:
        app: the Celery app.
        rates: the rates of its workers' events.
        choose: selects the locks to show, and sorts them.
        limit: how many locks to show at most.
    """

    def __init__(
        self,
        app: Any,
        rates: Rates,
        choose: Callable[[list[Found]], list[Found]],
        limit: int | None,
    ) -> None:
        self._app, self._rates, self._choose, self._limit = app, rates, choose, limit
        self._locks = app_locks(app)
        self._found: list[Found] = []
        self._seen_at: float | None = None
        self.trouble: LockUnavailable | None = None

    def look(self) -> None:
        """Read the locks. If the server does not answer, the picture keeps what was read before.

        Raises:
            LockUnavailable: the server does not allow it.
        """
        try:
            self._found = self._choose(all_locks(self._locks, self._app))
            self._seen_at, self.trouble = time.monotonic(), None
        except LockUnavailable as exc:
            if is_denied(exc):
                raise
            self.trouble = exc

    def picture(self) -> tuple[list[str], list[str]]:
        """The lines that stay, and the lines that scroll."""
        rates, found = self._rates.take(), self._found
        waiting = sum({each.name: each.waiting for each in found if each.is_lock}.values())
        counts = (
            f"{summary(found)}, {waiting} waiting,"
            f" {rates['conflicts']:.1f} conflicts/s, {rates['lost']:.1f} lost/s"
            f"{self._rates.heard}"
        )
        where = f"{time.strftime('%H:%M:%S')}  {self._locks.describe_server()}"
        texts, width = (where, *self._troubles(), counts), terminal_width()
        first = [line for text in texts for line in wrap(plain(text), width)]
        top, *body = locks_table(found[: self._limit]) or [""]
        if self._limit is not None and len(found) > self._limit:
            body.append(f"... and {len(found) - self._limit} more")
        return [*first, top], body

    def _troubles(self) -> Iterator[str]:
        if self.trouble is None:
            return
        verdict, _, reason = why(self.trouble).partition(": ")
        yield f"{verdict.upper()}: {reason}"
        if self._seen_at is not None:
            yield f"As it was {in_units(time.monotonic() - self._seen_at)} ago:"


def watch(
    app: Any,
    every: float,
    times: int | None,
    choose: Callable[[list[Found]], list[Found]],
    limit: int | None,
) -> None:
    """Draw until interrupted, or so many times.

    Args:
        app: the Celery app.
        every: seconds between two looks.
        times: how often to look; None without end.
        choose: selects the locks to show, and sorts them.
        limit: how many locks to show at most.

    Raises:
        LockUnavailable: the server does not allow it, or did not answer the last look.
    """
    rates = Rates(app)
    with contextlib.closing(rates.ear), contextlib.suppress(KeyboardInterrupt), screen() as drawn:
        watched = Watch(app, rates, choose, limit)
        for number in itertools.count(1):
            watched.look()
            drawn.show(*watched.picture())
            if number == times or not drawn.wait(every):
                break
    if times is not None and watched.trouble is not None:
        raise watched.trouble
