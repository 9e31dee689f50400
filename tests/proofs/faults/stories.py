"""Histories made by hand, in a line or two: "body 1-2; body 1.5-1.6" is two bodies of one lock.

A step is a kind, its subject, its time, and more fields as `name=value`; `_` in a value is a space.
Unless a step says otherwise, all is about the lock `k`, in child 100 of the worker 10.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tests.proofs.history import Event

TTL = 2.0
CHILD, MAIN = 100, 10
QUIET, MAX_WAIT = 0.5, 2.0
SLOT = {"newest": "=t", "quiet": [QUIET, MAX_WAIT]}


def story(text: str) -> list[Event]:
    """The events of a history."""
    return _Story().told(text)


def _value(text: str) -> Any:
    if "," in text:
        return [_value(each) for each in text.split(",") if each]
    if text in ("none", "yes", "no"):
        return {"none": None, "yes": True, "no": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.replace("_", " ")


class _Story:
    def __init__(self) -> None:
        self._case = {"ttl": TTL, "acks_late": False, "allows": []}
        self._case |= {"broker": "rabbitmq", "pool": "prefork"}
        self._events: list[Event] = []
        self._numbers = itertools.count(1)

    def told(self, text: str) -> list[Event]:
        for step in filter(None, map(str.strip, text.replace("\n", ";").split(";"))):
            kind, *words = step.split()
            fields = dict(word.split("=", 1) for word in words if "=" in word)
            values = {name: _value(value) for name, value in fields.items()}
            tell: Callable[..., None] = getattr(self, f"_{kind}", None) or self._of(kind)
            tell(*[_value(word) for word in words if "=" not in word], **values)
        return [Event("case", 0.0, self._case), *self._events]

    def _add(self, kind: str, at: float, **fields: Any) -> None:
        self._events.append(Event(kind.replace("-", " "), at, fields))

    def _of(self, kind: str) -> Callable[..., None]:
        """What is told as it is written: the task's id, if it is about one, and the time."""

        def tell(*words: Any, **fields: Any) -> None:
            *ids, at = words
            self._add(kind, at, **({"id": ids[0]} if ids else {}), **fields)

        return tell

    # -- the case, messages, faults -------------------------------------------------------

    def _given(self, **fields: Any) -> None:
        """Fields of the case."""
        if isinstance(fields.get("allows"), str):
            fields["allows"] = [fields["allows"]]
        self._case |= fields

    def _message(
        self,
        task_id: str,
        at: float = 0.0,
        *,
        state: str | None = "SUCCESS",
        task: str = "job",
        expires: float | None = None,
        **result: Any,
    ) -> None:
        """It was sent, got, acknowledged, and its result is known in the end."""
        self._add("sent", at, id=task_id, task=task, expires=expires)
        self._add("received", at, id=task_id, main=MAIN, redelivered=False)
        self._add("acked", at, id=task_id, main=MAIN)
        if state is not None:
            self._add("result", 90.0, id=task_id, state=state, **result)

    def _received(self, task_id: str, at: float, **fields: Any) -> None:
        about = {"id": task_id, "main": 11, "redelivered": False}
        self._add("received", at, **{**about, **fields})

    def _fault(self, begin: float, end: float, away: str = "", **fields: Any) -> None:
        for phase, at in (("begin", begin), ("end", end)):
            self._add("fault", at, name="f", phase=phase, unreachable=bool(away), **fields)

    def _dead(self, pid: int, at: float) -> None:
        self._add("dead", at, pids=[pid])

    # -- bodies ---------------------------------------------------------------------------

    def _body(
        self,
        start: float,
        end: float | None = None,
        *,
        run: str = "",
        of: str = "",
        outcome: str = "returned",
        lost: bool = False,
        sample: Any = (),
        **fields: Any,
    ) -> None:
        """One run. Without `end` it writes none; its signs of life are at `sample`."""
        run = run or f"run{next(self._numbers)}"
        asked = fields.get("asked", start - 0.01)
        about = {"run": run, "id": of or run, "task": "job", "attempt": 0, "key": "k"}
        about |= {"token": f"token-{run}", "fence": round(asked * 1000), "asked": asked}
        about |= {"right": asked + TTL, "ttl": TTL, "pid": CHILD, "main": MAIN}
        self._add("start", start, **{**about, **fields})
        for at in sample if isinstance(sample, list) else filter(None, [sample]):
            self._add("alive", at, run=run, lost=lost, asked=at)
        if end is not None:
            self._add("end", end, run=run, outcome=outcome, lost=lost, asked=end)

    def _beat(self, run: str, at: float, until: float | None = None) -> None:
        self._add("beat", at, token=f"token-{run}", sent=at, until=until or at + TTL)

    def _told(self, run: str, at: float) -> None:
        self._add("told", at, run=run, by="body")

    def _signal(self, fence: int, at: float) -> None:
        self._add("told", at, fence=fence, key="k", by="signal")

    def _conflict(self, task_id: str, at: float, outcome: str, **fields: Any) -> None:
        about = {"id": task_id, "task": "job", "attempt": 0, "key": "k", "holder": "other"}
        self._add("conflict", at, **{**about, "outcome": outcome, "pid": CHILD, **fields})

    def _released(self, task_id: str, at: float, **fields: Any) -> None:
        about = {"id": task_id, "key": "k", "owned": True, "kept_for_retry": False}
        self._add("released", at, **{**about, **fields})

    def _freed(self, run: str, at: float) -> None:
        self._add("freed", at, key="k", token=f"token-{run}")

    # -- waiting rooms --------------------------------------------------------------------

    def _entry(self, kind: str, entry: str, at: float, **fields: Any) -> None:
        entry = entry if ":" in entry else f"{entry}:0.0"
        about = {"entry": entry, "id": entry.partition(":")[0], "key": "k"}
        self._add(kind, at, **{**about, "pid": CHILD, "main": MAIN, **fields})

    def _parked(self, entry: str, at: float, *, said: str = "parked", **fields: Any) -> None:
        gone = fields.pop("replaced", [])
        gone = [f"{each}:0.0" for each in (gone if isinstance(gone, list) else [gone])]
        about = {"newest": "", "in_front": False, "asked": at - 0.01, "said": said, **fields}
        kind = "parked" if said == "parked" else "not parked"
        self._entry(kind, entry, at, replaced=gone, **about)

    def _parks(self, entry: str, at: float, **fields: Any) -> None:
        self._entry("parks", entry, at, **{"newest": "", "pid": CHILD + 1, **fields})

    def _asks(self, entry: str, at: float, **fields: Any) -> None:
        self._entry("asks", entry, at, **{"token": f"{entry}-{at}", **fields})

    def _took(self, entry: str, at: float, **fields: Any) -> None:
        """It asked for the lock, at that time or just before, and got it."""
        fields = {"token": f"{entry}-{at}", "asked": at - 0.01, **fields}
        about = {name: fields[name] for name in ("token", "key") if name in fields}
        self._asks(entry, fields["asked"], **about)
        self._entry("took", entry, at, **{"fence": round(at * 1000), **fields})

    def _offered(self, entry: str, at: float, *, since: float = 0.0, **fields: Any) -> None:
        """Its message was to be published, as first that many seconds before."""
        self._entry("offered", entry, at, since=since, asked=at - 0.01, **fields)

    def _quiet(self, lock: str = "", **rooms: Any) -> None:
        self._add("quiet", 50.0, keys={"k": lock} if lock else {}, rooms=rooms)

    def _drained(self, at: float, fence: int = 0, by: str = "") -> None:
        """The lock is still held, or kept for a message."""
        reserved = {"k": by} if by else {}
        self._add("drained", at, fences={"k": fence} if fence else {}, reserved=reserved)

    # -- debounced calls ------------------------------------------------------------------

    def _call(self, task_id: str, at: float, over: str = "", **fields: Any) -> None:
        """It waits, and replaces another one."""
        self._message(task_id, at - 0.1, value=f"run of {task_id}")
        self._parks(task_id, at - 0.01, **SLOT)
        if over:
            self._replaced(over, task_id)
        replaced = fields.pop("replaced", [over] if over else [])
        self._parked(task_id, at, replaced=replaced, **SLOT, **fields)

    def _replaced(self, task_id: str, about: str) -> None:
        """The result of this one says that it was replaced, and by whom."""
        result = next(e for e in self._events if e.kind == "result" and e.id == task_id)
        result.fields.update(state="REVOKED", error="TaskReplaced", about=about, value=None)

    def _ran(self, task_id: str, at: float, offered: float | None = None) -> None:
        """It was published and ran."""
        self._offered(task_id, at - 0.02 if offered is None else offered)
        self._took(task_id, at - 0.005)
        run = f"run of {task_id}"
        self._body(at, at + 0.1, of=task_id, run=run, quiet=SLOT["quiet"])

    # -- runs that end others -------------------------------------------------------------

    def _came(self, task_id: str, at: float, unheard: str = "") -> None:
        self._received(task_id, at, main=MAIN)
        token = f"of-{task_id}"
        self._asks(task_id, at + 0.01, token=token)
        if not unheard:
            self._entry("refused", task_id, at + 0.02, token=token, asked=at + 0.01)

    def _replaces(self, newer: str, at: float) -> None:
        self._parked(newer, at, newest="t", replaces=True, in_front=True)
