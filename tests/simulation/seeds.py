"""The seeds that `make check` runs. One that found something is added when that is mended."""

from __future__ import annotations

#: Seeds without faults, and with them.
QUIET, FAULTY = range(5000, 5040), range(5000, 5040)
#: Seeds that once failed, with their flags.
FOUND = (
    # A room that is due again before the next sweep was looked at too late.
    "20156 --faults no --suspensions yes",
    "70026 --faults no",  # who replaced a call, and asked again, ended it again
    "72176 --faults no",  # copies of a call that was replaced in the room ended it, too
    "70156 --faults no",  # a copy ended a run that was replaced, and was storing its result
    "50010 --faults no",  # the pause of a retry that was replaced as it ran
    # A task that lay in a long queue was published many times, and each copy was put off for as
    # long as it ran; the last one, of a lock with two slots.
    "1074",
    "70158 --faults no",
    "20147 --faults no --suspensions yes",
    # What runs again was put off all the time while it was suspended.
    "5000 --suspensions yes",
    # A retry that gave up while it was suspended was published again at once, without end.
    "81007 --faults yes",
    "21084 --faults no --suspensions yes",
    "112",  # a rerun of a suspended lock was put off again and again
    "502",  # each parked task was asked for by itself, every two seconds
    # An outage was logged as an error of ours, with its traceback.
    "452 --with 'fail over'",
    # A cold shutdown left what a retry had reserved, for an hour.
    "313 --faults no --suspensions no --with 'shut down cold'",
    "101117",  # a task that was dropped, and had its lock reserved, was replaced by itself
    "31071 --faults no --suspensions yes",  # a copy ran again after a hard time limit
)
