"""The seeds that `make check` runs. One that found something is added when that is mended."""

from __future__ import annotations

#: Seeds without faults, and with them.
QUIET, FAULTY = range(5000, 5040), range(5000, 5040)
#: Those among them that find what is known, and not mended yet.
KNOWN: dict[int, str] = {}
#: Seeds that once failed, and how they are run.
FOUND = (
    (20156, ""),  # a room that is due again before the next sweep was looked at too late
    (70026, "--faults no"),  # who replaced a call, and asked again, ended it again
    (72176, "--faults no"),  # copies of a call that was replaced in the room ended it, too
    (70156, "--faults no"),  # a copy ended a run that was replaced, and was storing its result
    (31071, "--faults no --suspensions yes"),  # a copy ran again after a hard time limit
    (50010, "--faults no"),  # the pause of a retry that was replaced as it ran
)
