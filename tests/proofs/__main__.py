"""`python -m tests.proofs`, or `make proofs ARGS=...`: runs the proofs at length. See README.md."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from tests.support.ending import end_all_with_this_process

from . import harness
from .failovers import Failovers
from .faults.cases import Faults
from .faults.checker import check
from .faults.soak import Soak
from .history import read
from .hosts.proof import Hosts

PROOFS = {each.name: each for each in (Faults(), Soak(), Hosts(), Failovers())}
HELP = """\
python -m tests.proofs [--help] [PROOF [OPTION...]]: without a PROOF all faults, and then the hosts

{proofs}
check: judges the history of a fault or soak again
  python -m tests.proofs check HISTORY

What each proves: tests/proofs/README.md"""


def main(arguments: Sequence[str]) -> int:
    """Run a proof. 1 if anything is wrong."""
    if not arguments:
        return max(harness.main(PROOFS[name], []) for name in ("faults", "hosts"))
    name, *others = arguments
    if name in PROOFS:
        return harness.main(PROOFS[name], others)
    if name == "check":
        return check_again(*others)
    usages = (f"{p.name}: {p.about}\n  {harness.usage(p)}" for p in PROOFS.values())
    print(HELP.format(proofs="\n".join(usages)))
    return int(name not in ("-h", "--help"))


def check_again(path: str) -> int:
    """Judge a case's history that was kept."""
    violations = check(read(path)).violations
    print("\n".join(map(str, violations)) or "nothing is wrong")
    return int(bool(violations))


if __name__ == "__main__":
    end_all_with_this_process()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)  # also where a shell had it ignored
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted")
