"""What the answers of independent servers come to, of which a majority decides. Does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from .claims import EXTENDED, NOT_OURS, RETAKEN, Acquired, Extended, Settled
from .holders import Holder

T = TypeVar("T")

#: By how much two machines' clocks may drift apart in a ttl, as a share of the ttl, and in seconds
#: for a short one. The figures are those of Redis's documents.
DRIFT: Final = (0.01, 0.002)


def acquired(got: Sequence[Acquired], ttl: float) -> Acquired:
    """The acquisition that a majority gave: with the highest fence, and a right that began when the
    first was asked and is shorter by the drift.
    """
    share, least = DRIFT
    sent_at = min(each.sent_at for each in got) - ttl * share - least
    return max(got, key=lambda each: each.fence)._replace(sent_at=sent_at)


def extended(answers: Sequence[Extended], majority: int) -> Extended | None:
    """The extension that a majority agrees on; None if it agrees on none."""
    counter = max(each.counter for each in answers)
    ours = [each for each in answers if each.outcome != NOT_OURS]
    broken = next((each for each in answers if each.broken_by is not None), None)
    if broken is not None:
        return broken
    if len(ours) >= majority:
        replaced = next((each for each in ours if each.replaced_by is not None), ours[0])
        retaken = sum(each.outcome == RETAKEN for each in ours)
        outcome = EXTENDED if len(ours) - retaken >= majority else RETAKEN
        return replaced._replace(outcome=outcome, counter=counter)
    return Extended(NOT_OURS, counter) if len(answers) - len(ours) >= majority else None


def counted(answers: Sequence[Any], majority: int) -> Any:
    """What the answers to a call come to that neither takes nor extends a lock: true if a majority
    says so, or the first that is something.
    """
    if isinstance(answers[0], Settled):
        return Settled(_agreeing(answers) >= majority)
    if isinstance(answers[0], bool):
        return _agreeing(answers) >= majority
    return next((each for each in answers if each is not None), None)


def is_split(answers: Sequence[Any], majority: int) -> bool:
    """Whether neither a majority of servers had what a call settles, nor a majority had it not."""
    return len(answers) - _agreeing(answers) < majority > _agreeing(answers)


def _agreeing(answers: Sequence[Any]) -> int:
    return sum(each.ours if isinstance(each, Settled) else bool(each) for each in answers)


def commonest(answers: Sequence[T]) -> T:
    """The first of the answers that most servers gave."""
    likeness, _ = Counter(map(_likeness, answers)).most_common(1)[0]
    return next(each for each in answers if _likeness(each) == likeness)


def _likeness(answer: Any) -> Any:
    """What the answers of two servers have in common if they say the same. Each has a time and a
    fence of its own for a holder.
    """
    if isinstance(answer, Holder):
        return (answer.task, answer.task_id, answer.attempt, answer.node, answer.pid)
    return repr(answer)
