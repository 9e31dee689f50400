"""Publishes the messages of tasks that wait for locks in Redis.

The server names the task that is next. It stays in the room until it takes the lock or ends, so
nothing is lost if its publisher dies, or its message is lost: it is published again, with growing
pauses, unless a worker without this package has run it. If no worker takes it for
`redislock_offer_for`, it ends with an error result.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from functools import partial
from typing import Any, Final, NamedTuple

from celery import signals as celery_signals
from celery.exceptions import SoftTimeLimitExceeded

from ..app.again import custom_headers, publish_again
from ..app.delivery import KEY, Kept
from ..app.entries import CALLBACKS, CorruptEntry, Entry, ForgedEntry, NotOurs, Waiter
from ..app.housekeeper import housekeeper
from ..app.outcomes import Outcome, Whose, report, report_expired
from ..app.results import ended_since, proves_nothing, store_expired, store_skipped
from ..app.settings import app_locks
from ..app.times import has_passed, seconds_until
from ..errors import LockUnavailable, TaskReplaced, TaskSkipped
from ..protocol import notes
from ..protocol.calls import Release, settle
from ..protocol.claims import Busy, Claim, Free, Look, Offered, Parked, Settled
from ..protocol.clock import clock
from ..protocol.entries import parts_of, task_id_of, task_of
from ..protocol.holders import Holder
from ..protocol.keys import LockKeys
from ..protocol.log import logger
from ..protocol.rooms import UNTAKEN_AFTER, drop, forget_ended, look, server_time
from ..protocol.tokens import new_token
from .limits import only_logged
from .locked import LockedTask

#: A room that is due within so many seconds is looked after by the process that knows of it: the
#: workers that sweep the rooms may look too late.
SOON: Final = 5.0
#: What becomes of a task that no worker has taken, though this process can publish it.
AGAIN: Final = "it is published again"
#: What this process parked last, by its text: the next call is likely to replace the one before,
#: which then need not be read again. Two, as a call is parked before the one that it replaces ends.
_parked_here: Final[deque[tuple[str, Entry, Waiter]]] = deque(maxlen=2)


def note_parked(text: str, entry: Entry, waiter: Waiter) -> None:
    """Note what this process parks, and has sealed."""
    _parked_here.append((text, entry, waiter))


class Looked(NamedTuple):
    """What is to be known after a look at a room."""

    due_in: float | None  # seconds until the next look at it is due; None if none is
    passed_over: bool  # others must publish a task of it


def look_after(app: Any, keys: LockKeys, ttl: float) -> Looked:
    """Publish the next task, end those that no worker takes, store results of replaced ones."""
    reply = _look(app, keys, ttl, [])
    if reply.offered is None:
        return Looked(reply.due_in, False)
    passed_over: list[str] = []
    last = _publish(app, keys, ttl, reply.offered, passed_over)
    return Looked((last or reply).due_in, bool(passed_over))


def _look(app: Any, keys: LockKeys, ttl: float, passed_over: list[str]) -> Look:
    locks = app_locks(app)
    reply = locks.server.run(look(keys, ttl, locks.offer_for, passed_over))
    if reply.too_long:
        _end_untaken(app, keys, ttl, reply.too_long)
    for entry_id, (successor, text) in reply.ended.items():
        end_replaced(app, keys, ttl, entry_id, text, successor, late=True)
    return reply


def follow_up(
    app: Any, keys: LockKeys, ttl: float, reply: Settled | Busy | Parked | Free, by: str = ""
) -> None:
    """Do for other tasks what the server's answer leaves to be done: publish the one that is next,
    end those that the task with the id `by` replaced, look at the room again.

    This is done in the background, as the broker or the result backend may hang. A task that was
    parked has nothing else to do: it ends those that it replaced at once, which is faster than two
    threads of one process that take turns.
    """
    if isinstance(reply, Parked | Free) and reply.replaced:
        end = partial(_end_all, app, keys, ttl, reply.replaced, by)
        if isinstance(reply, Parked):
            end()
        else:
            housekeeper.add(end, most=0.0, talks=True)
    if not isinstance(reply, Free) and reply.offered is not None:
        housekeeper.add(partial(_publish, app, keys, ttl, reply.offered), most=0.0, talks=True)
    due_in = reply.due_in if isinstance(reply, Settled | Parked) else None
    _look_soon(app, keys, ttl, due_in, clock() + SOON)


def _look_soon(app: Any, keys: LockKeys, ttl: float, due_in: float | None, until: float) -> None:
    """Look after the room when it is due, and again when it is due then, if that is before."""
    if due_in is not None and clock() + due_in < until:
        look = partial(_look_then, app, keys, ttl, until)
        housekeeper.add(look, after=due_in, talks=True)


def _look_then(app: Any, keys: LockKeys, ttl: float, until: float) -> None:
    looked = look_after(app, keys, ttl)
    if not looked.passed_over:
        _look_soon(app, keys, ttl, looked.due_in, until)


def _end_all(app: Any, keys: LockKeys, ttl: float, replaced: dict[str, str], by: str) -> None:
    for entry_id, text in replaced.items():
        end_replaced(app, keys, ttl, entry_id, text, by)


def _publish(
    app: Any, keys: LockKeys, ttl: float, offered: Offered, looked: list[str] | None = None
) -> Settled | Look | None:
    """Publish the task that is next; or, if it has ended or only others can publish it, the one
    behind it. `looked`, given after a look at the room, collects those that only others can
    publish. Returns what the server said last of the room, if it was asked again.
    """
    following: Offered | None = offered
    looks, passed_over = looked is not None, [] if looked is None else looked
    last: Settled | Look | None = None
    try:
        while following is not None:
            reply = _publish_one(app, keys, ttl, following, passed_over, looks)
            last, following = reply or last, reply and reply.offered
    except LockUnavailable as exc:
        logger.warning("redislock: could not hand over %s yet: %s", keys.lock, exc.reason)
    return last


def _publish_one(
    app: Any, keys: LockKeys, ttl: float, offered: Offered, passed_over: list[str], looks: bool
) -> Settled | Look | None:
    """Publish one task. If it was not published, return what the server said of the next. A task
    that this process cannot publish is added to `passed_over`.
    """
    member, entry_id, _ = offered.place
    try:
        if _send(app, keys, offered):
            if offered.since > UNTAKEN_AFTER:
                _report_untaken(app, offered, keys, AGAIN)
            return None
        locks, (task_id, nesting, attempt) = app_locks(app), parts_of(entry_id)
        claim = Claim(keys, new_token(), ttl, "", task_id, attempt, nesting, locks.done_ttl)
        # A message that was published before may yet come; and its task may have parked again.
        place = offered.place._replace(receipt="")
        leaves = Release(notes.lasting(notes.ENDED), always=True, leaves=place)
        settled = locks.server.run(settle(claim, leaves))
        if settled.ours:  # else a newer call has its place, or it runs
            end_replaced(app, keys, ttl, entry_id, offered.entry, "", late=True)
        return settled
    except (SoftTimeLimitExceeded, LockUnavailable):
        # `_publish` tells of an outage; the limit is that of the task which just released the lock.
        raise
    except (NotOurs, CorruptEntry) as exc:
        text = "redislock: another worker must publish %s, which waits for %s: %s"
        logger.debug(text, entry_id, keys.lock, exc)
        if looks and offered.since > UNTAKEN_AFTER:
            _report_untaken(app, offered, keys, f"this worker cannot publish it: {exc}")
        passed_over.append(member)
        return _look(app, keys, ttl, passed_over)
    except Exception:
        text = "redislock: could not publish %s, which waits for %s; will try again"
        logger.exception(text, entry_id, keys.lock)
        return None


def _send(app: Any, keys: LockKeys, offered: Offered) -> bool:
    """Publish the message. False if there is no need: its task has ended, or expired."""
    entry = Entry.load(offered.entry)
    waiter = _believed(app, keys, entry, entry.load_for(app))
    _, args, kwargs, options, own = waiter
    if offered.since and _has_ended(waiter, entry):
        logger.info("redislock: %s[%s] has ended elsewhere", entry.task, entry.task_id)
        return False
    if has_passed(options.get("expires")):
        return False
    waiter.check_route()
    header = {**own, "gave_up": offered.gives_up, "arrived": offered.arrived}
    header.update(Kept(keys.lock_id, "", offered.place).header)
    options["headers"][KEY] = header
    publish_again(app, entry.task, args, kwargs, options)
    logger.debug("redislock: %s[%s] is next, and is published", entry.task, entry.task_id)
    return True


def _outage_at(app: Any, expired: Any) -> str:
    """The lock server's outage, if any, in which a task expired in a room: nobody published it."""
    outage = app_locks(app).server.outage
    at = clock() + (seconds_until(expired) or 0.0)
    if outage is None or not outage[0] <= at <= outage[1] + SOON:
        return ""
    return f"the lock server was away for {outage[1] - outage[0]:.0f} s meanwhile"


