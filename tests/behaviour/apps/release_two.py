"""The release after the change that the test names."""

from __future__ import annotations

from .bodies import CONF
from .releases import release

app = release(2, CONF["test_change"], CONF)
