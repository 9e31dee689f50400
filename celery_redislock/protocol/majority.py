"""The answer of a majority of independent servers. Does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from . import holders
from .claims import EXTENDED, NOT_OURS, RETAKEN, Acquired, Busy, Extended, Settled
from .holders import Holder

T = TypeVar("T")

#: By how much two machines' clocks may drift apart in a ttl, as a share of the ttl, and in seconds
#: for a short one. The figures are those of Redis's documents.
DRIFT: Final = (0.01, 0.002)
#: The commands that read the history: the replies of all servers are joined.
JOINED: Final = ("LRANGE", "ZRANGEBYSCORE")


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
        return replaced._replace(outcome=outcome, counter=counter, is_repaired=retaken > 0)
    return Extended(NOT_OURS, counter) if len(answers) - len(ours) >= majority else None


def counted(answers: Sequence[Any], majority: int) -> Any:
    """The result of a call that neither takes nor extends a lock: whether a majority says so, or
    the first answer that is not None.
    """
    if isinstance(answers[0], Settled):
        return Settled(_agreeing(answers) >= majority)
    if isinstance(answers[0], bool):
        return _agreeing(answers) >= majority
    return next((each for each in answers if each is not None), None)


def is_in_doubt(answers: Sequence[Any], sure: Sequence[Any], majority: int) -> bool:
    """Whether neither a majority of servers had what a call settles, nor a majority had it not. The
    `sure` answers come from no repetition, which finds what the first try has done.
    """
    return len(sure) - _agreeing(sure) < majority > _agreeing(answers)


def _agreeing(answers: Sequence[Any]) -> int:
    return sum(each.ours if isinstance(each, Settled) else bool(each) for each in answers)


def commonest(answers: Sequence[T]) -> T:
    """The first of the answers that most servers gave."""
    return answers[_commonest(answers)]


def busy(answers: Sequence[Busy]) -> Busy:
    """What most servers say of who has the lock, and of the latest time until which it is held."""
    said = _likeness(commonest(answers))
    return max((each for each in answers if _likeness(each) == said), key=lambda b: b.remaining)


def replies(commands: Sequence[Sequence[Any]], answers: Sequence[Sequence[Any]]) -> list[Any]:
    """For each of these commands, the reply that most servers gave. How long a value lives is told
    by the server that told the value, in the command before; how many keys there are, by the server
    that has the most. Lists are the history, which each server writes with its own times and may
    have lost in part: the reply has all that any of them has.
    """
    told: list[Any] = []
    which = 0
    for i, command in enumerate(commands):
        if command[0] in JOINED:
            told.append(_joined(command, [each[i] for each in answers]))
            continue
        if command[0] == "EXISTS":
            counts = [each[i] for each in answers if isinstance(each[i], int)]
            told.append(max(counts, default=answers[0][i]))
            continue
        if i == 0 or (command[0], *commands[i - 1][1:]) != ("PTTL", *command[1:]):
            which = _commonest([each[i] for each in answers])
        told.append(answers[which][i])
    return told


def _joined(command: Sequence[Any], lists: Sequence[Any]) -> Any:
    found = [each for each in lists if isinstance(each, list)]
    if not found:
        return lists[0]
    together = [each for one in found for each in one]
    # A list may have a record twice, a set has a member once.
    return together if command[0] == "LRANGE" else [*dict.fromkeys(together)]


def _commonest(answers: Sequence[Any]) -> int:
    likenesses = [*map(_likeness, answers)]
    ((first, _),) = Counter(likenesses).most_common(1)
    return likenesses.index(first)


def _likeness(answer: Any) -> Any:
    """What two servers' answers have in common if they say the same, but for times and fences."""
    if isinstance(answer, Holder):
        return (answer.task, answer.task_id, answer.attempt, answer.node, answer.pid)
    if isinstance(answer, Busy):
        kept = answer.reservation
        return answer.relation, kept and kept.token, _likeness(answer.holder)
    if isinstance(answer, bytes) and answer.startswith(b"{"):
        record = holders.decode(answer)
        return answer if record is None else record["token"]
    return repr(answer)