def _read(app: Any, keys: LockKeys, text: str, unknown: bool) -> tuple[Entry, Waiter]:
    """What an entry says, if it is to be believed. It raises what `Entry.load_for` does."""
    for parked, entry, waiter in tuple(_parked_here):  # another thread may add to it
        if parked == text and entry.lock == keys.lock and waiter.task.app is app:
            return entry, waiter
    entry = Entry.load(text)
    return entry, _believed(app, keys, entry, entry.load_for(app, unknown))


def _believed(app: Any, keys: LockKeys, entry: Entry, waiter: Waiter) -> Waiter:
    """The waiter, if its entry is sealed, or is a plain call of a task of this room."""
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


def _has_ended(waiter: Waiter, entry: Entry) -> bool:
    """Whether another process has ended this task: its result is newer than the parking."""
    task, args, kwargs, options, own = waiter
    parked_at = own.get("parked_at")  # an entry without a seal does not say
    if parked_at is None or proves_nothing(task, entry.request(args, kwargs, options)):
        return False
    return ended_since(task, entry.task_id, parked_at)


def _report_untaken(app: Any, offered: Offered, keys: LockKeys, what: str) -> None:
    """Report that no worker has taken a task. If it is not published again, the app does not know
    it, and it may wait behind a holder: so this says since when it has waited, and not for what.
    """
    age = ""
    if offered.arrived is not None:
        with contextlib.suppress(LockUnavailable):
            now = app_locks(app).server.ask(server_time(keys.lock), once=True)
            age = f", for {max(now - offered.arrived, 0.0):.0f} s since it came"
    if what == AGAIN:
        age += f", {offered.since:.0f} s since it was published"
    whose = Whose(keys.lock, task_of(offered.entry), task_id_of(offered.place.entry_id))
    report(
        Outcome.UNTAKEN, whose,
        "redislock: no worker has taken %s, which waits for %s%s: %s",
        _called(whose), keys.lock, age, what, reason=what,
    )  # fmt: skip


