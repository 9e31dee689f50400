"""The waiting room, as Celery sees it: what is parked, how it is published, who looks after it.

A task in the room is a JSON text with all that it takes to publish it as it came. It leaves the
room when it takes the lock; until then it may be published twice, and the copies find out.
"""

from __future__ import annotations

import base64
import contextlib
import json
import numbers
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from celery import signals as celery_signals
from celery import states
from celery._state import _task_stack
from celery.app.task import Context
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import serialization

from . import signals
from ._app import app_locks
from ._delivery import KEY
from ._events import emit
from ._forks import between_forks
from ._holder import Holder
from ._keys import LockKeys, all_rooms, keys_of_mark
from ._log import fields, get_logger
from .errors import LockUnavailable, TaskSkipped

logger = get_logger()


#: Seconds between looks at the rooms. One worker of those with the same app looks at a time.
SWEEP_EVERY: Final = 2.0
#: What a ttl would be of which nothing is known: it says how long the server may take to answer.
PATIENCE: Final = 6.0


class CorruptEntry(Exception):
    """What stands in the room cannot be read."""


class Entry(NamedTuple):
    """A task that waits.

    Attributes:
        task: the task's name.
        task_id: its id.
        content_type, encoding, body: arguments and options of its message, serialized as the
            task's messages are.
    """

    task: str
    task_id: str
    content_type: str
    encoding: str
    body: str

    @classmethod
    def of(cls, task: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Entry:
        """The entry of a task's message."""
        content = [args, kwargs, dict(options)]
        content_type, encoding, body = serialization.dumps(content, serializer=task.serializer)
        if isinstance(body, bytes):
            body = base64.b64encode(body).decode()
            encoding = f"base64:{encoding}"
        return cls(task.name, options["task_id"], content_type, encoding, body)

    @classmethod
    def load(cls, text: str) -> Entry:
        """The entry that `dump` wrote.

        Raises:
            CorruptEntry: it did not write this.
        """
        try:
            fields = json.loads(text)
            entry = cls(**fields)
        except (ValueError, TypeError, RecursionError) as exc:
            raise CorruptEntry(f"{type(exc).__name__}: {exc}") from exc
        if not all(isinstance(value, str) for value in fields.values()):
            raise CorruptEntry("a field is no text")
        return entry

    def dump(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))

    def content(self, app: Any) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        """Arguments, keyword arguments and options.

        Raises:
            CorruptEntry: the body is none, or in a format that the app does not accept.
        """
        body: Any = self.body
        encoding = self.encoding
        try:
            if encoding.startswith("base64:"):
                encoding = encoding.removeprefix("base64:")
                body = base64.b64decode(body)
            accept = serialization.prepare_accept_content(app.conf.accept_content)
            args, kwargs, options = serialization.loads(
                body, self.content_type, encoding, accept=accept
            )
            return list(args), dict(kwargs), dict(options)
        except SoftTimeLimitExceeded:
            raise  # of the task that released: it says nothing of the entry
        except Exception as exc:
            raise CorruptEntry(f"{type(exc).__name__}: {exc}") from exc


def hand_over(app: Any, keys: LockKeys, ttl: float, take_out: str = "") -> None:
    """Publish the task whose turn it is, if nobody has the lock.

    Whatever goes wrong is logged, and the task stays in the room: somebody's `sweep` tries again.

    Args:
        app: the Celery app.
        keys: the lock's keys.
        ttl: seconds, which say how long the server may take to answer.
        take_out: the id of an entry that is to leave the room first.
    """
    store = app_locks(app).store
    corrupt = False
    while True:
        try:
            following = store.hand_over(keys, ttl, take_out, corrupt)
        except LockUnavailable as exc:
            logger.warning("redislock: could not hand over %s yet: %s", keys.lock, exc.reason)
            return
        for entry_id, (successor, text) in following.ended.items():
            end_replaced(app, keys, ttl, entry_id, text, successor)
        if not following.entry_id:
            return
        try:
            if _publish(app, keys, Entry.load(following.entry), following.gives_up):
                return
            take_out, corrupt = following.entry_id, False
        except SoftTimeLimitExceeded:
            raise  # of the task that released
        except CorruptEntry as exc:
            logger.error(
                "redislock: set aside %s, which waited for %s and cannot be read: %s",
                following.entry_id, keys.lock, exc,
            )  # fmt: skip
            take_out, corrupt = following.entry_id, True
        except Exception:
            logger.exception(
                "redislock: could not publish %s, which waits for %s; it is tried again",
                following.entry_id, keys.lock,
            )  # fmt: skip
            return


