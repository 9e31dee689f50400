"""The demo's command: its options, its exit status, and its deadline."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from . import scenes
from .figures import Figures, figures_of
from .interrupts import Interrupted, Interrupts, TooLate
from .screen import PlainScreen, RecordingScreen, Screen
from .stage import (
    NoPageError,
    NoRedisError,
    Stage,
    StageError,
    find_redis_server,
    require_page,
    shield,
)
from .story import Story

#: Seconds after which the story is aborted. It takes little more than 20 on a quiet machine.
_DEADLINE: Final = 90.0

#: Terminals on which nothing can be drawn.
_DUMB: Final = ("dumb", "unknown")

#: For how long jobs go on with --web, in words.
_MINUTES: Final = f"{scenes.GOES_ON_FOR / 60:g} minutes"
#: What one sees on the page after the demo.
_GOES_ON: Final = f"""
The page stays up: {{url}}

"What happened" has the runs of the demo. Choose "1 min" or "5 min" above it to
enlarge them. The run that was killed is red. Numbers tell how many duplicates
were skipped. "Now" shows who holds each lock, and the lease.
The jobs go on, and the page changes with them:
  report    runs for three seconds; what beat fires meanwhile is skipped
  sync      one at a time for each of three accounts; the others are deferred
  import    one runs, and one waits behind it
The same in another terminal, in this folder:
  export REDISLOCK_DEMO_URL={{server}}
  .venv/bin/celery -A examples.demo.tasks redislock watch
All of it ends after {_MINUTES}, or when you press Ctrl-C."""

_HOLDS, _DOES_NOT_HOLD, _CANNOT_START = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.web and options.json:
        parser.error("argument --web: not allowed with argument --json")
    try:
        return _run(options)
    except (NoRedisError, NoPageError) as exc:
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
        " workers and beat. Exit status 0 only if the figures at the end hold; 128 and the"
        " signal's number if a signal ended it before, so 130 for Ctrl-C.",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--plain", action="store_true", help="a line for each event, no drawing")
    how.add_argument("--json", action="store_true", help="nothing but the figures, for machines")
    how.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write what happened to a file, from which `make pictures` draws the home page's"
        " picture; nothing is written if the figures do not hold",
    )
    parser.add_argument(
        "--web",
        action="store_true",
        help="also serve the page of `celery redislock web`, on a free port of 127.0.0.1, and let"
        f" jobs go on after the figures: until Ctrl-C, which is no failure then, or for {_MINUTES};"
        " needs the extra web",
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    interrupts = Interrupts(_DEADLINE)
    redis_server = find_redis_server()
    if options.web:
        require_page()
    interrupts.listen()
    shield(os.environ)
    ended = ""
    screen = make_screen(plain=options.plain, quiet=options.json)
    if options.record:
        screen = RecordingScreen(options.record)
    with Stage(redis_server) as stage:
        story = Story(stage, screen, interrupts, web=options.web)
        figures = _play(story, screen)
        screen.summary(figures)
        if options.web and not figures.problems:
            try:
                ended = keep_up(story, screen, interrupts)
            except StageError as exc:
                figures = dataclasses.replace(figures, problems=[str(exc)])
        logs = stage.tails() if figures.problems else []
    if ended:
        screen.note(f"\n{ended}; nothing remains.")
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


def _play(story: Story, screen: Screen) -> Figures:
    trouble = []
    with screen:
        try:
            story.play()
        except (StageError, TooLate) as exc:
            trouble.append(f"{exc}, while waiting until {story.pending}")
    return figures_of(story.history, trouble)


def keep_up(story: Story, screen: Screen, interrupts: Interrupts) -> str:
    """Let jobs go on for those who look at the page, and return what ended it.

    Raises:
        Interrupted: a signal other than that of Ctrl-C, which is how one ends this.
        StageError: a process has ended before its time.
    """
    screen.note(_GOES_ON.format(url=story.page_url, server=story.server_url))
    interrupts.prolong(scenes.GOES_ON_FOR)
    try:
        story.go_on()
    except TooLate:
        return f"The {_MINUTES} are over"
    except Interrupted as exc:
        if exc.signum != signal.SIGINT:
            raise
        return "Ended by Ctrl-C"


if __name__ == "__main__":
    sys.exit(main())
