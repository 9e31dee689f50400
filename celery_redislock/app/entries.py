"""A task in a waiting room: a JSON text from which its message is published as it came."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from celery.app.task import Context
from celery.exceptions import SoftTimeLimitExceeded
from kombu import serialization

from . import delivery
from .brokers import broker_of, secret_of
from .delivery import KEY
from .formats import is_newer
from .internals import serializer_of

#: The version of an entry, see `formats`.
VERSION: Final = 1
#: A content type that runs code when it is read.
PICKLE: Final = "application/x-python-serialize"
#: Options with which a message makes other tasks run.
CALLBACKS: Final = ("link", "link_error", "chain", "chord")


#: What a newer release wrote is called so in the warning of it.
_STAYS: Final = "entries of waiting rooms, which stay there"


class NotOurs(Exception):
    """Another worker may be able to publish the entry; we are not."""


class CorruptEntry(Exception):
    """The entry cannot be read here."""

    what = "it cannot be read"

    def __init__(self, why: str) -> None:
        super().__init__(f"{self.what}: {why}")


class ForgedEntry(CorruptEntry):
    """The entry's seal is not valid. Its writer may have the right to write keys, but not to send
    tasks; or is a worker with another user or password of the broker, which can publish it.
    """

    what = "its seal is not valid"


class Waiter(NamedTuple):
    """All that is needed to publish the message of a waiting task."""

    task: Any
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    header: dict[str, Any]

    def check_route(self) -> None:
        """Check that the message's queue and properties are known. Raises `CorruptEntry`."""
        if not isinstance(self.options.get("queue"), str):
            raise CorruptEntry("it does not say to which queue it belongs")
        if not isinstance(self.options.get("properties", {}), Mapping):
            raise CorruptEntry("its properties are not a mapping")


class Entry(NamedTuple):
    """A waiting task.

    Whoever may write the lock's keys can write an entry, even without the right to send tasks. So
    the process that parks a message seals the entry with a proof of that right: the address of the
    broker with user and password. Without a valid seal, an entry is accepted only as a call of the
    locked task that has this room; see `tasks.room`.
    """

    task: str
    task_id: str
    content_type: str
    encoding: str
    body: str  # arguments and options of its message, serialized as the message was
    lock: str = ""  # the key of the lock in whose room the task waits
    seal: str = ""  # an HMAC of all other fields, but not of those that a later release adds

    @classmethod
    def of(
        cls,
        task: Any,
        args: Any,
        kwargs: Any,
        options: Mapping[str, Any],
        content_type: str | None = None,
    ) -> Entry:
        """The entry of a task's message, in this content type or else by the task's serializer."""
        content = [args, kwargs, dict(options)]
        serializer = serializer_of(content_type) or task.serializer
        content_type, encoding, body = serialization.dumps(content, serializer=serializer)
        if isinstance(body, bytes):
            body = base64.b64encode(body).decode()
            encoding = f"base64:{encoding}"
        return cls(task.name, options["task_id"], content_type, encoding, body)

    @classmethod
    def load(cls, text: str) -> Entry:
        """The entry that `dump` wrote. Raises `NotOurs` for a newer one, or `CorruptEntry`."""
        try:
            fields = dict(json.loads(text))
            if is_newer(_STAYS, fields.get("v", 1), VERSION):
                raise NotOurs("a newer release parked it")
            entry = cls(**{name: fields[name] for name in cls._fields if name in fields})
        except (ValueError, TypeError, RecursionError) as exc:
            raise CorruptEntry(f"{type(exc).__name__}: {exc}") from exc
        if not all(isinstance(value, str) for value in entry):
            raise CorruptEntry("a field is not text")
        return entry

    def dump(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))

    def sealed(self, app: Any, lock: str) -> Entry:
        """A copy of this entry, sealed for the room of the lock with this key."""
        entry = self._replace(lock=lock)
        return entry._replace(seal=entry._seal(app))

    def is_sealed(self, app: Any, lock: str | None = None) -> bool:
        """Whether a process with this app's broker parked it, and in this lock's room if given."""
        seal = self.seal.encode(errors="replace")
        return lock in (None, self.lock) and hmac.compare_digest(seal, self._seal(app).encode())

    def _seal(self, app: Any) -> str:
        return hmac.new(secret_of(app), json.dumps(self[:-1]).encode(), "sha256").hexdigest()

    def content(self, app: Any) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        """Arguments, keyword arguments and options. Raises `NotOurs` if this app must not read it,
        as a pickle without a valid seal, and `CorruptEntry` if it cannot.
        """
        if self.content_type == PICKLE and not self.is_sealed(app):
            raise NotOurs("it is a pickle, and its seal is not of this broker")
        body: Any = self.body
        encoding = self.encoding
        try:
            if encoding.startswith("base64:"):
                encoding = encoding.removeprefix("base64:")
                body = base64.b64decode(body)
            accept = serialization.prepare_accept_content(app.conf.accept_content)
            content = serialization.loads(body, self.content_type, encoding, accept=accept)
        except SoftTimeLimitExceeded:
            raise  # the limit is of the task that releases the lock: not the entry's fault
        except serialization.ContentDisallowed as exc:
            raise NotOurs(f"its content type, {self.content_type}, is not accepted") from exc
        except Exception as exc:
            raise CorruptEntry(f"{type(exc).__name__}: {exc}") from exc
        try:
            args, kwargs, options = content
            return list(args), dict(kwargs), dict(options)
        except (ValueError, TypeError) as exc:
            raise CorruptEntry(f"{type(exc).__name__}: {exc}") from exc

    def load_for(self, app: Any, unknown: bool = False) -> Waiter:
        """What a worker needs to publish the message. With `unknown` it may be of a task that the
        app does not know, to store its result only. Raises `NotOurs` if another worker must publish
        it, and `CorruptEntry` if it cannot be read.
        """
        task = app.tasks.get(self.task)
        if task is None and not unknown:
            raise NotOurs("this worker does not know the task")
        if task is None:
            task = app.Task()
            task.name = self.task
        args, kwargs, options = self.content(app)
        options["headers"] = headers = dict(options.get("headers") or {})
        header = dict(headers.get(KEY) or {})
        if header.get("broker", broker_of(app)) != broker_of(app):
            raise NotOurs("its message belongs to another broker")
        if is_newer(_STAYS, header.get("v", 1), delivery.VERSION):
            raise NotOurs("a newer release parked it")
        return Waiter(task, args, kwargs, options, header)

    def request(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Context:
        """The request of a waiting task, with the fields that backends read."""
        return Context(
            task=self.task,
            id=self.task_id,
            args=args,
            kwargs=kwargs,
            group=options.get("group_id"),
            callbacks=options.get("link"),
            errbacks=options.get("link_error"),
            delivery_info={"routing_key": options.get("queue")},
            **{
                name: options[name]
                for name in (
                    *("root_id", "parent_id", "group_index", "chord", "chain", "retries"),
                    *("replaced_task_nesting", "ignore_result", "reply_to", "shadow"),
                )
                if name in options
            },
        )
