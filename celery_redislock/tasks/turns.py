"""Publishes the message of the waiting task that has its turn.

The server decides which task that is, and keeps the lock for it under a token that travels with the
message. Nothing is lost if the publisher dies: the turn expires, and is offered again. It is
offered a bounded number of times, with growing pauses, since we cannot tell three cases apart:

* The broker lost the message. The next offer publishes it again.
* The message waits in a long queue. A worker that receives it notes that, and it is not sent again.
  If no worker does, the entry is set aside in the end; its task still runs if the message comes.
* A worker that takes no lock for it has run it. If it has this package, that worker gives up the
  turn; if not, the stored result shows it when the turn is offered again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import signals as celery_signals
from celery.exceptions import SoftTimeLimitExceeded

from ..app.again import custom_headers, publish_again
from ..app.delivery import KEY, Kept
from ..app.entries import CALLBACKS, CorruptEntry, Entry, ForgedEntry, NotOurs, Waiter
from ..app.housekeeper import housekeeper
from ..app.outcomes import Outcome, Whose, tell
from ..app.results import ended_since, store_expired, store_skipped
from ..app.settings import app_locks
from ..app.times import has_passed
from ..errors import LockUnavailable, TaskReplaced, TaskSkipped
from ..protocol.calls import Release, settle
from ..protocol.claims import Claim, Look, Offered, Parked, Settled
from ..protocol.entries import task_id_of, task_of
from ..protocol.holders import Holder
from ..protocol.keys import LockKeys
from ..protocol.log import get_logger
from ..protocol.rooms import forget_ended, look
from ..protocol.tokens import new_token
from .limits import only_logged
from .locked import LockedTask

logger = get_logger()

#: A room that is due within so many seconds is looked after by the process that knows of it: the
#: workers that sweep the rooms may look too late.
SOON = 5.0


def look_after(app: Any, keys: LockKeys, ttl: float) -> bool:
    """Publish the task whose turn it is, report tasks set aside, store results of replaced ones.

    Returns:
        Whether a task gave up waiting. The next may be about to.

    Raises:
        LockUnavailable: the server did not answer in time.
    """
    reply = app_locks(app).server.run(look(keys, ttl))
    follow_look(app, keys, ttl, reply)
    return reply.offered is not None and reply.offered.gives_up


def follow(app: Any, keys: LockKeys, ttl: float, reply: Settled | Parked) -> None:
    """Do what a reply of the server asks for. Errors are logged, and others try again later.

    Args:
        app: the Celery app.
        keys: the keys of the lock that was asked about.
        ttl: seconds, which bound how long the server may take to answer.
        reply: which task has the turn now, and when to look again.
    """
    if reply.offered is not None:
        publish(app, keys, ttl, reply.offered)
    elif reply.due_in is not None and reply.due_in < SOON:
        housekeeper.add(partial(look_after, app, keys, ttl), after=reply.due_in)


def follow_look(app: Any, keys: LockKeys, ttl: float, reply: Look) -> None:
    """Do what `follow` does, and also what only a look at the room asks for."""
    for entry_id, entry in reply.aside.items():
        say_set_aside(entry_id, entry, keys, "no worker took its turn")
    for entry_id, (successor, text) in reply.ended.items():
        end_replaced(app, keys, ttl, entry_id, text, successor)
    if reply.offered is not None:
        publish(app, keys, ttl, reply.offered)


def publish(app: Any, keys: LockKeys, ttl: float, offered: Offered) -> None:
    """Publish the task that has the turn, or the next one if that task needs no turn any more."""
    following: Offered | None = offered
    declined: list[str] = []
    try:
        while following is not None and following.publish:
            following = _publish_one(app, keys, ttl, following, declined)
    except LockUnavailable as exc:
        logger.warning("redislock: could not hand over %s yet: %s", keys.lock, exc.reason)


def _publish_one(
    app: Any, keys: LockKeys, ttl: float, offered: Offered, declined: list[str]
) -> Offered | None:
    """Publish one task; if it was not published, return the next. A task that only others can
    publish is added to `declined`: else two such tasks would be offered in turn without end.
    """
    entry_id, lock = offered.entry_id, keys.lock
    try:
        if _send(app, keys, offered):
            return None
        return _take_out(app, keys, ttl, offered).offered
    except SoftTimeLimitExceeded:
        raise  # it is the limit of the task that released
    except (NotOurs, ForgedEntry) as exc:
        text = "redislock: another worker must publish %s, which waits for %s: %s"
        logger.debug(text, entry_id, lock, exc)
        reply = app_locks(app).server.run(look(keys, ttl, entry_id, exc.aside_after, declined))
        declined.append(entry_id)
        for each, entry in reply.aside.items():
            say_set_aside(each, entry, keys, f"{exc.text}: {exc}")
        return reply.offered
    except CorruptEntry as exc:
        say_set_aside(entry_id, offered.entry, keys, f"{exc.text}: {exc}")
        return _take_out(app, keys, ttl, offered, aside=True).offered
    except Exception:
        text = "redislock: could not publish %s, which waits for %s; will try again"
        logger.exception(text, entry_id, lock)
        return None


def _take_out(
    app: Any, keys: LockKeys, ttl: float, offered: Offered, aside: bool = False
) -> Settled:
    claim = Claim(keys, offered.token or new_token(), ttl, "")
    release = Release(take_out=offered.entry_id, aside=aside)
    return app_locks(app).server.run(settle(claim, release))


def _send(app: Any, keys: LockKeys, offered: Offered) -> bool:
    """Publish the message. False if there is no need: its task has ended."""
    entry = Entry.load(offered.entry)
    waiter = _believed(app, keys, entry, entry.load_for(app))
    task, args, kwargs, options, own = waiter
    if has_passed(options.get("expires")):
        end_expired(task, keys, entry.request(args, kwargs, options), own.get("label"))
        return False
    if offered.again and _has_ended(task, entry, own):
        logger.info("redislock: %s[%s] has ended elsewhere", entry.task, entry.task_id)
        return False
    waiter.check_route()
    header = {**own, "gave_up": offered.gives_up, "arrived": offered.arrived}
    header.update(Kept(keys.lock_id, offered.token, offered.entry_id).header)
    options["headers"][KEY] = header
    publish_again(app, entry.task, args, kwargs, options)
    logger.debug("redislock: %s[%s] has its turn", entry.task, entry.task_id)
    return True


def _believed(app: Any, keys: LockKeys, entry: Entry, waiter: Waiter) -> Waiter:
    """The waiter, if it may be published or ended: its entry's seal is valid; or it is a call of a
    task of this room, and runs no other task.

    Raises:
        ForgedEntry: it may not.
    """
    if entry.is_sealed(app, keys.lock):
        return waiter
    task, args, kwargs, options, _ = waiter
    if any(options.get(name) for name in CALLBACKS):
        raise ForgedEntry(f"{entry.task} must not run for it: it brings callbacks")
    if not isinstance(task, LockedTask) or task.lock_options is None:
        raise ForgedEntry(f"{entry.task} takes no lock")
    options["headers"] = headers = custom_headers(options["headers"])
    try:
        lock = task.lock_keys_for(args, kwargs, headers).lock
    except Exception as exc:  # a callable of the user's may raise anything
        raise ForgedEntry(f"{entry.task}: its arguments give no lock: {exc}") from exc
    if lock != keys.lock:
        raise ForgedEntry(f"{entry.task}: its arguments give another lock, {lock}")
    return waiter


def _has_ended(task: Any, entry: Entry, header: dict[str, Any]) -> bool:
    """Whether a worker that takes no lock has run it: its result came after it was parked."""
    parked_at = header.get("parked_at")  # an entry without a seal does not say
    return parked_at is not None and ended_since(task, entry.task_id, parked_at)


def say_set_aside(entry_id: str, entry: str, keys: LockKeys, why: str) -> None:
    """Report that an entry was set aside, in one line. The app may not know its task."""
    task_id, task = task_id_of(entry_id), task_of(entry)
    tell(
        Outcome.SET_ASIDE, Whose(keys.lock, task, task_id),
        "redislock: set aside %s, which waited for %s: %s. It still runs if its message"
        " arrives; `celery redislock put-back` lets it wait again",
        f"{task}[{task_id}]" if task else task_id, keys.lock, why, reason=why,
    )  # fmt: skip


def end_expired(task: Any, keys: LockKeys, request: Any, label: str | None) -> None:
    """End a task that expired while it waited, or would: RabbitMQ would drop its message, and the
    task would have no result.
    """
    store_expired(task, request)
    expired = {"terminated": False, "signum": None, "expired": True}
    celery_signals.task_revoked.send(sender=task, request=request, **expired)
    tell(
        Outcome.EXPIRED, Whose(keys.lock, task, request.id, request.retries or 0, label),
        "redislock: %s[%s] ends as expired: it cannot acquire %s in time",
        task.name, request.id, keys.lock,
    )  # fmt: skip


def end_replaced(
    app: Any,
    keys: LockKeys,
    ttl: float,
    entry_id: str,
    text: str,
    successor: str,
    unknown: bool = False,
) -> None:
    """Store the result of a task that was replaced in, or dropped from, the room. Safe to do twice.

    An error is logged, and a worker that looks after the rooms tries again.

    Args:
        app: the Celery app.
        keys: the lock's keys.
        ttl: seconds, which bound how long the server may take to answer.
        entry_id: the entry's id.
        text: the entry.
        successor: the id of the task that replaced it; "" if an operator dropped it.
        unknown: allow a task that the app does not know; else that is left to other workers.
    """
    with only_logged(
        "redislock: could not store the result of %s, which was replaced or dropped; will try"
        " again",
        entry_id,
    ):
        if not _store_replaced(app, keys, entry_id, text, successor, unknown):
            return
        try:
            app_locks(app).server.ask(forget_ended(keys, entry_id, ttl))
        except LockUnavailable as exc:
            text = "redislock: the result of %s is stored, but its entry could not be removed: %s"
            logger.warning(text, entry_id, exc.reason)


def _store_replaced(
    app: Any, keys: LockKeys, entry_id: str, text: str, successor: str, unknown: bool
) -> bool:
    """Store the result. False if that is left to others: the task is another project's."""
    try:
        entry = Entry.load(text)
        waiter = _believed(app, keys, entry, entry.load_for(app, unknown))
    except NotOurs:
        return False
    except CorruptEntry as exc:
        logger.error(
            "redislock: %s was replaced or dropped from the room of %s, and gets no result: %s: %s",
            entry_id, keys.lock, exc.text, exc,
        )  # fmt: skip
        return True
    task, args, kwargs, options, own = waiter
    by = Holder(task=entry.task, task_id=successor) if successor else None
    error = TaskReplaced(keys.lock, by) if by else TaskSkipped(keys.lock)
    store_skipped(task, entry.request(args, kwargs, options), error)
    whose = Whose(keys.lock, task, entry.task_id, options.get("retries") or 0, own.get("label"))
    if by is None:
        tell(
            Outcome.DROPPED, whose, "redislock: %s[%s] was dropped from the room of %s",
            entry.task, entry.task_id, keys.lock,
        )  # fmt: skip
    else:
        tell(
            Outcome.REPLACED, whose, "redislock: %s[%s] was replaced by %s, which now waits for %s",
            entry.task, entry.task_id, successor, keys.lock, holder=by, details={},
        )  # fmt: skip
    return True
