"""A store that stands in for every lock server of this process. In production there is none.

See `testing`, which sets it.
"""

from __future__ import annotations

from typing import NamedTuple

from .store import Store


class StandIn(NamedTuple):
    """What stands in.

    Attributes:
        store: where all locks are taken.
        eager: eager calls take them, too, whatever the apps' settings say.
    """

    store: Store
    eager: bool


#: What stands in now, or None.
current: StandIn | None = None