def _publish(app: Any, keys: LockKeys, entry: Entry, gives_up: bool) -> bool:
    """Whether it is on its way, or for others to publish. If not, it has expired."""
    args, kwargs, options = entry.content(app)
    task = app.tasks.get(entry.task)
    if task is None:
        # Another project's, under the same prefix: this app's broker is not where it belongs.
        logger.debug("redislock: %s[%s] is for others to publish", entry.task, entry.task_id)
        return True
    left = seconds_until(options.get("expires"), app.timezone)
    if left is not None and left < 0:
        # RabbitMQ would drop the message, and its turn would not end.
        _store_expired(task, keys, _request_of(entry, args, kwargs, options))
        return False
    options["headers"][KEY]["gave_up"] = gives_up
    with outside_of_tasks():
        app.send_task(entry.task, args, kwargs, add_to_parent=False, **options)
    logger.debug("redislock: %s[%s] has its turn", entry.task, entry.task_id)
    return True


def seconds_until(when: Any, timezone: Any = None) -> float | None:
    """Seconds from now; None if that is not known. What is wrong with it is for Celery to say.

    Args:
        when: a number of seconds, or a time as messages and callers give it.
        timezone: that of a time that says none; None for UTC.
    """
    if when is None or isinstance(when, bool):
        return None
    if isinstance(when, numbers.Real):
        return float(when)
    try:
        if isinstance(when, str):
            when = maybe_iso8601(when)
        when = maybe_make_aware(when, timezone)
        return float((when - datetime.now(when.tzinfo)).total_seconds())
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None


def _store_expired(task: Any, keys: LockKeys, request: Any) -> None:
    """As Celery does for a message that it gets too late."""
    task.backend.mark_as_revoked(
        request.id, "expired", request=request, store_result=stores_errors(task, request)
    )
    expired = {"terminated": False, "signum": None, "expired": True}
    celery_signals.task_revoked.send(sender=task, request=request, **expired)
    said = {"task": task.name, "task_id": request.id, "attempt": request.retries or 0}
    logger.info(
        "redislock: %s[%s] has expired in the waiting room",
        task.name, request.id, extra=fields("expired", keys.lock, **said),
    )  # fmt: skip
    emit("revoked", "expired", keys.lock, **said)


def end_replaced(
    app: Any, keys: LockKeys, ttl: float, entry_id: str, text: str, successor: str
) -> None:
    """Store what a task ended in that was replaced in the room. Safe to do twice.

    Whatever goes wrong is logged, and somebody's `sweep` tries again.
    """
    try:
        if _store_replaced(app, keys, entry_id, text, successor):
            app_locks(app).store.forget_ended(keys, entry_id, ttl)
    except SoftTimeLimitExceeded:
        raise
    except LockUnavailable as exc:
        logger.warning("redislock: %s has its result, and is kept: %s", entry_id, exc.reason)
    except Exception:
        logger.exception(
            "redislock: could not store that %s was replaced; it is tried again", entry_id
        )


