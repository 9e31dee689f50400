"""What the protocol's model is checked for: settings in which everything must hold, rules without
which it does not, and what no rule of ours prevents.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from .explorer import Exploration, explore
from .protocol import Protocol
from .states import Rules, Sent, Setting, State

ONE_INSIDE: Final = "at most one is inside with the right to be"
NEWEST: Final = "who has the right to be inside took the lock last, so has the highest fence"
OWN: Final = "nobody frees another's lock"
KEPT: Final = "no message is gone without an end that its sender sees"
STAYS_FREE: Final = "a lock that was released does not come back"
ONE_END: Final = "no message is skipped and run as well"
LIVES: Final = "no live holder loses its lock"
REST: Final = "the lock can become free, and everybody can end"


Test = Callable[[State], bool]


@dataclasses.dataclass(frozen=True)
class Case:
    """A setting, and what is expected of it.

    Attributes:
        name: for people.
        setting: the setting.
        breaks: the property that breaks in it. The others are not looked at then: a shortest way
            to this one is wanted.
        besides: properties that hold in few settings, and in this one.
        big: it takes a minute or so.
    """

    name: str
    setting: Setting
    breaks: str | None = None
    besides: tuple[str, ...] = ()
    big: bool = False

    def explore(self) -> Exploration[State]:
        protocol = Protocol(self.setting)
        always, within_reach = self._always(), {REST: _at_rest}
        if self.breaks is not None:
            always = {self.breaks: self._test(self.breaks)} if self.breaks != REST else {}
        if self.breaks not in (None, REST):
            within_reach = {}
        return explore(protocol.start(), protocol.steps_from, always, within_reach)

    def _always(self) -> dict[str, Test]:
        names = [ONE_INSIDE, NEWEST, OWN, KEPT, STAYS_FREE, *self.besides]
        if not self.setting.faults & {"copy", "pause", "loss", "restart"}:
            names.append(ONE_END)
        return {name: self._test(name) for name in names}

    def _test(self, name: str) -> Test:
        return partial(_kept, self.setting) if name == KEPT else _TESTS[name]


def _kept(setting: Setting, state: State) -> bool:
    """Every message has an end, or somebody has it: a live worker, or the broker."""
    ended = {message for message, _ in state.ends}
    pairs = zip(setting.deliveries, state.deliveries, strict=True)
    had = {
        sent.message
        for sent, one in pairs
        if one.at not in ("unsent", "over") and (one.worker == "up" or setting.late_acks)
    }
    return {sent.message for sent in setting.deliveries} <= ended | had


def _inside(state: State) -> list[int]:
    return [who for who, one in enumerate(state.deliveries) if one.has_right]


def _stays_free(state: State) -> bool:
    return state.holder is None or not state.deliveries[state.holder].freed


def _one_end(state: State) -> bool:
    ran, skipped = ({of for of, end in state.ends if end == how} for how in ("ran", "skipped"))
    return not ran & skipped


def _at_rest(state: State) -> bool:
    at_work = any(
        one.at not in ("unsent", "over") and one.worker == "up" for one in state.deliveries
    )
    return state.holder is None and not at_work and not state.strays


_TESTS: Final[dict[str, Test]] = {
    ONE_INSIDE: lambda state: len(_inside(state)) <= 1,
    NEWEST: lambda state: all(who == state.newest for who in _inside(state)),
    OWN: lambda state: not state.wrong,
    STAYS_FREE: _stays_free,
    ONE_END: _one_end,
    LIVES: lambda state: not any(one.lost for one in state.deliveries),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A case that was explored."""

    case: Case
    result: Exploration[State]
    seconds: float

    @property
    def as_expected(self) -> bool:
        broken = self.result.violation.broken if self.result.violation else None
        return broken == self.case.breaks


def explored(case: Case) -> Row:
    started = time.perf_counter()
    result = case.explore()
    return Row(case, result, time.perf_counter() - started)


A, B, C = Sent("A"), Sent("B"), Sent("C")
COPY = Sent("A", copy_of=0)
RETRY = Sent("A", attempt=1)
STRANGER = Sent("B", hold_off=0)
HASTY = Sent("B", hold_off=1)
DEATHS = ("kill child", "kill worker")


def _setting(
    *deliveries: Sent, faults: tuple[str, ...] = (), late_acks: bool = True, **rules: Any
) -> Setting:
    return Setting(deliveries, frozenset(faults), late_acks, Rules(**rules))


