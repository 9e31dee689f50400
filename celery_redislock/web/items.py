"""The items of the timeline, as plain data: what lasts or lasted, and marks."""

from __future__ import annotations

import itertools
from typing import Any, Final

from .counts import WINDOW

#: `id`, `lock` (its name), `kind` ("run", "kept", "wait" or "mark"), `began`; unless it lasts,
#: `ended`; `how` it ended; and what is known of the task.
Item = dict[str, Any]

#: How many items are kept at most, and how many are left when there are more.
MOST, LEFT = 10_000, 9_000
#: How an item has ended if nobody looked: it was there at the last look.
UNSEEN: Final = "unseen"
#: The marks that one looks for first.
URGENT: Final = frozenset({"lost", "broken"})


class Items:
    """Keeps the items, and remembers which have changed. Drops what ended too long ago; if there is
    too much, the least urgent.
    """

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        self._ids = itertools.count(1)
        self._changed: dict[int, Item] = {}
        self._dropped: list[int] = []

    def all(self) -> list[Item]:
        """The oldest first."""
        return list(self._items.values())

    def take_changes(self) -> tuple[list[Item], list[int]]:
        """The items that are new or changed since the last call, and the ids of those dropped."""
        changed, self._changed = self._changed, {}
        dropped, self._dropped = self._dropped, []
        return list(changed.values()), dropped

    def add(self, lock: str, kind: str, began: float, **about: Any) -> Item:
        item: Item = {"id": next(self._ids), "lock": lock, "kind": kind, "began": began, **about}
        self._items[item["id"]] = item
        self.note(item)
        return item

    def note(self, item: Item) -> None:
        """The item has changed. One that was dropped stays so."""
        if item["id"] in self._items:
            self._changed[item["id"]] = item

    def update(self, item: Item, known: dict[str, Any]) -> bool:
        """Add what is known of it now: None is not. Returns whether anything was new."""
        new = {k: v for k, v in known.items() if v is not None and item.get(k) != v}
        if new:
            item.update(new)
            self.note(item)
        return bool(new)

    def close(self, item: Item, at: float, how: str | None = None) -> None:
        """It ended then. Of one that has ended this only says how, if nothing is known yet."""
        if lasts(item):
            item["ended"] = max(at, item["began"])
        elif how is None or item.get("how") == how:
            return
        if how is not None:
            item["how"] = how
        self.note(item)

    def reopen(self, item: Item) -> None:
        """It goes on."""
        if item.pop("ended", None) is not None:
            item.pop("how", None)
            self.note(item)

    def lose_sight(self, at: float) -> None:
        """Nobody has looked since then: that is how long each was seen to last."""
        for item in self._items.values():
            if lasts(item):
                self.close(item, at, UNSEEN)

    def prune(self, now: float) -> list[Item]:
        """Drop what ended before the window, and what is too much. Returns these."""
        dropped = [item for item in self._items.values() if _until(item) < now - WINDOW]
        if len(self._items) - len(dropped) > MOST:
            gone = {item["id"] for item in dropped}
            left = [item for item in self._items.values() if item["id"] not in gone]
            dropped += sorted(left, key=_urgency)[: len(left) - LEFT]
        for item in dropped:
            del self._items[item["id"]]
            self._changed.pop(item["id"], None)
            self._dropped.append(item["id"])
        return dropped


def lasts(item: Item) -> bool:
    return item["kind"] != "mark" and "ended" not in item


def _until(item: Item) -> float:
    """When it ended; later than all times for one that lasts: it is never too old."""
    return float("inf") if lasts(item) else float(item.get("ended") or item["began"])


def _urgency(item: Item) -> tuple[int, float]:
    """The order in which items are dropped: first what ended longest ago, then what goes on, the
    newest of it first, and what is urgent last.
    """
    if lasts(item):
        return 1, -item["began"]
    return 2 if item.get("what") in URGENT else 0, _until(item)
