"""The last quarter of an hour, for the timeline: what ran, what waited, what was turned away.

It combines looks at the lock server, Celery's events, and the history that the locks keep. It drops
what is too old, and the oldest if there is too much.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from ...protocol.keys import name_of
from ..hear import EVENTS
from ..history import PastRun
from ..survey import Found
from .look import Seen

Item = dict[str, Any]

#: Seconds that the timeline shows.
WINDOW: Final = 900.0
#: How many items are kept, and for how many locks.
ITEMS, LANES = 10_000, 1_000
#: Seconds within which marks of one kind become one mark with a count.
TOGETHER: Final = 1.0
#: Seconds by which the event of a run's end may be late: the next run may have the lock by then.
LATE: Final = 2.0
#: Celery's events of a task's end, and how the task ended.
ENDS: Final = {
    "task-succeeded": "succeeded",
    "task-failed": "failed",
    "task-retried": "retried",
    "task-revoked": "revoked",
    "task-rejected": "rejected",
}
#: The states of a lock while a body runs, and the states in which it is kept without a run.
RUNS: Final = frozenset({"held", "replaced"})
KEPT: Final = frozenset({"held for retry", "cooling down", "queued"})
#: Our events after which the task waits, and those after which it waits no more.
WAITS: Final = frozenset({"deferred", "queued", "coalesced", "replacing"})
ENDED: Final = frozenset({"skipped", "raised", "replaced", "revoked"})


class Past:
    """The items of the timeline: runs, waits and marks.

    Args:
        prefix: the prefix of the locks' keys.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._items: dict[int, Item] = {}
        self._ids = itertools.count(1)
        self._changed: dict[int, Item] = {}
        self._lanes: Counter[str] = Counter()
        #: By the slot's key: the run that has the slot, or had it last.
        self._slots: dict[str, Item] = {}
        self._runs: dict[tuple[str, int], Item] = {}
        self._waits: dict[tuple[str, str], Item] = {}
        self._marks: dict[tuple[str, str], Item] = {}
        #: By the task's id: the task's last run.
        self._took: dict[str, Item] = {}

    # -- reading ------------------------------------------------------------------------------

    def items(self) -> list[Item]:
        """All items, the oldest first."""
        return list(self._items.values())

    def take_changes(self) -> list[Item]:
        """The items that are new or changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    def cares_for(self, event: dict[str, Any]) -> bool:
        """Whether `hear` may use this event of Celery's. Safe in any thread."""
        kind = str(event.get("type", ""))
        return kind.startswith(EVENTS) or (kind in ENDS and event.get("uuid") in self._took)

    # -- looks at the server ------------------------------------------------------------------

    def take_in(self, seen: Seen) -> None:
        """Take in what a look at the server has found."""
        there = set()
        for each in seen.found:
            if each.state in RUNS | KEPT and each.holder is not None:
                there.add(each.key)
                self._see(each, seen.now)
        for key, item in list(self._slots.items()):
            if key not in there:
                self._close(item, seen.now)
                del self._slots[key]
        for name, room in seen.next.items():
            for waiter in room:
                self._wait(name, waiter.get("since", seen.now), "queued", waiter)
        self.prune(seen.now)

    def _see(self, slot: Found, now: float) -> None:
        holder, kind = slot.holder, "run" if slot.state in RUNS else "kept"
        assert holder is not None
        last = self._slots.get(slot.key)
        who = (kind, holder.fence, holder.task_id, holder.attempt)
        if last is not None and tuple(map(last.get, _WHO)) == who:
            return
        began = now
        if kind == "run" or slot.state == "queued":
            began = holder.acquired_at or now
        if last is None and kind == "run" and self._is_back(slot, began):
            return
        if last is not None:
            began = self._follow(last, began, now)
        plain = {k: v for k, v in slot.to_dict().items() if k in _OF_RUN and v is not None}
        item = self._add(slot.name, kind, began, **plain)
        if item is not None:
            self._slots[slot.key] = item
            self._end_wait(slot.name, holder.task_id, began)
            if kind == "run" and holder.fence is not None:
                self._runs[slot.name, holder.fence] = item
            if kind == "run" and holder.task_id is not None:
                self._took[holder.task_id] = item

    def _is_back(self, slot: Found, began: float) -> bool:
        """Whether this is a run whose lock had vanished, and which has taken the lock again."""
        assert slot.holder is not None
        item = self._took.get(slot.holder.task_id or "")
        if item is None or (item["lock"], item["began"]) != (slot.name, began):
            return False
        item["fence"] = slot.holder.fence
        for name in ("ended", "how"):
            item.pop(name, None)
        self._slots[slot.key] = item
        self._note(item)
        return True

    def _follow(self, last: Item, began: float, now: float) -> float:
        """End the item that had the slot before. Returns when the next one began."""
        ended = last.get("ended")
        if began == now:  # the true beginning is unknown
            began = ended or now
        if ended is None:
            self._close(last, began)
        elif began < ended < began + LATE:
            last["ended"] = began
            self._note(last)
        return began

    def _close(self, item: Item, at: float, how: str | None = None) -> None:
        if item.get("ended") is None:
            item["ended"] = max(at, item["began"])
        elif how is None or item.get("how") == how:
            return
        if how is not None:
            item["how"] = how
        self._note(item)

    # -- the history --------------------------------------------------------------------------

    def remember(self, runs: Iterable[PastRun]) -> None:
        """Take in runs from the history, which knows best when and how they ended."""
        for run in sorted(runs, key=lambda run: run.began):
            ended = run.began if run.ended is None else run.ended
            known = {"ended": ended, "how": run.how, "turned_away": run.turned_away or None}
            item = self._runs.get((run.name, run.fence))
            if item is None:
                plain = {k: v for k, v in run.to_dict().items() if k in _OF_RUN and v is not None}
                item = self._add(run.name, "run", run.began, **plain)
                if item is None:
                    continue
                self._runs[run.name, run.fence] = item
            if any(item.get(name) != value for name, value in known.items()):
                item.update({name: value for name, value in known.items() if value is not None})
                self._note(item)

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
            if item is not None and "how" not in item:
                self._close(item, now, ENDS[kind])
        elif kind.startswith(EVENTS):
            name = name_of(self._prefix, str(event.get("redislock_key", "")))
            if name is not None:
                self._hear_ours(kind.removeprefix(EVENTS), name, task_id, event, now)

    def _hear_ours(
        self, what: str, name: str, task_id: str, event: dict[str, Any], now: float
    ) -> None:
        about = {to: event[of] for to, of in _OF_EVENT.items() if event.get(of) is not None}
        about["task_id"] = task_id
        if what == "acquired":
            self._end_wait(name, task_id, now)
            return
        self._mark(name, what, now, about)
        if what in WAITS:
            self._wait(name, now, what, about)
        elif what in ENDED:
            self._end_wait(name, task_id, now, what)
            run = self._took.get(task_id)
            if what == "replaced" and run is not None and run["lock"] == name:
                self._close(run, now, what)

    def _mark(self, name: str, what: str, now: float, about: Item) -> None:
        last = self._marks.get((name, what))
        if last is not None and now - last["began"] < TOGETHER and last["id"] in self._items:
            last.update(about, count=last["count"] + 1)
            self._note(last)
            return
        item = self._add(name, "mark", now, what=what, count=1, **about)
        if item is not None:
            self._marks[name, what] = item

    def _wait(self, name: str, since: float, how: str, about: Item) -> None:
        task_id = about.get("task_id")
        if not isinstance(task_id, str) or (name, task_id) in self._waits:
            return
        plain = {k: v for k, v in about.items() if k in _OF_RUN}
        item = self._add(name, "wait", since, how=how, **plain)
        if item is not None:
            self._waits[name, task_id] = item

    def _end_wait(self, name: str, task_id: str | None, at: float, how: str | None = None) -> None:
        item = self._waits.pop((name, task_id or ""), None)
        if item is not None:
            self._close(item, at, how)

    # -- the bounds ---------------------------------------------------------------------------

    def _add(self, name: str, kind: str, began: float, **about: Any) -> Item | None:
        """A new item; None if there are too many locks."""
        if name not in self._lanes and len(self._lanes) >= LANES:
            return None
        item: Item = {"id": next(self._ids), "lock": name, "kind": kind, "began": began, **about}
        self._items[item["id"]] = item
        self._lanes[name] += 1
        self._note(item)
        return item

    def _note(self, item: Item) -> None:
        if item["id"] in self._items:
            self._changed[item["id"]] = item

    def prune(self, now: float) -> None:
        """Forget items older than the window, and the oldest ones if there are too many."""
        holding = {item["id"] for item in self._slots.values() if item.get("ended") is None}
        too_many = len(self._items) - ITEMS
        for item in list(self._items.values()):
            until = item.get("ended") or item["began"]
            if item["id"] not in holding and (until < now - WINDOW or too_many > 0):
                self._forget(item)
                too_many -= 1

    def _forget(self, item: Item) -> None:
        del self._items[item["id"]]
        self._changed.pop(item["id"], None)
        self._lanes[item["lock"]] -= 1
        if not self._lanes[item["lock"]]:
            del self._lanes[item["lock"]]
        fence, task_id = item.get("fence"), item.get("task_id") or ""
        of_item: Iterable[tuple[dict[Any, Item], Any]] = (
            (self._runs, (item["lock"], fence)),
            (self._waits, (item["lock"], task_id)),
            (self._marks, (item["lock"], item.get("what"))),
            (self._took, task_id),
        )
        for index, place in of_item:
            if index.get(place) is item:
                del index[place]


#: The fields that tell one holder of a slot from the next.
_WHO: Final = ("kind", "fence", "task_id", "attempt")
#: The fields of a run, and of a task that waits.
_OF_RUN: Final = frozenset(
    {"key", "task", "task_id", "attempt", "node", "pid", "fence", "label", "state", "args"}
)
#: The fields of a mark, and their names in the event.
_OF_EVENT: Final = {
    "task": "redislock_task",
    "attempt": "redislock_attempt",
    "outcome": "redislock_outcome",
    "by": "redislock_holder_task_id",
    "reason": "redislock_reason",
    "node": "hostname",
    "label": "redislock_label",
}
