"""From a call's arguments to the name and the keys of its lock. Pure.

One call has one name wherever it is computed: at the sender before publishing, in the worker's
main process, and in the pool; on every Python version; whichever way the arguments are passed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import string
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple

from .errors import ConfigError

#: The version of the digest's schema, part of every digest name. Raise it with any change below.
SCHEMA: Final = "v1"

#: Hash tags, and so fence counters. Fixed for ever: two versions must agree on a lock's key.
BUCKETS: Final = 1024

Signature = inspect.Signature
Normalise = Callable[[Any], Any]


class LockKeys(NamedTuple):
    """The keys of one lock. All stand in one hash slot.

    `fence` is shared by all the locks of the bucket, so that a counter which outlives its
    lock costs nothing per lock. So is `rooms`, in which those are found where somebody waits, by
    their `mark`. A lock that several may hold has `slots` beside `lock`, one for each more.
    """

    name: str
    lock: str
    fence: str
    waiters: str
    wake: str
    broken: str
    done: str
    deferred: str
    room: str
    entries: str
    rooms: str
    ended: str
    corrupt: str
    slots: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """What it takes to find these keys again."""
        return f"{len(self.slots) + 1}|{self.name}"

    def done_by(self, entry_id: str) -> str:
        """The key that says: this attempt of this task has run under this lock."""
        return f"{self.done}:{entry_id}"


def lock_keys(prefix: str, name: str, limit: int = 1) -> LockKeys:
    """The Redis keys of the lock with that name, which so many may hold at once."""
    bucket = zlib.crc32(name.encode("utf-8", "surrogatepass")) % BUCKETS
    head = f"{prefix}:{{{bucket}}}"
    return LockKeys(
        name,
        f"{head}:lock:{name}",
        f"{head}:fence",
        f"{head}:waiters:{name}",
        f"{head}:wake:{name}",
        f"{head}:broken:{name}",
        f"{head}:done:{name}",
        f"{head}:deferred",
        f"{head}:room:{name}",
        f"{head}:entries:{name}",
        f"{head}:rooms",
        f"{head}:ended:{name}",
        f"{head}:corrupt:{name}",
        () if limit == 1 else tuple(f"{head}:lock{n}:{name}" for n in range(2, limit + 1)),
    )


def keys_of_mark(prefix: str, mark: str) -> LockKeys:
    """The keys that gave this mark."""
    limit, _, name = mark.partition("|")
    return lock_keys(prefix, name, int(limit))


def lock_pattern(prefix: str) -> str:
    """A pattern, as `SCAN` takes it, of all keys that say who holds a lock or waits for one, and
    which were broken.
    """
    literal = re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix)
    return f"{literal}:{{*}}:[blrw]*"


def key_parts(prefix: str, key: bytes) -> tuple[str, str] | None:
    """What kind of key it is, such as "lock", "lock2" or "room", and the lock's name; or None if it
    is none of ours.
    """
    head, _, rest = key.partition(b"}:")
    kind, colon, name = rest.partition(b":")
    bucket = zlib.crc32(name) % BUCKETS
    if not colon or head != f"{prefix}:{{{bucket}".encode():
        return None
    try:
        return kind.decode(), name.decode()
    except UnicodeDecodeError:
        return None


def all_rooms(prefix: str) -> list[str]:
    """The keys of the buckets' rooms, one for each bucket."""
    return [f"{prefix}:{{{bucket}}}:rooms" for bucket in range(BUCKETS)]


def canonical(value: Any) -> str:
    """A text that is the same for equal values and differs for different ones.

    A JSON-like grammar: what JSON has is written as JSON, with a mapping's items in order;
    other types are marked by name. Tuples are lists, as they arrive as lists.

    Raises:
        TypeError: a type that no serializer of a Celery message would carry unchanged.
    """
    # The common types are found at once: this is done for each argument of each run.
    write = _BY_TYPE.get(type(value)) or _writer_for(value)
    return write(value)


def _writer_for(value: Any) -> Callable[[Any], str]:
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write
    raise TypeError(
        f"cannot make a lock key of a {type(value).__module__}.{type(value).__qualname__}:"
        " set lock_key to name the arguments that identify the call"
    )


def _sequence(value: Iterable[Any]) -> str:
    return f"[{','.join(map(canonical, value))}]"


def _mapping(value: Mapping[Any, Any]) -> str:
    items = sorted([f"{canonical(k)}:{canonical(v)}" for k, v in value.items()])
    return f"{{{','.join(items)}}}"


def _set(value: Iterable[Any]) -> str:
    return f"set[{','.join(sorted(map(canonical, value)))}]"


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return f'bytes"{bytes(value).hex()}"'


