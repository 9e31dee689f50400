"""The waits for locks, as items of the timeline. An event tells that a task begins to wait;
whether it still does, the looks at the waiting rooms tell.
"""

from __future__ import annotations

from typing import Any, Final

from .items import UNSEEN, Item, Items, lasts
from .look import Seen

#: Our events after which a task waits.
BEGINS: Final = frozenset({"deferred", "queued", "coalesced", "debounced", "replacing"})
#: Those after which it waits as the newest call of its task; there is one for a lock and task.
AS_NEWEST: Final = frozenset({"coalesced", "debounced", "replacing"})
#: What is shown of a task that waits, as far as it is known.
KNOWN: Final = frozenset(
    {"task", "task_id", "attempt", "node", "label", "args", "kwargs", "back_at"}
)
#: How many are followed for one lock: the first.
FOLLOWED: Final = 100
#: Of how many locks the rooms are read at a look.
ROOMS: Final = 100
#: Seconds after a deferred task should have come back from which nothing is known of it.
LATE: Final = 60.0


class Waits:
    """Those who wait.

    Args:
        items: where the items are kept.
    """

    def __init__(self, items: Items) -> None:
        self._items = items
        #: By the lock's name and the task's id: those who wait, or did when nobody looked any more.
        self._of: dict[str, dict[str, Item]] = {}
        self._asked_last = ""
        self._looked_at = float("-inf")

    def begin(self, name: str, since: float, what: str, about: dict[str, Any]) -> None:
        """A task waits for this lock.

        Args:
            name: the lock's name.
            since: Unix time by the lock server's clock.
            what: one of `BEGINS`.
            about: what is known of the task, with its `task_id`.
        """
        task_id = about.get("task_id")
        if not isinstance(task_id, str):
            return
        known = {name: value for name, value in about.items() if name in KNOWN}
        item = self._of.get(name, {}).get(task_id)
        if item is not None and item.get("how") == UNSEEN:
            self._items.reopen(item)
        elif item is None:
            if len(self._of.get(name, {})) >= FOLLOWED:
                return
            item = self._items.add(name, "wait", since, what=what)
            self._of.setdefault(name, {})[task_id] = item
        if what != "queued":
            known["what"] = what
        self._items.update(item, known)
        if what in AS_NEWEST:
            for other in self._lasting(name):
                if other is not item and _slot(other) == _slot(item) is not None:
                    self._close(other, since, "replaced")

    def end(self, name: str, task_id: str | None, at: float, how: str | None = None) -> None:
        """It waits no more: it has the lock, or has ended."""
        item = self._of.get(name, {}).get(task_id or "")
        if item is not None:
            self._items.reopen(item)
            self._close(item, at, how)

    def asked(self) -> list[str]:
        """The locks whose waiting rooms the next look should read, each in its turn."""
        names = sorted(name for name in self._of if any(map(_in_room, self._lasting(name))))
        after = [name for name in names if name > self._asked_last][:ROOMS] or names[:ROOMS]
        self._asked_last = after[-1] if after else ""
        return after

    def take_in(self, seen: Seen) -> None:
        """Take in which rooms are empty, and who is in those that were read."""
        waiting = {each.name for each in seen.found if each.waiting}
        for name, of in list(self._of.items()):
            room = seen.rooms.get(name) if name in waiting else frozenset[str]()
            for task_id, item in list(of.items()):
                if not _in_room(item):
                    self._look_for_deferred(item, seen.now)
                elif room is not None:
                    self._look_for(item, task_id in room, seen.now)
        for name, first in seen.next.items():
            for each in first:
                self.begin(name, each.get("since", seen.now), "queued", each)
        self._looked_at = seen.now

    def _look_for(self, item: Item, is_there: bool, now: float) -> None:
        if is_there:
            if item.get("how") == UNSEEN:
                self._items.reopen(item)
        # What began since the last look may have come after this look saw the room.
        elif item["began"] < self._looked_at:
            self._close(item, now)

    def _look_for_deferred(self, item: Item, now: float) -> None:
        """A deferred task is in no room: its message is on its way, and no look sees it."""
        back_at: float = item.get("back_at") or item["began"]
        if lasts(item) and back_at + LATE < now:
            self._items.close(item, back_at, UNSEEN)

    def _lasting(self, name: str) -> list[Item]:
        return [item for item in self._of.get(name, {}).values() if lasts(item)]

    def _close(self, item: Item, at: float, how: str | None = None) -> None:
        self._items.close(item, at, how)
        self.forget(item)

    def forget(self, item: Item) -> None:
        """The item has ended, or was dropped."""
        name, task_id = item["lock"], item.get("task_id") or ""
        of = self._of.get(name, {})
        if of.get(task_id) is item:
            del of[task_id]
            if not of:
                del self._of[name]


def _in_room(item: Item) -> bool:
    return bool(item["what"] != "deferred")


def _slot(item: Item) -> str | None:
    """The task in whose pending slot it waits."""
    return item.get("task") if item["what"] in AS_NEWEST else None
