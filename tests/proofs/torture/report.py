"""The results of the torture as tables, for people, machines and the documents."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import textwrap
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import rich.box
from rich.table import Table

from tests.support.servers import RedisServer

from .history import Verdict
from .locks import ASKABLE, POLL
from .run import LONG, LONG_STOP, SCENES, SHORT_STOP, STEPS, Run

Result = tuple[Run, Verdict]


def table(results: Sequence[Result]) -> Table:
    """One line a run, for the terminal."""
    drawn = Table(box=rich.box.SIMPLE_HEAD)
    for column in ("scene", "lock", "asks"):
        drawn.add_column(column, no_wrap=True)
    for column in ("clients", "sections", *_COLUMNS):
        drawn.add_column(column, justify="right", no_wrap=True)
    for run, verdict in results:
        counts = [getattr(verdict, name) for name in _COLUMNS.values()]
        drawn.add_row(
            run.scene,
            run.lock,
            "yes" if run.asks else "",
            *map(str, (run.clients, verdict.sections)),
            *("-" if count is None else str(count) for count in counts),
        )
    return drawn


_COLUMNS = {
    "in ignorance": "unknowing",
    "too late": "too_late",
    "no step": "told",
    "mixed": "mixed",
    "past fence": "mixed_past_fence",
}


def as_json(results: Sequence[Result], surroundings: str) -> str:
    rows = [
        {"run": dataclasses.asdict(run), "verdict": dataclasses.asdict(verdict)}
        for run, verdict in results
    ]
    return json.dumps({"surroundings": surroundings, "results": rows}, indent=1)


TITLES = {
    "ours": "celery-redislock",
    "redis-py": "redis-py's `Lock`",
    "python-redis-lock": "python-redis-lock",
    "setnx": "SETNX, EXPIRE, DEL",
}
#: What the others are called, and what their package is.
PACKAGES = {"redis-py": "redis", "python-redis-lock": "python-redis-lock"}


def markdown(results: Sequence[Result], surroundings: str) -> str:
    """What goes into the documents: who failed, and what the stops did."""
    run = results[0][0]
    counts = sorted({run.clients for run, _ in results})
    clients = " and with ".join(map(str, counts))
    return f"""\
The book adds that with five clients on one lock for ten seconds at least half of the
implementations that were tried let two in. This is that test, with {clients} clients, for
{run.seconds:g} seconds in each scene. A client acquires the lock, does {_span(STEPS)} steps that it
protects, some milliseconds in all, releases it, and begins again at once.

Without pauses, the table counts how often a second client **came in** while a holder was inside. A
process that is stopped for longer than the ttl loses any lock that has one. So with stops the
holders are counted that were left **in ignorance**: after another had come in they did a step,
since there was nothing to ask, or they did not ask it, or the lock itself said "yours" to both.

{_failures(results, counts)}

* *long*: every tenth section takes {_span(LONG)} ttls.
* *stops*: processes are stopped with SIGSTOP, mostly the holder, for {_span(SHORT_STOP)} or for
  {_span(LONG_STOP)} ttls.
* *asks*: right before each step; the section ends if the lock is lost.
* All have a ttl of {run.ttl:g} s: python-redis-lock takes whole seconds.
* celery-redislock: `RedisLock` with its heartbeat, asked by `lost`. In a task,
  `on_lock_lost="abort"` ends a body that does not ask, once the heartbeat knows.
* redis-py: `timeout=ttl`, and nobody extends it, as it is mostly used; asked by `owned()`. If it
  asks, it is told that its long sections have lost the lock, and gives them up.
* python-redis-lock: `expire=ttl, auto_renewal=True`, asked by comparing `get_owner_id()` with `id`.
* The last one: SETNX, then EXPIRE, in the end DEL; there is nothing to ask. It and redis-py try
  again every {POLL * 1000:g} ms.

What became of the holders that another came in beside, in the two scenes with stops, all clients
together:

{_stopped(results)}

*Too late*: it asked, was the holder, was stopped, and did its step after another had come in. No
lock excludes that. *Did nothing more*: if it asks, because it was told; if not, because it was at
its end. *Mixed writes* are steps in the middle of a section, after a step of another's: what
corrupts data. *With the fence checked*: on a resource that refuses a lower fence than it has seen.

{surroundings}
"""


def _failures(results: Sequence[Result], counts: Sequence[int]) -> str:
    pair = " / ".join(map(str, counts))
    head = [f"{scene}: {'in ignorance' if 'stops' in scene else 'came in'}" for scene in SCENES]
    rows = [_cells(f"with {pair} clients", *head, "sections in all"), _RULE]
    for use in _uses(results):
        mine = _of(results, use)
        found = {(r.scene, r.clients): v.unknowing if r.stops else v.double for r, v in mine}
        cells = [" / ".join(str(found[scene, count]) for count in counts) for scene in SCENES]
        rows.append(_cells(_title(use), *cells, f"{sum(v.sections for _, v in mine):,}"))
    return "\n".join(rows)


def _stopped(results: Sequence[Result]) -> str:
    head = ("left in ignorance", "too late", "did nothing more", "mixed writes")
    rows = [_cells("", *head, "with the fence checked"), _RULE]
    for use in _uses(results):
        mine = [verdict for run, verdict in _of(results, use) if run.stops]
        names = ("unknowing", "too_late", "told", "mixed")
        counts = [sum(getattr(verdict, name) for verdict in mine) for name in names]
        past = [v.mixed_past_fence for v in mine if v.mixed_past_fence is not None]
        rows.append(_cells(_title(use), *counts, sum(past) if past else "no fence"))
    return "\n".join(rows)


_RULE = "|---|" + "--:|" * 5


def _uses(results: Sequence[Result]) -> list[tuple[str, bool]]:
    """Each lock, asked and not asked."""
    return list(dict.fromkeys((run.lock, run.asks) for run, _ in results))


def _of(results: Sequence[Result], use: tuple[str, bool]) -> list[Result]:
    return [(run, verdict) for run, verdict in results if (run.lock, run.asks) == use]


def _title(use: tuple[str, bool]) -> str:
    lock, asks = use
    if lock not in ASKABLE:
        return TITLES[lock]
    return f"{TITLES[lock]}, {'asks' if asks else 'does not ask'}"


def _span(ends: tuple[float, float]) -> str:
    return f"{ends[0]:g} to {ends[1]:g}"


def _cells(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def surroundings(seed: int) -> str:
    """What the figures were measured with. No names of machines."""
    with RedisServer() as server, server.client() as client:
        redis_version = client.info("server")["redis_version"]
    packages = [f"{name} {_version(package)}" for name, package in PACKAGES.items()]
    facts = [
        f"Measured on {time.strftime('%Y-%m-%d')} by `python -m tests.proofs.torture --write`",
        f"with seed {seed} on {os.cpu_count()} cores",
        f"Redis {redis_version}",
        f"Python {platform.python_version()}",
        *packages,
    ]
    return textwrap.fill(", ".join(facts) + ".", 98)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