def _called(whose: Whose) -> str:
    return f"{whose.task}[{whose.task_id}]" if whose.task else str(whose.task_id)


def _end_untaken(app: Any, keys: LockKeys, ttl: float, members: list[str]) -> None:
    """End tasks that no worker has taken for too long. Their messages must not run any more."""
    locks = app_locks(app)
    dropped = locks.server.run(drop(keys, ttl, "", locks.done_ttl, members))
    for entry_id, text in dropped.items():
        whose = Whose(keys.lock, task_of(text), task_id_of(entry_id))
        report(
            Outcome.UNTAKEN, whose,
            "redislock: %s ends without a run: no worker has taken it for %.0f s"
            " (redislock_offer_for) while it waited for %s",
            _called(whose), locks.offer_for, keys.lock,
            level=logging.ERROR, reason="redislock_offer_for",
        )  # fmt: skip
        end_replaced(app, keys, ttl, entry_id, text, "")


def while_suspended(suspended: str) -> str:
    """Why a task expired that waited for the end of a suspension, which is given as text."""
    return f"it waited while this was suspended: {suspended}"


def end_expired(
    task: Any,
    keys: LockKeys,
    request: Any,
    label: str | None,
    why: str = "",
    reason: str = "",
) -> None:
    """End a task that expired while it waited, or would, with a result. `why` says what let it
    expire, if it is not just that the lock was held; `reason` is another text for the line's field.
    """
    store_expired(task, request)
    expired = {"terminated": False, "signum": None, "expired": True}
    celery_signals.task_revoked.send(sender=task, request=request, **expired)
    whose = Whose(keys.lock, task, request.id, request.retries or 0, label)
    if not why:
        report(
            Outcome.EXPIRED, whose,
            "redislock: %s[%s] ends as expired: it cannot acquire %s in time",
            task.name, request.id, keys.lock,
        )  # fmt: skip
    else:
        report_expired(whose, why, reason or why)


