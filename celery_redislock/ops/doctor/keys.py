"""Whether the server holds keys that should not be there."""

from __future__ import annotations

from collections.abc import Iterator

from ...app.brokers import broker_of
from ...app.neighbours import BESIDE_OTHERS, IN_CACHE, REMEDY, caches_beside, strangers
from ...inspection.about import server_time
from ...inspection.locks import OUTSIDE
from ...inspection.queues import in_queues
from ...protocol.holders import one_line
from ...protocol.keys import broker_of_sweep, sweep_pattern
from ...servers.looking import sample, scan
from ..table import count_of, some
from .checkup import ERROR, OK, WARNING, Checkup, Finding


def check_prefix(checkup: Checkup) -> Iterator[Finding]:
    """Whether other programs use the same keys."""
    locks = [each for each in checkup.survey if each.is_lock]
    foreign = [each for each in locks if each.state == "foreign"]
    waiting = {each.task for each in checkup.survey if each.waiting}
    unknown = sorted({each.task for each in locks} - {"", OUTSIDE, *checkup.app.tasks})
    renamed = [name for name in unknown if name in waiting]
    strange = [name for name in unknown if name not in waiting]
    if foreign:
        yield Finding(
            ERROR, f"{count_of(len(foreign), 'foreign value')}, such as {foreign[0].key!r}",
            "delete them, or set another redislock_prefix: they block their locks",
        )  # fmt: skip
    if renamed:
        yield Finding(
            WARNING, f"tasks wait that this app does not know: {some(renamed)}",
            "if a release renamed them, register them under these names too, until none waits",
        )  # fmt: skip
    if strange:
        yield Finding(
            WARNING, f"locks of tasks that this app does not know: {some(strange)}",
            "give each project that shares the server its own redislock_prefix",
        )  # fmt: skip
    sweeps = scan(checkup.server, sweep_pattern(checkup.locks.prefix))
    brokers = {broker_of_sweep(key) for page in sweeps for key in page}
    others = len(brokers - {broker_of(checkup.app)})  # of workers that run, with our prefix
    if others:
        yield Finding(
            WARNING,
            f"workers with another broker use these locks ({count_of(others, 'such broker')}):"
            " their tasks and ours of one name and arguments are duplicates of each other",
            "give each project its own redislock_prefix, unless they are to share locks",
        )  # fmt: skip
    if not (foreign or unknown or others):
        yield Finding(OK, f"{checkup.locks.prefix!r}, {count_of(len(locks))}")


def check_neighbours(checkup: Checkup) -> Iterator[Finding]:
    """Whether other programs have keys in the same database, which they may flush."""
    if caches_beside(checkup.locks):
        return  # `check_caches` says so
    for name, server in checkup.locks.server.shards().items():
        others = strangers(checkup.locks, checkup.app.conf, sample(server))
        if others:
            which = f"lock server {name}".rstrip()
            yield Finding(WARNING, BESIDE_OTHERS % (which, others[0]), REMEDY)


def check_caches(checkup: Checkup) -> Iterator[Finding]:
    """Whether a cache of Django's is in the same database."""
    caches = caches_beside(checkup.locks)
    if caches:
        yield Finding(WARNING, IN_CACHE % ", ".join(caches), REMEDY)


def check_untaken(checkup: Checkup) -> Iterator[Finding]:
    """Whether no worker took tasks in their turn, and what the broker says of their queues."""
    rooms = {each.name: each for each in checkup.survey if each.untaken}
    if not rooms:
        yield Finding(OK, "no task waits that no worker has taken in its turn")
        return
    count = sum(each.untaken for each in rooms.values())
    where = f"{count_of(count, 'task')} of {count_of(len(rooms))}"
    first = next(iter(rooms.values()))
    what = f"no worker has taken {'it' if count == 1 else 'them'} for a minute or more"
    yield Finding(
        WARNING,
        "; ".join([f"{where}, such as {first.key!r}: {what}", *_of_queues(checkup)]),
        "does a worker with a free slot read their queue, and know the task? `celery redislock show"
        " KEY` names them; `drop-waiting KEY` ends them; after redislock_offer_for they end",
    )  # fmt: skip


def _of_queues(checkup: Checkup) -> Iterator[str]:
    """What the broker says of the queues of tasks that were published from waiting rooms."""
    try:
        untaken = [each for each in checkup.survey if each.untaken]
        found = in_queues(checkup.app, untaken, server_time(checkup.app))
    except Exception as exc:  # whatever the broker's driver raises
        yield f"the broker does not tell of their queues: {type(exc).__name__}"
        return
    for name, each in {each.queue: each for each in found}.items():
        queue = one_line(name)
        if not each.is_read:
            has = count_of(each.messages, "message")
            yield f"no worker that answers reads the queue {queue}, which has {has}"
        elif each.messages:
            yield f"the queue {queue} has {count_of(each.messages, 'message')}: workers are behind"
        else:
            yield (
                f"the queue {queue} is empty: a busy worker has their messages, or these are lost"
            )
