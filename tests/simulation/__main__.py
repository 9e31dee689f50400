"""Run courses: python -m tests.simulation [--seed N | --seeds A:B | --minutes M] [--trace]."""

from __future__ import annotations

from . import (
    interpreter,
    run,
)

if __name__ == "__main__":
    run.main(interpreter.real_time)
