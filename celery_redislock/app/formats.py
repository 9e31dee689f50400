"""The formats of what other releases write too: messages' headers, and entries of waiting rooms.

Each text says the version of its format as "v"; without that it is the first. A release reads its
own version and all earlier ones, and passes over fields that it does not know: so it may get new
fields under the same version, if it does no harm to ignore them. Else the version rises. A text of
a later version is left to a newer worker, whatever it says.

`protocol.holders` has the same rule for the values of locks.
"""

from __future__ import annotations

from typing import Any, Final

from ..protocol.holders import one_line
from ..protocol.log import logger

#: The kinds of text that this process has warned of.
_warned: Final[set[str]] = set()


def is_newer(what: str, version: Any, known: int) -> bool:
    """Whether a version is newer than this release reads. Warns once of each kind (`what`)."""
    if isinstance(version, int) and version <= known:
        return False
    if what not in _warned:
        _warned.add(what)
        logger.warning(
            "redislock: a newer celery-redislock wrote %s: its format is of version %s, and this"
            " release reads up to version %d. Upgrade this process",
            what, one_line(str(version)), known,
        )  # fmt: skip
    return True
