"""Arguments as text and digest: equal ones give the same, on every Python version. Pure."""

from __future__ import annotations

import json
import operator
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from itertools import chain
from json.encoder import encode_basestring_ascii
from typing import Any, Final

# The interpreter's own, as in `random`. OpenSSL's is looked up at each call, by much code that is
# cold in a worker: it takes longer than all else that makes a digest. Python 3.12 renamed it.
try:
    from _sha2 import sha256  # type: ignore[import-not-found]
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]
    except ImportError:  # an interpreter without it
        from hashlib import sha256

#: The version of the digest's schema, part of every digest name. Raise it with any change below.
SCHEMA: Final = "v1"
#: Compiled at its first use: only programs that show locks take their names apart.
_DIGEST_NAME: Final = rf"(?s)(.*):{SCHEMA}:([0-9a-f]{{32}})"


def canonical(value: Any) -> str:
    """A text that is the same for equal values and differs for different ones.

    It is like JSON: the types of JSON are written as JSON, with a mapping's items in order; other
    types are marked by name. Tuples are written as lists, since they arrive as lists. Values may be
    nested to any depth.

    Raises:
        TypeError: a type that no serializer of a Celery message would carry unchanged, or a
            container that contains itself.
    """
    return _text(value, _SHALLOW)


def _text(value: Any, levels: int) -> str:
    """The text of a value. Recursion, the fastest way, writes its first `levels` levels."""
    # Look up the common types first: this is done for each argument of each run.
    write = _PLAIN.get(type(value))
    if write is not None:
        return write(value)
    write_all = _CONTAINERS.get(type(value))
    if write_all is None:
        for kinds, write in _WRITERS:
            if isinstance(value, kinds):
                return write(value)
        write_all = _container(value)
    return write_all(value, levels - 1) if levels else _deep_text(value)


def _container(value: Any) -> Callable[[Any, int], str]:
    for kinds, write_all in _NESTED:
        if isinstance(value, kinds):
            return write_all
    raise TypeError(
        f"cannot make a lock key from a {type(value).__module__}.{type(value).__qualname__} object:"
        " list the arguments that identify the call in lock_key"
    )


def _sequence(value: Iterable[Any], levels: int) -> str:
    return f"[{','.join([_text(each, levels) for each in value])}]"


def _mapping(value: Mapping[Any, Any], levels: int) -> str:
    items = []
    for key, each in value.items():
        # As `_text` does, without the call: this is done for each argument of each run.
        write_key, write = _PLAIN.get(type(key)), _PLAIN.get(type(each))
        key_text = write_key(key) if write_key is not None else _text(key, levels)
        items.append(f"{key_text}:{_text(each, levels) if write is None else write(each)}")
    return f"{{{','.join(sorted(items))}}}"


def _set(value: Iterable[Any], levels: int) -> str:
    return f"set[{','.join(sorted([_text(each, levels) for each in value]))}]"


class _Written:
    """Takes the place of a container whose text is already written."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Level:
    """A container whose inner containers are written before it."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._write_all = _container(value)
        self._is_mapping = isinstance(value, Mapping)
        self._contents = list(chain.from_iterable(value.items()) if self._is_mapping else value)
        self._at = 0

    def next_container(self) -> Any:
        """The next inner container that is not yet written, or None."""
        contents = self._contents
        while self._at < len(contents) and isinstance(contents[self._at], _ALL_PLAIN):
            self._at += 1
        return contents[self._at] if self._at < len(contents) else None

    def put(self, written: _Written) -> None:
        """Replace that inner container by its text."""
        self._contents[self._at] = written

    def text(self) -> str:
        """The whole text, once all containers in it are written."""
        contents: Any = self._contents
        if self._is_mapping:
            contents = dict(zip(contents[::2], contents[1::2], strict=True))
        return self._write_all(contents, 1)


def _deep_text(value: Any) -> str:
    """The text of a container with any number of levels, without recursion."""
    path = [_Level(value)]
    open_ids = {id(value)}
    while True:
        inner = path[-1].next_container()
        if inner is not None:
            if id(inner) in open_ids:
                raise TypeError("cannot make a lock key from a container that contains itself")
            path.append(_Level(inner))
            open_ids.add(id(inner))
            continue
        level = path.pop()
        open_ids.discard(id(level.value))
        if not path:
            return level.text()
        path[-1].put(_Written(level.text()))


def _float(value: float) -> str:
    return json.dumps(value + 0.0)  # 0.0 and -0.0 are equal: this makes both 0.0


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return f'bytes"{bytes(value).hex()}"'


def _moment(value: datetime | date | time) -> str:
    return f'{type(value).__name__}"{value.isoformat()}"'


def _named(value: uuid.UUID | Decimal) -> str:
    return f'{type(value).__name__}"{value}"'


#: How each plain type is written. The first match counts: a bool is an int, a datetime a date.
_WRITERS: Final[tuple[tuple[tuple[type[Any], ...], Callable[[Any], str]], ...]] = (
    ((str,), encode_basestring_ascii),  # the same as `json.dumps`, ten times as fast
    ((bool, type(None)), json.dumps),
    ((float,), _float),
    ((int,), int.__repr__),  # the same as `json.dumps`
    ((bytes, bytearray, memoryview), _bytes),
    ((datetime, date, time), _moment),
    ((uuid.UUID, Decimal), _named),
    ((_Written,), operator.attrgetter("text")),
)
_PLAIN: Final = {kind: write for kinds, write in _WRITERS for kind in kinds}
_ALL_PLAIN: Final = (*_PLAIN,)

#: How each container is written.
_NESTED: Final[tuple[tuple[tuple[type[Any], ...], Callable[[Any, int], str]], ...]] = (
    ((list, tuple), _sequence),
    ((dict, Mapping), _mapping),
    ((set, frozenset), _set),
)
_CONTAINERS: Final = {kind: write for kinds, write in _NESTED for kind in kinds}
#: How many levels recursion writes.
_SHALLOW: Final = 20


def digest(arguments: Mapping[str, Any]) -> str:
    """128 bits of SHA-256 over the canonical arguments, as 32 hex digits."""
    whole: str = sha256(_text(arguments, _SHALLOW).encode()).hexdigest()
    return whole[:32]


def digest_name(task: str, arguments: Mapping[str, Any]) -> str:
    """The name of a task's lock for these arguments."""
    return f"{task}:{SCHEMA}:{digest(arguments)}"


def parts_of(name: str) -> tuple[str, str] | None:
    """The task and the digest in a lock's name, or None if the name is of another form."""
    match = re.fullmatch(_DIGEST_NAME, name)
    return (match[1], match[2]) if match else None


def task_in(name: str) -> str | None:
    """The task in a lock's name, or None if the name is of another form."""
    parts = parts_of(name)
    return parts and parts[0]
