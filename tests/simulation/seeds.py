"""The seeds that `make check` runs. One that found something is added when that is mended."""

from __future__ import annotations

#: Seeds without faults, and with them.
QUIET, FAULTY = range(5000, 5060), range(5000, 5060)
#: Seeds that once failed.
FOUND: tuple[int, ...] = ()
