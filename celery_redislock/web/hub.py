"""Looks at the lock server while anybody asks, and tells each viewer what changed since it asked.

Everything here runs in the web server's event loop; only the looks run in threads.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from typing import Any, Final

from ..errors import LockUnavailable
from ..inspection.about import About
from ..inspection.locks import Found
from ..inspection.queues import in_queues
from ..inspection.why import why
from ..protocol.holders import one_line
from ..protocol.log import logger
from .look import Seen, look, look_at, look_back
from .past import Past, Run
from .present import Row, rows_of

#: How many changes are kept for viewers that ask late: these get the whole picture.
KEPT: Final = 64
#: A look takes at most this share of the time: many locks are looked at less often.
SHARE: Final = 1 / 3
#: Seconds between two looks at the history, and if a run has ended meanwhile; the history may be
#: long, and they take at most this share of the time.
LOOK_BACK, SOON, SHARE_OF_BACK = 5.0, 0.5, 1 / 10
#: Seconds between two looks at the queues in which messages that have their locks wait.
LOOK_AT_QUEUES: Final = 10.0


class Hub:
    """Keeps what all viewers see. Looks every so many seconds."""

    def __init__(self, known: About, every: float, actions: dict[str, Any]) -> None:
        self._known, self._app = known, known.app
        self._every = every
        #: What the page says of the app, and must know of its tasks.
        self._about = {"every": every, **actions, "app": known.name}
        for name in ("server", "no_arguments", "warn_after", "limits"):
            self._about[name] = getattr(known, name)
        self._past = Past(known.history)
        #: What was told: rows by their keys, runs by their ids.
        self._rows: dict[str, Row] = {}
        self._runs: dict[str, Run] = {}
        #: The queues in which messages have waited for a while, as `queues.InQueue` has them.
        self._queues: list[dict[str, Any]] = []
        #: What is told of all locks together, as of the last look.
        self._overall: dict[str, Any] = {}
        self._seen: Seen | None = None
        #: Whether a look has filled the rows.
        self._looked = False
        #: The last changes, and the number of the latest. Numbers of another process are not ours.
        self._changes: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._number = time.time_ns() // 1000
        self._looked_at, self._due = float("-inf"), float("-inf")
        self._ahead = 0.0
        self._looked_back_at, self._back_took = float("-inf"), 0.0
        #: What was skipped or refused, and since when; None if nobody knows.
        self._away: dict[str, float] | None = None
        #: Why there is no history, in one line; "" if there is.
        self._forgetful = ""
        self._asked_queues_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._trouble = ""
        self._looking, self._refreshing = asyncio.Lock(), asyncio.Lock()
        self._details: dict[str, tuple[float, dict[str, Any]]] = {}

    # -- viewers ------------------------------------------------------------------------------

    async def since(self, number: int) -> dict[str, Any]:
        """What changed since the answer with this number; all there is, if that is too long ago."""
        await self._refresh()
        kept, missed = len(self._changes), self._number - number
        changes = [*self._changes][kept - missed :] if 0 <= missed <= kept else [self._all()]
        return {
            "number": self._number,
            "now": round(time.time() + self._ahead, 3),
            "as_of": None if self._seen is None else self._seen.now,
            "forgetful": self._forgetful,
            "changes": changes,
        }

    def _all(self) -> dict[str, Any]:
        return {
            "all": True,
            "about": self._about,
            "looked": self._looked,
            "trouble": self._trouble,
            "rows": [*self._rows.values()],
            "runs": [*self._runs.values()],
            **self._overall,
        }

    def _note(self, change: dict[str, Any]) -> None:
        self._changes.append(change)
        self._number += 1

    # -- looking ------------------------------------------------------------------------------

    async def found(self) -> list[Found]:
        """All locks, as of the latest look."""
        return (await self._look(self._every)).found

    async def detail(self, name: str) -> dict[str, Any]:
        """All about the lock with that name: see `look_at`. Viewers share an answer for a while."""
        now = time.monotonic()
        self._details = {k: v for k, v in self._details.items() if now - v[0] < self._every}
        if name in self._details:
            return self._details[name][1]
        detail = await asyncio.to_thread(look_at, self._app, name)
        self._details[name] = (time.monotonic(), detail)
        return detail

    def forget(self) -> None:
        """Look again before the next answer: an action has changed something."""
        self._looked_at = self._due = float("-inf")
        self._details = {}

    async def _look(self, at_most: float) -> Seen:
        """The last look, or a new one if the last is older than `at_most` seconds."""
        async with self._looking:
            if self._seen is None or time.monotonic() - self._looked_at >= at_most:
                began = time.monotonic()
                self._seen = await asyncio.to_thread(look, self._app)
                self._looked_at = began
                self._ahead = self._seen.now - time.time()
            return self._seen

    async def _refresh(self) -> None:
        """Look again, if the last look was long enough ago."""
        async with self._refreshing:
            began = time.monotonic()
            if began < self._due:
                return
            try:
                seen = await self._look(self._every / 2)
                await self._look_back(seen)
            except LockUnavailable as exc:
                self._note_trouble(one_line(why(exc)))
            except Exception as exc:
                logger.exception("redislock: the page cannot show the locks")
                told = f"the page cannot show the locks: {type(exc).__name__}: {exc}"
                self._note_trouble(one_line(told))
            else:
                self._take_in(seen)
                if self._asking is None or self._asking.done():
                    self._asking = asyncio.get_running_loop().create_task(self._ask_queues(seen))
            self._due = began + max(self._every, (time.monotonic() - began) / SHARE)

    async def _look_back(self, seen: Seen) -> None:
        """Now and then, take in the history. If this user may not read it, do without."""
        began, has_ended = time.monotonic(), self._past.take_in(seen)
        apart = max(SOON if has_ended else LOOK_BACK, self._back_took / SHARE_OF_BACK)
        if began - self._looked_back_at < apart:
            return
        self._looked_back_at = began
        try:
            runs, away = await asyncio.to_thread(look_back, self._app, seen.now)
            await asyncio.to_thread(self._past.remember, runs, seen.now)
            self._away = away if self._known.history else None
            self._forgetful = "" if self._known.history else "no history: redislock_history is 0"
        except LockUnavailable as exc:
            self._past.give_up()
            self._away = None
            self._forgetful = one_line(f"no history: {exc.reason}")
            logger.debug("redislock: %s", self._forgetful)
        self._back_took = time.monotonic() - began

    async def _ask_queues(self, seen: Seen) -> None:
        """Now and then, see how long queues are, and which nobody reads. A broker that is away
        makes no look late.
        """
        if time.monotonic() - self._asked_queues_at < LOOK_AT_QUEUES:
            return
        self._asked_queues_at = time.monotonic()
        try:
            found = await asyncio.to_thread(in_queues, self._app, seen.found, seen.now)
        except Exception as exc:  # whatever the broker's driver raises; the ear tells people
            logger.debug("redislock: who reads the queues is not known: %r", exc)
            found = []
        self._queues = [dataclasses.asdict(each) for each in found]

    def _note_trouble(self, trouble: str) -> None:
        self._trouble = trouble
        self._note({"trouble": trouble})

    def _take_in(self, seen: Seen) -> None:
        self._trouble, self._looked = "", True
        rows, runs = rows_of(seen, self._past.usual, self._rows), self._past.runs
        change = {"rows": _new(self._rows, rows), "gone": [*(self._rows.keys() - rows.keys())]}
        past = {"runs": _new(self._runs, runs), "dropped": [*(self._runs.keys() - runs.keys())]}
        self._rows, self._runs = rows, runs
        self._overall = {
            "away": self._away,
            "kept_since": self._past.kept_since(seen),
            "suspended": seen.suspended,
            "queues": self._queues,
        }
        self._note({"trouble": "", **change, **past, **self._overall})


def _new(before: dict[str, Row], now: dict[str, Row]) -> list[Row]:
    """What is new or has changed."""
    return [each for id_, each in now.items() if before.get(id_) != each]