def _moment(value: datetime | date | time) -> str:
    return f'{type(value).__name__}"{value.isoformat()}"'


def _named(value: uuid.UUID | Decimal) -> str:
    return f'{type(value).__name__}"{value}"'


#: How each type is written. The first that fits: a bool is an int, a datetime a date.
_WRITERS: Final[tuple[tuple[tuple[type[Any], ...], Callable[[Any], str]], ...]] = (
    ((str,), encode_basestring_ascii),  # what `json.dumps` comes to, ten times as fast
    ((bool, type(None), float), json.dumps),
    ((int,), int.__repr__),  # the same
    ((list, tuple), _sequence),
    ((dict, Mapping), _mapping),
    ((set, frozenset), _set),
    ((bytes, bytearray, memoryview), _bytes),
    ((datetime, date, time), _moment),
    ((uuid.UUID, Decimal), _named),
)
_BY_TYPE: Final = {kind: write for kinds, write in _WRITERS for kind in kinds}


def digest(arguments: Mapping[str, Any]) -> str:
    """128 bits of SHA-256 over the canonical arguments, as 32 hex digits."""
    return hashlib.sha256(canonical(arguments).encode()).hexdigest()[:32]


class KeyMaker:
    """Makes the lock names of one task's calls.

    Args:
        task: the task's name.
        function: what the task runs, for its signature.
        lock_key: the option of that name.
        normalise: carries a value through the task's serializer and back, so that a default
            of the signature is what it would be had it been sent.

    Raises:
        ConfigError: `lock_key` does not fit the signature.
    """

    def __init__(
        self,
        task: str,
        function: Callable[..., Any],
        lock_key: str | Sequence[str] | Callable[..., Any] | None,
        normalise: Normalise,
    ) -> None:
        self._task = task
        self._signature = inspect.signature(function)
        self._outer = inspect.signature(function, follow_wrapped=False)
        self._defaults = {
            name: _default(name, parameter.default, normalise)
            for name, parameter in self._signature.parameters.items()
            if parameter.default is not parameter.empty
        }
        #: Whether a name depends on which argument is which.
        self.binds = not callable(lock_key)
        self._kwargs_name = _name_of_kind(self._signature, inspect.Parameter.VAR_KEYWORD)
        self._names = _plain_names(self._signature)
        self._name: Callable[[tuple[Any, ...], Mapping[str, Any]], str]
        if lock_key is None:
            self._name = self._by_all_arguments
        elif isinstance(lock_key, str):
            self._template = lock_key
            fields = _template_fields(task, lock_key)
            if not fields and lock_key in self._signature.parameters:
                raise ConfigError(
                    f"task {task}: lock_key={lock_key!r} is one lock for all calls, and the name"
                    f" of an argument; did you mean lock_key=[{lock_key!r}] or '{{{lock_key}}}'?"
                )
            self._check(fields)
            self.binds = bool(fields)
            self._name = self._by_template
        elif callable(lock_key):
            _check_callable(task, lock_key, self._outer)
            self._callable = lock_key
            self._name = self._by_callable
        else:
            self._chosen = tuple(lock_key)
            self._check(self._chosen)
            self._name = self._by_chosen_arguments

    def name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The lock's name for a call with these arguments, as they arrive at the worker.

        Raises:
            TypeError: the arguments do not fit the task's signature.
            Exception: whatever a `lock_key` callable raises.
        """
        return self._name(tuple(args), kwargs)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that go into the name, with those that the call leaves to their defaults.

        Raises:
            TypeError: the arguments do not fit the task's signature.
        """
        if self._name == self._by_callable:
            return dict(self._outer.bind(*args, **kwargs).arguments)
        bound = self._flat(tuple(args), kwargs)
        if self._name == self._by_chosen_arguments:
            return {name: bound[name] for name in self._chosen if name in bound}
        if self._name == self._by_template:
            fields = _template_fields(self._task, self._template)
            return {name: bound[name] for name in fields if name in bound}
        return self._bind(tuple(args), kwargs)

    def _by_all_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return self._digest_name(self._bind(args, kwargs))

    def _by_chosen_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        bound = self._flat(args, kwargs)
        # An argument of **kwargs that this call leaves out has no entry, and so its own key.
        return self._digest_name({n: bound[n] for n in self._chosen if n in bound})

    def _by_template(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        arguments = self._flat(args, kwargs)
        try:
            name = self._template.format_map(arguments)
        except (LookupError, AttributeError, TypeError) as exc:
            raise ValueError(
                f"{self._task}: lock_key={self._template!r} does not fit this call: {exc!r}"
            ) from exc
        return self._checked(name)

    def _by_callable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return self._checked(self._callable(*args, **kwargs))

    def _checked(self, name: Any) -> str:
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"{self._task}: lock_key gave {name!r} for this call; it must give a non-empty str"
            )
        return name

    def _digest_name(self, arguments: Mapping[str, Any]) -> str:
        return f"{self._task}:{SCHEMA}:{digest(arguments)}"

    def _flat(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = self._bind(args, kwargs)
        extra = bound.get(self._kwargs_name) if self._kwargs_name else None
        return {**extra, **bound} if extra else bound

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self._names
        if names and (not kwargs or kwargs.keys() <= {*names[len(args) :]}):
            # What `bind` would come to, in a fifth of the time.
            arguments = {**self._defaults, **dict(zip(names, args, strict=False)), **kwargs}
            if len(arguments) == len(names) >= len(args):
                return arguments
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            # A decorator may take other arguments than the function that it wraps.
            return dict(self._outer.bind(*args, **kwargs).arguments)
        return {**self._defaults, **bound.arguments}

    def _check(self, names: Sequence[str]) -> None:
        known = self._signature.parameters
        for name in names:
            if name not in known and not self._kwargs_name:
                raise ConfigError(
                    f"task {self._task}: lock_key names {name!r}, which is no argument of the"
                    f" task; its arguments are: {', '.join(known) or 'none'}"
                )


def _default(name: str, value: Any, normalise: Normalise) -> Any:
    """A parameter's default as it would arrive, had the caller passed it."""
    dump = getattr(type(value), "model_dump", None)
    try:
        if dump is not None and not hasattr(type(value), "__json__"):
            value = dump(value, mode="json")  # as Celery sends a pydantic model
        value = normalise(value)
        canonical(value)
    except Exception:  # whatever a serializer raises for what it cannot carry
        # No caller can send this value, so its name can stand for it.
        return {"__default__": name}
    return value


def _name_of_kind(signature: Signature, kind: Any) -> str | None:
    return next((p.name for p in signature.parameters.values() if p.kind is kind), None)


def _plain_names(signature: Signature) -> tuple[str, ...]:
    """The parameters' names, if each may be given by its position or by its name; else nothing."""
    parameters = signature.parameters.values()
    plain = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    return tuple(signature.parameters) if plain else ()


def _template_fields(task: str, template: str) -> list[str]:
    where = f"task {task}: lock_key={template!r}"
    try:
        names = [field.replace("[", ".").split(".")[0] for field in _fields(template)]
    except ValueError as exc:
        raise ConfigError(
            f"{where} is not a str.format template: {exc}; it must be one such as"
            " 'account:{account_id}'"
        ) from None
    if any(not name or name.isdigit() for name in names):
        raise ConfigError(f"{where}: fields must be named, as in '{{account_id}}'")
    return names


def _fields(template: str) -> Iterator[str]:
    """The fields of a template, also those within a format."""
    for _, field, spec, conversion in string.Formatter().parse(template):
        if field is None:
            continue
        if conversion not in (None, "a", "r", "s"):
            raise ValueError(f"unknown conversion {conversion!r}")
        yield field
        yield from _fields(spec or "")


def _check_callable(task: str, function: Callable[..., Any], calls: Signature) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    if next(iter(signature.parameters), None) == "self":
        raise ConfigError(
            f"task {task}: lock_key's callable is given the call's own arguments and no self;"
            " accepted is a callable without one"
        )
    if not _some_call_fits(calls, signature):
        raise ConfigError(
            f"task {task}: lock_key's callable takes {signature}, which no call of the task fits;"
            " accepted is one for the call's own arguments, which are:"
            f" {', '.join(calls.parameters) or 'none'}"
        )


def _some_call_fits(task: Signature, other: Signature) -> bool:
    """Whether any call that the task accepts is one that the other accepts as well."""
    parameters = task.parameters.values()
    kinds = {p.kind for p in parameters}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    most = len(positional)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        most += len(other.parameters)
    for count in range(most + 1):
        args = (None,) * count
        left = [*positional[count:], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
        must = {p.name for p in left if p.default is p.empty}
        may = {p.name for p in left if p.kind is not p.POSITIONAL_ONLY}
        if not must <= may:
            continue
        try:
            # Beside what it must pass, let the call pass just what the other still asks for.
            asked = set(_names_left(other, other.bind_partial(*args).arguments))
            if inspect.Parameter.VAR_KEYWORD in kinds:
                may |= asked
            other.bind(*args, **dict.fromkeys(must | (asked & may)))
        except TypeError:
            continue
        return True
    return False


def _names_left(signature: Signature, bound: Mapping[str, Any]) -> Iterator[str]:
    """The arguments without a default that are not bound, and can be passed by name."""
    for p in signature.parameters.values():
        by_name = p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if by_name and p.default is p.empty and p.name not in bound:
            yield p.name
