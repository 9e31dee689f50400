"""Arguments as text and digest: equal ones give the same, on every Python version. Pure."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
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
    types are marked by name. Tuples are written as lists, since they arrive as lists. Raises
    `TypeError` for a type that no serializer of a Celery message would carry unchanged, and for a
    container that contains itself or has hundreds of levels.
    """
    try:
        return _text(value)
    except RecursionError:
        raise TypeError(
            "cannot make a lock key from a container that contains itself, or is nested this deep:"
            " list the arguments that identify the call in lock_key"
        ) from None


def _text(value: Any) -> str:
    # Look up the common types first: this is done for each argument of each run.
    write = _OWN.get(type(value))
    if write is not None:
        return write(value)
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write(value)
    raise TypeError(
        f"cannot make a lock key from a {type(value).__module__}.{type(value).__qualname__} object:"
        " list the arguments that identify the call in lock_key"
    )


def _sequence(value: Iterable[Any]) -> str:
    return f"[{','.join([_text(each) for each in value])}]"


def _mapping(value: Mapping[Any, Any]) -> str:
    items = []
    for key, each in value.items():
        # As `_text` does, without the call: this is done for each argument of each run.
        write_key, write = _OWN.get(type(key)), _OWN.get(type(each))
        key_text = write_key(key) if write_key is not None else _text(key)
        items.append(f"{key_text}:{_text(each) if write is None else write(each)}")
    return f"{{{','.join(sorted(items))}}}"


def _set(value: Iterable[Any]) -> str:
    return f"set[{','.join(sorted([_text(each) for each in value]))}]"


def _float(value: float) -> str:
    return json.dumps(value + 0.0)  # 0.0 and -0.0 are equal: this makes both 0.0


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return f'bytes"{bytes(value).hex()}"'


def _moment(value: datetime | date | time) -> str:
    return f'{type(value).__name__}"{value.isoformat()}"'


def _named(value: uuid.UUID | Decimal) -> str:
    return f'{type(value).__name__}"{value}"'


#: How each type is written. The first match counts: a bool is an int, a datetime a date.
_WRITERS: Final[tuple[tuple[tuple[type[Any], ...], Callable[[Any], str]], ...]] = (
    ((str,), encode_basestring_ascii),  # the same as `json.dumps`, ten times as fast
    ((bool, type(None)), json.dumps),
    ((float,), _float),
    ((int,), int.__repr__),  # the same as `json.dumps`
    ((bytes, bytearray, memoryview), _bytes),
    ((datetime, date, time), _moment),
    ((uuid.UUID, Decimal), _named),
    ((list, tuple), _sequence),
    ((dict, Mapping), _mapping),
    ((set, frozenset), _set),
)
_OWN: Final = {kind: write for kinds, write in _WRITERS for kind in kinds}


def digest(arguments: Mapping[str, Any]) -> str:
    """128 bits of SHA-256 over the canonical arguments, as 32 hex digits."""
    whole: str = sha256(canonical(arguments).encode()).hexdigest()
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
