"""Run courses: python -m tests.simulation [--seed N | --seeds A:B | --minutes M] [--trace]; or hunt
for faults that are planted: --mutants.
"""

from __future__ import annotations

import sys


def main() -> None:
    if "--mutants" in sys.argv:
        from . import mutants

        mutants.main()
        return
    from . import interpreter, planted  # before the package, and what that imports

    planted.plant_by(sys.argv)
    from . import run

    run.main(interpreter.real_time)


if __name__ == "__main__":
    main()
