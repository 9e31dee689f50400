"""The benchmarks: ours beside the peers, in one run, in ratios.

    python -m bench                     # everything: `make bench`
    python -m bench primitive celery    # these sections
    python -m bench --quick             # some minutes, to see that everything works

The whole form writes its figures into the documents. The quick one compares its ratios with those
that are published, and writes nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from tests.support.figures import write_section

from . import compare, plot, report
from .section import Run
from .surroundings import in_words, surroundings

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "bench" / "RESULTS.md"
FOLDER = ROOT / "bench" / "results"
#: What people read of each section, by its name. Each is a module with a `measure`.
SECTIONS = {
    "primitive": "acquire and release, uncontended, beside five locks and the floor",
    "contended": "one lock and many processes, beside the locks that wait",
    "tasks": "publishing and draining tasks that do nothing, beside the other packages",
    "storm": "thousands of duplicates of one running task, for each policy",
    "hand_over": "from the end of a run to the start of the one that came meanwhile",
    "heartbeats": "thousands of locks held by one process",
    "keys": "a million distinct keys: memory, and what is left",
    "notes": "what is kept about tasks that have ended: how many notes, for how long",
    "growth": "a million held locks, 10,000 rooms, 100,000 tasks in one room: what grows",
    "load": "100 workers at once, on a server with much in it, and on a cluster of three nodes",
    "imports": "importing the package, beside what it uses of Celery and redis-py",
    "market": "listers and buyers, table 6.2 of Redis in Action",
}
#: The columns of the terminal that the widest table needs.
WIDTH = 150


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, _end)  # as Ctrl-C: leave no process behind
    console = Console(width=WIDTH, highlight=False)
    compared: list[compare.Compared] = []
    others: dict[str, None] = {}
    for name in options.section or SECTIONS:
        began = time.monotonic()
        facts = surroundings(name)

        def say(line: str, name: str = name, began: float = began) -> None:
            print(f"[{name} {time.monotonic() - began:5.1f} s] {line}", flush=True)

        say(SECTIONS[name])
        tables = import_module(f"bench.{name}").measure(Run(options.quick, options.only, say))
        for table in tables:
            show(console, table)
        console.print(f"  {in_words(facts)}\n", style="dim", markup=False)
        if options.quick and (published := compare.read(FOLDER, name)):
            compared += compare.compare(name, tables, published)
            others.update(dict.fromkeys(compare.differences(facts, published["surroundings"])))
        if options.output is not None:
            write(tables, facts, options.output)
        if options.documents:
            publish(tables, facts)
    if options.quick:
        show_compared(console, compared, list(others))
    return 0


def show(console: Console, table: report.Table) -> None:
    console.print(report.terminal(table))
    for note in table.notes:
        console.print(f"  {note}", style="dim", markup=False)


def show_compared(
    console: Console, compared: Sequence[compare.Compared], others: Sequence[str]
) -> None:
    """Which ratios have moved since they were published, and what else has changed since."""
    if compared:
        show(console, compare.table(compared))
    if others:
        console.print(f"  Published with: {'; '.join(others)}.", style="dim", markup=False)
    console.print(compare.summary(compared), markup=False)


def _end(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="sections:\n" + "\n".join(f"  {name:12} {what}" for name, what in SECTIONS.items()),
    )
    parser.add_argument("section", nargs="*", help="the sections to run (default: all)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PART", help="contenders whose name has this in it"
    )
    parser.add_argument(
        "--quick", action="store_true", help="the short form; compares, and writes no documents"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="for JSON and SVG (default: bench/results)"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.section) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    options.documents = not (options.quick or options.only or options.output)
    if options.documents:
        options.output = FOLDER
    return options


def write(tables: Sequence[report.Table], facts: dict[str, object], folder: Path) -> None:
    """A section's figures, for machines, and its pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{facts['section']}.json"
    path.write_text(report.as_json(tables, facts), encoding="utf-8")
    for table in tables:
        if picture := plot.picture(table):
            (folder / f"{table.name}.svg").write_text(picture, encoding="utf-8")


def publish(tables: Sequence[report.Table], facts: dict[str, object]) -> None:
    """A section's tables, for people: into the document."""
    for table in tables:
        picture = f"{FOLDER.name}/{table.name}.svg" if plot.picture(table) else None
        write_section(DOCUMENT, table.name, report.markdown(table, in_words(facts), picture))


if __name__ == "__main__":
    sys.exit(main())
