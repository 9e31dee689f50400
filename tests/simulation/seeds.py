"""The seeds that `make check` runs. One that found something is added when that is mended."""

from __future__ import annotations

#: Seeds without faults, and with them.
QUIET, FAULTY = range(5000, 5040), range(5000, 5040)
#: Those among them that find what is known, and not mended yet.
KNOWN = {
    5000: "a call that is replaced as it is published is ended twice",
    5003: "a pause ends with the run's retry",
    5005: "a pause ends with the run's retry",
    5019: "a call that is replaced as it is published is ended twice",
    5024: "a pause ends with the run's retry",
    5025: "a pause ends with the run's retry",
    5034: "a call that is replaced as it is published is ended twice",
}
#: Seeds that once failed.
FOUND: tuple[int, ...] = ()
