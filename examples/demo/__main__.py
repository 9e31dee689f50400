"""The demo's command: its options, its exit status, and its deadline."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from .figures import Figures, figures_of
from .interrupts import Interrupted, Interrupts, TooLate
from .screen import PlainScreen, Screen
from .stage import NoRedisError, Stage, StageError, find_redis_server, shield
from .story import Story

#: Seconds after which the story is aborted. It takes little more than 20 on a quiet machine.
_DEADLINE: Final = 90.0

#: Terminals on which nothing can be drawn.
_DUMB: Final = ("dumb", "unknown")

_HOLDS, _DOES_NOT_HOLD, _CANNOT_START = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except NoRedisError as exc:
        print(f"The demo cannot start: {exc}", file=sys.stderr)
        return _CANNOT_START
    except Interrupted as exc:
        print(f"\nEnded by {signal.Signals(exc.signum).name}; nothing remains.", file=sys.stderr)
        return 128 + exc.signum
    except BrokenPipeError:
        # Nobody reads any more. Python would complain when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _DOES_NOT_HOLD


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Shows the locks at work for half a minute: an embedded Redis, two prefork"
        " workers and beat. Exit status 0 only if the figures at the end hold.",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--plain", action="store_true", help="a line for each event, no drawing")
    how.add_argument("--json", action="store_true", help="nothing but the figures, for machines")
    return parser


def _run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    interrupts = Interrupts(_DEADLINE)
    redis_server = find_redis_server()
    interrupts.listen()
    shield(os.environ)
    screen = make_screen(plain=options.plain, quiet=options.json)
    with Stage(redis_server) as stage:
        figures = _play(stage, screen, interrupts)
        logs = stage.tails() if figures.problems else []
    screen.summary(figures)
    if options.json:
        print(json.dumps({**figures.to_dict(), "seconds": round(time.monotonic() - started, 1)}))
    if figures.problems:
        broken = [f"DOES NOT HOLD: {problem}" for problem in figures.problems]
        print(*broken, *logs, sep="\n", file=sys.stderr)
    return _DOES_NOT_HOLD if figures.problems else _HOLDS


def make_screen(*, plain: bool, quiet: bool) -> Screen:
    """The best screen for this output.

    Args:
        plain: draw no timeline, even if it could be.
        quiet: show nothing.
    """
    if quiet:
        return Screen()
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") in _DUMB:
        return PlainScreen(sys.stdout)
    try:
        from .timeline import LiveScreen
    except ImportError:
        print("There is a timeline to see with rich (pip install rich). Without it, in words:\n")
        return PlainScreen(sys.stdout)
    return LiveScreen()


def _play(stage: Stage, screen: Screen, interrupts: Interrupts) -> Figures:
    story = Story(stage, screen, interrupts)
    trouble = []
    with screen:
        try:
            story.play()
        except (StageError, TooLate) as exc:
            trouble.append(f"{exc}, while waiting until {story.pending}")
    return figures_of(story.history, trouble)


if __name__ == "__main__":
    sys.exit(main())