HOLDS: Final = (
    Case("nothing goes wrong", _setting(A, B), besides=(LIVES, ONE_END)),
    Case("pauses, losses, deaths", _setting(A, B, faults=("pause", "loss", *DEATHS))),
    Case("empty restarts, deaths", _setting(A, B, faults=("restart", *DEATHS)), besides=(LIVES,)),
    Case("three tasks, losses", _setting(A, B, C, faults=("loss",)), big=True),
    Case("three tasks, empty restarts", _setting(A, B, C, faults=("restart",)), besides=(LIVES,)),
    Case("copies, deaths of children", _setting(A, B, COPY, faults=("copy", "kill child"))),
    Case("copies, deaths of workers", _setting(A, B, COPY, faults=("copy", "kill worker"))),
    Case("deaths of workers alone", _setting(A, B, COPY, faults=("kill worker",))),
    Case("copies, pauses, deaths", _setting(A, COPY, faults=("copy", "pause", *DEATHS))),
    Case("copies, empty restarts, deaths", _setting(A, COPY, faults=("copy", "restart", *DEATHS))),
    Case("retries, deaths", _setting(A, B, RETRY, faults=DEATHS)),
    Case("retries, pauses, losses, deaths", _setting(A, RETRY, faults=("pause", "loss", *DEATHS))),
    Case("retries, copies", _setting(A, RETRY, COPY, faults=("copy",))),
    Case("retries, copies, deaths", _setting(A, RETRY, COPY, faults=("copy", *DEATHS)), big=True),
    Case("early acks, pauses, deaths of children",
         _setting(A, B, faults=("pause", "kill child"), late_acks=False)),
    Case("losses, late questions", _setting(A, B, faults=("loss", "delay"))),
    Case("early acks, losses, late questions",
         _setting(A, B, faults=("loss", "delay"), late_acks=False)),
    Case("pauses, late questions", _setting(A, B, faults=("pause", "delay")), big=True),
    Case("neighbours in the bucket, empty restarts",
         _setting(A, B, faults=("neighbours", "restart")), besides=(LIVES,)),
    Case("three tasks, pauses", _setting(A, B, C, faults=("pause",)), big=True),
    Case("copies, pauses", _setting(A, B, COPY, faults=("copy", "pause")), big=True),
    Case("copies, losses, deaths of workers",
         _setting(A, B, COPY, faults=("copy", "loss", "kill worker")), big=True),
    Case("retries, pauses", _setting(A, B, RETRY, faults=("pause",)), big=True),
)  # fmt: skip

BROKEN: Final = (
    Case("a release does not compare tokens",
         _setting(A, B, faults=("pause",), compares_tokens=False), OWN),
    Case("the token is the task's id",
         _setting(A, COPY, faults=("copy",), token_is_task_id=True), ONE_INSIDE),
    Case("the right does not end by the holder's own clock",
         _setting(A, B, faults=("pause",), right_ends_by_own_clock=False), ONE_INSIDE),
    Case("the right counts from the answer, not from the question",
         _setting(A, B, faults=("pause",), right_counts_from="the answer"), ONE_INSIDE),
    Case("nobody holds off after an empty restart",
         _setting(A, B, faults=("restart",), holds_off=False), ONE_INSIDE),
    Case("nobody holds off, nor takes again what vanished",
         _setting(A, B, faults=("restart",), holds_off=False, retakes="never"), ONE_INSIDE),
    Case("nobody takes again what vanished",
         _setting(A, B, faults=("restart",), retakes="never"), LIVES, besides=(LIVES,)),
    Case("an extension makes a missing lock anew, whenever it comes",
         _setting(A, B, faults=("pause",), retakes="always", retakes_look=False), NEWEST),
    Case("a retake does not look whether another had the lock since",
         _setting(A, B, faults=("loss", "delay"), retakes_look=False), NEWEST),
    Case("a question for the lock is answered though it comes late",
         _setting(A, B, faults=("loss", "delay"), late_acks=False, refuses_what_comes_late=False),
         STAYS_FREE),
    Case("the parent releases before its child is dead",
         _setting(A, B, parent_awaits_death=False), ONE_INSIDE),
    Case("the parent's extension makes a missing lock anew",
         _setting(A, parent_retakes=True), STAYS_FREE),
    Case("a copy is dropped as a duplicate of its own",
         _setting(A, COPY, faults=("kill worker", "copy"), defers_copies=False), KEPT),
    Case("locks do not expire",
         _setting(A, B, faults=("kill worker",), locks_expire=False), REST),
)  # fmt: skip

LIMITS: Final = (
    Case("a holder is paused for longer than the hold-off, over an empty restart",
         _setting(A, B, faults=("restart", "pause")), ONE_INSIDE),
    Case("a holder alone does not reach the restarted server for so long",
         _setting(A, B, faults=("restart", "loss")), ONE_INSIDE),
    Case("who never met the old server does not hold off",
         _setting(A, STRANGER, faults=("restart",)), ONE_INSIDE),
    Case("a newcomer's ttl is shorter than the holder's, and so is its hold-off",
         _setting(A, HASTY, faults=("restart",)), ONE_INSIDE),
    Case("a neighbour in the bucket, whose ttl is shorter, is first after an empty restart",
         _setting(A, faults=("restart", "hasty neighbours")), LIVES, besides=(LIVES,)),
    Case("acks are early, and the worker dies",
         _setting(A, B, faults=("kill worker",), late_acks=False), KEPT),
    Case("a message is skipped just when a copy of it goes inside",
         _setting(A, B, COPY, faults=("copy",)), ONE_END, besides=(ONE_END,)),
    Case("the server forgot that a message has run, and a copy of it is skipped",
         _setting(A, B, COPY, faults=("copy", "restart")), ONE_END, besides=(ONE_END,)),
    Case("a body goes on after it has sent its own retry, and is paused",
         _setting(A, RETRY, faults=("pause",), body_ends_with_its_retry=False), ONE_INSIDE),
)  # fmt: skip
