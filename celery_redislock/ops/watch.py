"""`celery redislock watch`: who holds what, drawn live. Needs rich."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from typing import Any, Final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..app.settings import app_locks
from ..core.holders import one_line
from .survey import Found, all_locks
from .table import COLUMNS, in_order, row, summary

#: What our events begin with.
EVENTS: Final = "task-lock-"
#: What those end with that tell neither of a conflict nor of a lost lock.
NO_CONFLICT: Final = ("acquired", "recovered", "revoked")


class Rates:
    """Counts the workers' events, in a thread beside."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._counts: collections.Counter[str] = collections.Counter()
        self._since = time.monotonic()
        self.trouble = ""
        #: Whether any event of ours came: workers send them with -E.
        self.any = False
        threading.Thread(target=self._run, name="redislock-watch", daemon=True).start()

    def take(self) -> dict[str, float]:
        """Conflicts and lost locks per second since the last call."""
        counts, self._counts = self._counts, collections.Counter()
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        return {kind: counts[kind] / max(seconds, 0.001) for kind in ("conflicts", "lost")}

    def _run(self) -> None:
        while True:
            try:
                with self._app.connection_for_read() as connection:
                    receiver = self._app.events.Receiver(connection, handlers={"*": self._count})
                    receiver.capture(limit=None, timeout=None, wakeup=False)
            except Exception as exc:
                self.trouble = one_line(f"no events: {exc}")
                time.sleep(1.0)

    def _count(self, event: dict[str, Any]) -> None:
        kind = str(event.get("type", ""))
        if kind.startswith(EVENTS):
            self.any, self.trouble = True, ""
            kind = kind.removeprefix(EVENTS)
            if kind not in NO_CONFLICT:
                self._counts["lost" if kind == "lost" else "conflicts"] += 1


def picture(found: list[Found], rates: dict[str, float], heard: str, limit: int) -> Group:
    """What is drawn."""
    table = Table(*COLUMNS, expand=False, box=None)
    for each in in_order(found, "held")[:limit]:
        table.add_row(*(Text(one_line(cell)) for cell in row(each)))
    waiting = sum({each.name: each.waiting for each in found if not each.is_aside}.values())
    head = (
        f"{summary(found)}, {waiting} waiting,"
        f" {rates['conflicts']:.1f} conflicts/s, {rates['lost']:.1f} lost/s{heard}"
    )
    hidden = f"... and {len(found) - limit} more" if len(found) > limit else ""
    return Group(Text(head), table, Text(hidden))


def watch(app: Any, every: float, limit: int, times: int | None) -> None:
    """Draw until interrupted, or so many times.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    locks = app_locks(app)
    rates = Rates(app)
    with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
        while True:
            heard = "" if rates.any else f" ({rates.trouble or 'no events yet: workers need -E'})"
            found = all_locks(locks)
            live.update(picture(found, rates.take(), heard, limit), refresh=True)
            if times is not None:
                times -= 1
                if times <= 0:
                    return
            time.sleep(every)
