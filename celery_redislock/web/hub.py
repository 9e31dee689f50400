"""Looks at the lock server, in threads, while anybody asks, and tells each viewer what changed."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from typing import Any, Final

from starlette.exceptions import HTTPException

from ..errors import LockUnavailable
from ..inspection.about import About
from ..inspection.locks import Found
from ..inspection.queues import in_queues
from ..inspection.why import why
from ..protocol.holders import one_line
from ..protocol.log import logger
from .look import Row, Seen, look, look_at, look_back, rows_of
from .past import Past, Run

#: How many changes are kept for viewers that ask late: these get the whole picture.
KEPT: Final = 64
#: A look takes at most this share of the time: many locks are looked at less often.
SHARE: Final = 1 / 3
#: Looks at the history, which may be long, take at most this share of the time.
SHARE_OF_BACK: Final = 1 / 10
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
        self._found: list[Found] = []
        #: What is told of all locks together, as of the last look.
        self._overall: dict[str, Any] = {"as_of": None, "kept_since": {}, "suspended": []}
        #: The last changes, and the number of the latest. Numbers of another process are not ours.
        self._changes: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._number = time.time_ns() // 1000
        self._due = self._due_back = float("-inf")
        self._ahead = 0.0
        #: What was skipped or refused, and since when; None if nobody knows.
        self._away: dict[str, float] | None = None
        #: Why there is no history, in one line; "" if there is.
        self._forgetful = ""
        self._asked_queues_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._trouble = ""
        self._refreshing = asyncio.Lock()
        self._details: dict[str, tuple[float, dict[str, Any]]] = {}

    # -- viewers ------------------------------------------------------------------------------

    async def since(self, number: int) -> dict[str, Any]:
        """What changed since the answer with this number; all there is, if that is too long ago."""
        await self._refresh()
        rows, runs = [*self._rows.values()], [*self._runs.values()]
        everything = {"about": self._about, "rows": rows, "runs": runs}
        kept, missed = len(self._changes), self._number - number
        changes = [*self._changes][kept - missed :] if 0 <= missed <= kept else [everything]
        return {
            "number": self._number,
            "now": round(time.time() + self._ahead, 3),
            "trouble": self._trouble,
            "forgetful": self._forgetful,
            "away": self._away,
            "queues": self._queues,
            **self._overall,
            "changes": changes,
        }

    # -- looking ------------------------------------------------------------------------------

    async def found(self) -> list[Found]:
        """All locks, as of the latest look."""
        await self._refresh()
        if self._trouble:
            raise HTTPException(503, self._trouble)
        return self._found

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
        self._due = float("-inf")
        self._details = {}

    async def _refresh(self) -> None:
        """Look again, if the last look was long enough ago."""
        async with self._refreshing:
            began = time.monotonic()
            if began < self._due:
                return
            change: dict[str, Any] = {}
            try:
                seen = await asyncio.to_thread(look, self._app)
                self._ahead = seen.now - time.time()
                await self._look_back(seen.now)
            except LockUnavailable as exc:
                self._trouble = one_line(why(exc))
            except Exception as exc:
                logger.exception("redislock: the page cannot show the locks")
                told = f"the page cannot show the locks: {type(exc).__name__}: {exc}"
                self._trouble = one_line(told)
            else:
                change, self._trouble = self._take_in(seen), ""
                if self._asking is None or self._asking.done():
                    self._asking = asyncio.get_running_loop().create_task(self._ask_queues(seen))
            self._changes.append(change)
            self._number += 1
            self._due = began + max(self._every, (time.monotonic() - began) / SHARE)

    async def _look_back(self, now: float) -> None:
        """Take in the history, if that is due. If this user may not read it, do without."""
        began = time.monotonic()
        if began < self._due_back:
            return
        try:
            runs, away = await asyncio.to_thread(look_back, self._app, now)
            await asyncio.to_thread(self._past.remember, runs, now)
            self._away = away if self._known.history else None
            self._forgetful = "" if self._known.history else "no history: redislock_history is 0"
        except LockUnavailable as exc:
            self._away = None
            self._forgetful = one_line(f"no history: {exc.reason}")
            logger.debug("redislock: %s", self._forgetful)
        self._due_back = began + (time.monotonic() - began) / SHARE_OF_BACK

    async def _ask_queues(self, seen: Seen) -> None:
        """Now and then, see how long queues are; a broker that is away makes no look late."""
        if time.monotonic() - self._asked_queues_at < LOOK_AT_QUEUES:
            return
        self._asked_queues_at = time.monotonic()
        try:
            found = await asyncio.to_thread(in_queues, self._app, seen.found, seen.now)
        except Exception as exc:  # whatever the broker's driver raises; the ear tells people
            logger.debug("redislock: who reads the queues is not known: %r", exc)
            found = []
        self._queues = [dataclasses.asdict(each) for each in found]

    def _take_in(self, seen: Seen) -> dict[str, Any]:
        """Keep what was seen. Returns what has changed."""
        rows, runs = rows_of(seen, self._past.usual, self._rows), self._past.runs
        change = {
            "rows": _new(self._rows, rows),
            "gone": [*(self._rows.keys() - rows.keys())],
            "runs": _new(self._runs, runs),
            "dropped": [*(self._runs.keys() - runs.keys())],
        }
        self._rows, self._runs, self._found = rows, runs, seen.found
        self._overall = {
            "as_of": seen.now,
            "kept_since": self._past.kept_since(seen),
            "suspended": seen.suspended,
        }
        return change


def _new(before: dict[str, Row], now: dict[str, Row]) -> list[Row]:
    """What is new or has changed."""
    return [each for id_, each in now.items() if before.get(id_) != each]