def end_replaced(
    app: Any,
    keys: LockKeys,
    ttl: float,
    entry_id: str,
    text: str,
    successor: str,
    unknown: bool = False,
    late: bool = False,
) -> None:
    """Store the result of a task that was replaced in the room by the task with the id `successor`,
    or dropped from it by an operator, or has expired there: "". Nobody else does for the next
    `rooms.ENDED_AGAIN` seconds; after an error, a worker that looks after the rooms tries again.

    `unknown` allows a task that the app does not know; else that is left to other workers.
    `late`: another process may have stored it, and has died or is late.
    """
    with only_logged(
        "redislock: could not store the result of %s, which was replaced or dropped; will try"
        " again",
        entry_id,
    ):
        if not _store_replaced(app, keys, entry_id, text, successor, unknown, late):
            return
        try:
            app_locks(app).server.ask(forget_ended(keys, entry_id, ttl))
        except LockUnavailable as exc:
            text = "redislock: the result of %s is stored, but its entry could not be removed: %s"
            logger.warning(text, entry_id, exc.reason)


def _store_replaced(
    app: Any, keys: LockKeys, entry_id: str, text: str, successor: str, unknown: bool, late: bool
) -> bool:
    """Store the result, unless one is stored. False if that is left to others."""
    try:
        entry, waiter = _read(app, keys, text, unknown)
    except NotOurs:
        return False
    except CorruptEntry as exc:
        logger.error(
            "redislock: %s was replaced or dropped from the room of %s, and gets no result: %s",
            entry_id, keys.lock, exc,
        )  # fmt: skip
        return True
    if late and _has_ended(waiter, entry):
        return True
    task, args, kwargs, options, own = waiter
    if not successor and has_passed(options.get("expires")):
        suspended = own.get("suspended")
        why = while_suspended(suspended) if suspended else _outage_at(app, options["expires"])
        end_expired(task, keys, entry.request(args, kwargs, options), own.get("label"), why)
        return True
    # What an operator dropped may have had the lock itself, reserved: nobody replaces it.
    is_replaced = successor not in ("", entry.task_id)
    by = Holder(task=entry.task, task_id=successor) if is_replaced else None
    if by is not None and "has_result" in own and entry.is_sealed(app, keys.lock):
        # A worker ends it as Celery ends tasks: its chain and its callbacks go on.
        options["headers"][KEY] = {**own, "replaced_by": by.to_dict()}
        publish_again(app, entry.task, args, kwargs, {**options, "expires": None})
        return True
    error = TaskReplaced(keys.lock, by) if by else TaskSkipped(keys.lock)
    store_skipped(task, entry.request(args, kwargs, options), error)
    whose = Whose(keys.lock, task, entry.task_id, options.get("retries") or 0, own.get("label"))
    if by is None:
        report(
            Outcome.DROPPED, whose, "redislock: %s[%s] was dropped from the room of %s",
            entry.task, entry.task_id, keys.lock,
        )  # fmt: skip
    else:
        report(
            Outcome.REPLACED, whose, "redislock: %s[%s] was replaced by %s, which now waits for %s",
            entry.task, entry.task_id, successor, keys.lock, holder=by, details={},
        )  # fmt: skip
    return True
