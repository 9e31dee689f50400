"""The seeds that `make check` runs. One that found something is added when that is mended."""

from __future__ import annotations

#: Seeds without faults, and with them.
QUIET, FAULTY = range(5000, 5040), range(5000, 5040)
#: Seeds that once failed, with their flags; without what plans had not at that time.
FOUND = (
    # A room that is due again before the next sweep was looked at too late.
    "20156 --plain --faults no --suspensions yes",
    "70026 --plain --faults no",  # who replaced a call, and asked again, ended it again
    "72176 --plain --faults no",  # copies of a call that was replaced in the room ended it, too
    "70156 --plain --faults no",  # a copy ended a run that was replaced, and was storing its result
    "50010 --plain --faults no",  # the pause of a retry that was replaced as it ran
    # A task that lay in a long queue was published many times, and each copy was put off for as
    # long as it ran; the last one, of a lock with two slots.
    "1074 --plain",
    "70158 --plain --faults no",
    "20147 --plain --faults no --suspensions yes",
    # What runs again was put off all the time while it was suspended.
    "5000 --plain --suspensions yes",
    # A retry that gave up while it was suspended was published again at once, without end.
    "81007 --plain --faults yes",
    "21084 --plain --faults no --suspensions yes",
    "112 --plain",  # a rerun of a suspended lock was put off again and again
    "502 --plain",  # each parked task was asked for by itself, every two seconds
    # An outage was logged as an error of ours, with its traceback.
    "452 --plain --with 'fail over'",
    # A cold shutdown left what a retry had reserved, for an hour.
    "313 --plain --faults no --suspensions no --with 'shut down cold'",
    "101117 --plain",  # a task that was dropped, and had its lock reserved, was replaced by itself
    "31071 --plain --faults no --suspensions yes",  # a copy ran again after a hard time limit
    "215635298 --plain",  # a copy met the pause after its own run, and was skipped for it
    "401163 --plain",  # a run in its pause was taken for one that goes on elsewhere
    "401714 --plain",  # a copy of what had lain in its worker ran again after a time limit
    "501638",  # what waited in a pool slot kept its place, as not taken
    "401967 --plain",  # who gave up just after its message was sent was sent another one
    "71163273",  # a soft time limit in a release, which is repeated, was logged as a fault of ours
    # Each copy of what lay in a long queue failed it again, as they came at the same time.
    "207634819",
    # A copy whose time was over only by the lock server's clock was published again and again.
    "207635110",
    # One that found a suspended lock's room full gave up its reservation before it ended.
    "229099228",
    # A limit fell, and a copy of what had waited in a room ran beside its own run.
    "57444580",
    # A kept lock was taken in vain, as no replica confirmed; its pause turned its own retry away.
    "164869866",
    "300001893",  # a bounded wait under a suspension gave up late
    "164870362",  # two locks that were broken left a list for an hour, which wakes nobody
    "700260",  # a suspended task without a lock was skipped: its message was too large to wait
)
