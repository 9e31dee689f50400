"""The seeds that `make check` runs. One that found something is added when that is mended."""

from __future__ import annotations

#: Seeds without faults, and with them.
QUIET, FAULTY = range(5000, 5040), range(5000, 5040)
#: Those among them that find what is known, and not mended yet.
KNOWN = {
    5000: "a pause ends with the run's retry",
    5003: "a pause ends with the run's retry",
    5005: "a pause ends with the run's retry",
    5024: "a retry stays RETRY",
    5030: "a replaced call is ended twice",
    5034: "a replaced call with a result is ended twice",
    5038: "a pause ends with the run's retry",
}
#: Seeds that once failed.
FOUND: tuple[int, ...] = ()