def _store_replaced(app: Any, keys: LockKeys, entry_id: str, text: str, successor: str) -> bool:
    """Whether that is done: it is for others if the task is another project's."""
    try:
        entry = Entry.load(text)
        args, kwargs, options = entry.content(app)
    except CorruptEntry as exc:
        logger.error("redislock: %s was replaced and cannot be read: %s", entry_id, exc)
        return True
    task = app.tasks.get(entry.task)
    if task is None:
        return False
    by = Holder(task=entry.task, task_id=successor) if successor else None
    error = TaskSkipped(keys.lock, by)
    store_skipped(task, _request_of(entry, args, kwargs, options), error)
    attempt = options.get("retries") or 0
    said: dict[str, Any] = {"task": entry.task, "task_id": entry.task_id, "attempt": attempt}
    if by is None:
        logger.info(
            "redislock: %s[%s] was dropped from the room of %s",
            entry.task, entry.task_id, keys.lock, extra=fields("dropped", keys.lock, **said),
        )  # fmt: skip
        return True
    logger.info(
        "redislock: %s[%s] replaced: %s waits for %s in its place",
        entry.task, entry.task_id, successor, keys.lock,
        extra=fields("replaced", keys.lock, holder=by, **said),
    )  # fmt: skip
    emit("replaced", "replaced", keys.lock, holder=by, **said)
    if signals.lock_conflict.receivers:
        details = signals.ConflictDetails(key=keys.lock, holder=by, outcome="replaced", **said)
        signals.lock_conflict.send(sender=task, details=details)
    return True


def _request_of(entry: Entry, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Context:
    """The request of a task that waits, as far as backends ask for it."""
    return Context(
        task=entry.task,
        id=entry.task_id,
        args=args,
        kwargs=kwargs,
        group=options.get("group_id"),
        callbacks=options.get("link"),
        errbacks=options.get("link_error"),
        delivery_info={"routing_key": options.get("queue") or options.get("routing_key")},
        **{
            name: options[name]
            for name in (
                *("root_id", "parent_id", "group_index", "chord", "chain", "retries"),
                *("replaced_task_nesting", "ignore_result", "reply_to", "shadow"),
            )
            if name in options
        },
    )


def store_skipped(task: Any, request: Any, error: TaskSkipped) -> None:
    """Store that a task was skipped: state REVOKED, for chords and chains a failure."""
    # mark_as_revoked would leave the rest of a chain pending for ever.
    task.backend.mark_as_failure(
        request.id,
        error,
        request=request,
        store_result=stores_errors(task, request),
        call_errbacks=False,
        state=states.REVOKED,
    )


def stores_errors(task: Any, request: Any) -> bool:
    """Whether a failure of this call is stored."""
    return bool(not ignores_result(task, request) or task.store_errors_even_if_ignored)


def ignores_result(task: Any, request: Any) -> bool:
    """Whether this call's result is not stored."""
    own = request.__dict__.get("ignore_result")
    return bool(task.ignore_result if own is None else own)


@contextlib.contextmanager
def outside_of_tasks() -> Iterator[None]:
    """Hide the running task: `send_task` would make it the parent of what it sends."""
    task = _task_stack.pop()
    try:
        yield
    finally:
        if task is not None:
            _task_stack.push(task)


class Sweeper:
    """Looks after the rooms whose holder died, in the worker's main process."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._buckets = all_rooms(app_locks(app).prefix)
        self._turn = f"{app_locks(app).prefix}:sweep:{app.main or ''}"

    def start(self) -> None:
        threading.Thread(target=self._run, name="redislock-sweeper", daemon=True).start()

    def sweep(self) -> None:
        """Hand over what nobody handed over.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        locks = app_locks(self._app)
        if locks.store.take_turn(self._turn, SWEEP_EVERY):
            for mark in locks.store.due_rooms(self._buckets, PATIENCE):
                hand_over(self._app, keys_of_mark(locks.prefix, mark), PATIENCE)

    def _run(self) -> None:
        while True:
            time.sleep(SWEEP_EVERY)
            try:
                with between_forks:
                    self.sweep()
            except LockUnavailable as exc:
                logger.debug("redislock: could not look after the waiting rooms: %s", exc.reason)
            except Exception:
                logger.exception("redislock: looking after the waiting rooms met a bug; it goes on")
