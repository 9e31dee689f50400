"""The last quarter of an hour, for the timeline: what ran, what waited, what ended without a run.

It combines looks at the lock server, Celery's events, and the history that the locks keep. What was
not seen is not shown: if nobody looked for a while, what lasted ends at the last look, unless the
next one finds the same still there, or the history knows better.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ..inspection.history import PastRun
from ..inspection.listener import EVENTS, TURNED_AWAY, Told, told
from ..inspection.locks import Found
from ..inspection.states import GOING_ON, KEPT, RUNNING
from . import waits
from .counts import AWAY, LOST, WINDOW, Counts, Usual
from .items import UNSEEN, Item, Items, lasts
from .look import Seen
from .waits import Waits

#: Seconds within which marks of one kind become one mark with a count.
TOGETHER: Final = 1.0
#: Seconds by which the event of a run's end may be late: the next run may have the lock by then.
LATE: Final = 2.0
#: The fewest seconds without a look that are a gap, and the most that lie between two looks while
#: somebody watches.
SHORTEST_GAP, LONGEST_APART = 5.0, 10.0
#: Seconds by which a look and the history may differ about when a run began.
SAME: Final = 0.5
#: Celery's events of a task's end, and how the task ended.
ENDS: Final = {
    "task-succeeded": "succeeded",
    "task-failed": "failed",
    "task-retried": "retried",
    "task-revoked": "revoked",
    "task-rejected": "rejected",
}
#: What our events tell after which a task waits no more.
ENDED: Final = TURNED_AWAY | {"replaced", "revoked"}


class Past:
    """The items of the timeline: runs, waits and marks.

    Args:
        prefix: the prefix of the locks' keys.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._items = Items()
        self._waits = Waits(self._items)
        self.counts = Counts()
        self.usual = Usual()
        #: By the slot's key: what has the slot.
        self._slots: dict[str, Item] = {}
        self._runs: dict[tuple[str, int], Item] = {}
        self._marks: dict[tuple[str, str], Item] = {}
        #: By the task's id: the task's last run.
        self._took: dict[str, Item] = {}
        self._looked_at, self._apart = float("-inf"), 0.0
        #: From when until when nobody looked.
        self.gaps: list[tuple[float, float]] = []

    # -- reading ------------------------------------------------------------------------------

    def items(self) -> list[Item]:
        """All items, the oldest first."""
        return self._items.all()

    def take_changes(self) -> tuple[list[Item], list[int]]:
        """The items that are new or changed since the last call, and the ids of those dropped."""
        return self._items.take_changes()

    def asked(self) -> list[str]:
        """The locks whose waiting rooms the next look should read."""
        return self._waits.asked()

    def cares_for(self, event: dict[str, Any]) -> bool:
        """Whether `hear` may use this event of Celery's. Safe in any thread."""
        kind = str(event.get("type", ""))
        return kind.startswith(EVENTS) or (kind in ENDS and event.get("uuid") in self._took)

    # -- looks at the server ------------------------------------------------------------------

    def take_in(self, seen: Seen) -> None:
        """Take in what a look at the server has found."""
        self._note_gap(seen.now)
        there = set()
        for each in seen.found:
            if each.state in (*GOING_ON, *KEPT) and each.holder is not None:
                there.add(each.key)
                self._see(each, seen.now)
            if each.state in RUNNING:
                self._count(each, seen.now)
        gone = {key: item for key, item in self._slots.items() if key not in there}
        for key in gone:
            del self._slots[key]
        lasting = {item["id"] for item in self._slots.values()}  # one may go on without its lock
        for item in gone.values():
            if item["id"] not in lasting:
                self._items.close(item, seen.now)
        self._waits.take_in(seen)
        self.prune(seen.now)

    def _count(self, slot: Found, now: float) -> None:
        """Count what was skipped or refused because of this run so far."""
        holder = slot.holder
        if holder is not None and holder.fence is not None and holder.acquired_at is not None:
            self.counts.see(slot.name, holder.fence, now, slot.turned_away, holder.acquired_at)

    def _note_gap(self, now: float) -> None:
        apart = now - self._looked_at
        if max(SHORTEST_GAP, 3 * self._apart) < apart < float("inf"):
            self._items.lose_sight(self._looked_at)
            self.gaps.append((self._looked_at, now))
        # Many locks are looked at less often.
        self._looked_at, self._apart = now, min(apart, LONGEST_APART)

    def _see(self, slot: Found, now: float) -> None:
        holder, kind = slot.holder, "run" if slot.state in GOING_ON else "kept"
        assert holder is not None
        last = self._slots.get(slot.key)
        who = (kind, holder.fence, holder.task_id, holder.attempt)
        if last is not None and tuple(map(last.get, _WHO)) == who:
            if last.get("how") == UNSEEN:
                self._items.reopen(last)
            return
        known, run = None, self._run_of(slot.name, holder.fence)
        if kind == "run" or slot.state == "queued":
            known = holder.acquired_at
        elif run is not None and run.get("how") != UNSEEN:
            known = run.get("ended")
        began = now if known is None else known
        if last is not None:
            began = self._follow(last, known, now)
        if kind == "run":
            run = run or self._again(slot, began)
            if run is not None:
                self._slots[slot.key] = run
                if run.get("how") in (None, UNSEEN):
                    self._items.reopen(run)
                return
        item = self._items.add(slot.name, kind, began, **_shown(slot))
        self._slots[slot.key] = item
        self._waits.end(slot.name, holder.task_id, began)
        if kind == "run":
            self._index(item)

    def _index(self, run: Item) -> None:
        if run.get("fence") is not None:
            self._runs[run["lock"], run["fence"]] = run
        if run.get("task_id") is not None:
            self._took[run["task_id"]] = run

    def _run_of(self, name: str, fence: int | None) -> Item | None:
        return None if fence is None else self._runs.get((name, fence))

    def _again(self, slot: Found, began: float) -> Item | None:
        """The run whose lock had vanished, and which has taken the lock again; or None."""
        assert slot.holder is not None
        item = self._took.get(slot.holder.task_id or "")
        if item is None or (item["lock"], item["began"]) != (slot.name, began):
            return None
        self._items.update(item, {"fence": slot.holder.fence})
        self._index(item)
        return item

    def _follow(self, last: Item, known: float | None, now: float) -> float:
        """End the item that had the slot before. Returns when the next one began, which may be
        known.
        """
        ended = None if last.get("how") == UNSEEN else last.get("ended")
        began = known or ended or now
        if lasts(last):
            self._items.close(last, began)
        elif ended is not None and began < ended < began + LATE:
            self._items.update(last, {"ended": began})
        return began

    # -- the history --------------------------------------------------------------------------

    def remember(self, runs: Iterable[PastRun]) -> None:
        """Take in runs from the history, which knows best when and how they ended."""
        for run in sorted(runs, key=lambda run: run.began):
            self._waits.end(run.name, run.task_id, run.began)
            item = self._known(run)
            if item is None:
                item = self._items.add(run.name, "run", run.began, **_shown(run))
            self._runs[run.name, run.fence] = item
            # Nobody knows when a lock lapsed: as late as it was seen.
            ended = run.ended or item.get("ended", run.began)
            self.counts.keep(run.name, run.fence, ended, run.turned_away, run.how == LOST)
            known = {"ended": ended, "how": run.how, "turned_away": run.turned_away or None}
            if self._items.update(item, known) and run.how == "succeeded" and run.task:
                self.usual.add(run.task, ended - run.began)

    def _known(self, run: PastRun) -> Item | None:
        """The item of this run. A run that took a vanished lock again has another fence by now."""
        item = self._runs.get((run.name, run.fence)) or self._took.get(run.task_id or "")
        if item is None or item["lock"] != run.name or item.get("attempt") != run.attempt:
            return None
        return item if abs(item["began"] - run.began) < SAME else None

    # -- Celery's events ----------------------------------------------------------------------

    def hear(self, event: dict[str, Any], now: float) -> None:
        """Take in an event of Celery's.

        Args:
            event: the event.
            now: Unix time in seconds, by the lock server's clock.
        """
        kind, task_id = str(event.get("type", "")), str(event.get("uuid", ""))
        if kind in ENDS:
            item = self._took.get(task_id)
            # A look may have seen the end already; how the run ended is set once.
            if item is not None and item.get("how", UNSEEN) == UNSEEN:
                self._items.close(item, now, ENDS[kind])
        elif (ours := told(self._prefix, event)) is not None:
            self._hear_ours(ours, now)

    def _hear_ours(self, ours: Told, now: float) -> None:
        what, name, task_id, about = ours
        countdown = about.pop("countdown", None)
        if what == "acquired":
            self._waits.end(name, task_id, now)
            return
        self._mark(name, what, now, about)
        if what in waits.BEGINS:
            if what == "deferred" and isinstance(countdown, int | float):
                about["back_at"] = now + countdown
            self._waits.begin(name, now, what, about)
        elif what in ENDED:
            self._waits.end(name, task_id, now, what)
            run = self._took.get(task_id)
            if what == "replaced" and run is not None and run["lock"] == name:
                self._items.close(run, now, what)

    def _mark(self, name: str, what: str, now: float, about: Item) -> None:
        if what in TURNED_AWAY or what == LOST:
            self.counts.tell(LOST if what == LOST else AWAY, name, now)
        last = self._marks.get((name, what))
        if last is not None and now - last["began"] < TOGETHER:
            self._items.update(last, {**about, "count": last["count"] + 1})
        else:
            self._marks[name, what] = self._items.add(
                name, "mark", now, what=what, count=1, **about
            )

    # -- the bounds ---------------------------------------------------------------------------

    def prune(self, now: float) -> None:
        """Forget what is too old, or too much."""
        self.counts.prune(now)
        self.gaps = [gap for gap in self.gaps if gap[1] > now - WINDOW]
        for item in self._items.prune(now):
            self._waits.forget(item)
            of_item: Iterable[tuple[dict[Any, Item], Any]] = (
                (self._runs, (item["lock"], item.get("fence"))),
                (self._marks, (item["lock"], item.get("what"))),
                (self._took, item.get("task_id")),
            )
            for index, place in of_item:
                if index.get(place) is item:
                    del index[place]


def _shown(of: Found | PastRun) -> dict[str, Any]:
    """What is shown of a run, as far as it is known."""
    return {k: v for k, v in of.to_dict().items() if k in _OF_RUN and v is not None}


#: The fields that tell one holder of a slot from the next.
_WHO: Final = ("kind", "fence", "task_id", "attempt")
#: The fields of a run.
_OF_RUN: Final = frozenset(
    {"key", "task", "task_id", "attempt", "node", "pid", "fence", "label", "state", "args"}
)
