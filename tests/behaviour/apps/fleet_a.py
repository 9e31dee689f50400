"""Fleet a."""

from __future__ import annotations

from .bodies import CONF
from .fleets import fleet

app = fleet("a", CONF)
