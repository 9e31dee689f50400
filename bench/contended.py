"""One lock, many processes: how much gets done, who gets it, and how soon after a release."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from tests.support.servers import RedisServer

from .counting import commands
from .crowd import CrowdError, together
from .locks import FLOOR, FLOOR_CHECKED, LOCKS
from .report import Bars, Column, Table
from .section import Run
from .stats import evenness, percentile

#: A floor cannot wait for a lock that is held.
_LEFT_OUT = (FLOOR, FLOOR_CHECKED)
_WITHOUT_HEARTBEAT = "celery-redislock, heartbeat=False"
#: Seconds for which a section lasts.
SECTION = 0.001
#: When a section was entered and its release began, and the number of the client.
Section = tuple[float, float, int]
_LABEL = ("name", "clients")


def measure(run: Run) -> list[Table]:
    rounds, seconds = run.size(3, 1), run.size(1.0, 0.3)
    crowds = run.size((2, 8, 64), (2, 6))
    names = [n for n in LOCKS if n not in (*_LEFT_OUT, _WITHOUT_HEARTBEAT) and run.wants(n)]
    found: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    errors: dict[tuple[int, str], str] = {}
    with RedisServer() as server:
        for number in range(1, rounds + 1):
            for clients in crowds:
                for name in random.sample(names, len(names)):
                    try:
                        found[clients, name].append(one_run(server, name, clients, seconds))
                    except CrowdError as exc:
                        errors[clients, name] = str(exc)
                run.say(f"round {number} of {rounds}: {clients} clients, {len(names)} locks")
        for (clients, name), figures in found.items():
            figures[0]["commands"] = commands_of_a_section(server, name, clients, seconds / 2)
    rows = [row(clients, name, found[clients, name]) for clients in crowds for name in names]
    return [table(rows, rounds, seconds)]


def client(
    ready: Callable[[], Any], url: str, name: str, lock: str, number: int, seconds: float
) -> list[Section]:
    """Acquire, stay for a moment, release, and begin again at once."""
    mine = LOCKS[name](url, lock)
    # The first use takes longer than a section, and 64 of them would leave time for none.
    mine.acquire()
    mine.release()
    ready()
    until = time.monotonic() + seconds
    sections = []
    while time.monotonic() < until:
        mine.acquire()
        entered = time.monotonic()
        time.sleep(SECTION)
        left = time.monotonic()
        mine.release()
        sections.append((entered, left, number))
    return sections


def _all_sections(
    server: RedisServer, name: str, clients: int, seconds: float, began: Callable[[], None]
) -> list[list[Section]]:
    """What each client did. `began` is called once all are ready."""
    lock = f"contended-{random.randrange(10**9)}"
    jobs = [(client, (server.url, name, lock, n, seconds)) for n in range(clients)]
    return together(jobs, began)


def one_run(server: RedisServer, name: str, clients: int, seconds: float) -> dict[str, Any]:
    began: list[float] = []
    found = _all_sections(server, name, clients, seconds, lambda: began.append(time.monotonic()))
    until = began[0] + seconds
    counts = [sum(1 for entered, _, _ in each if entered < until) for each in found]
    passed, handed = hand_overs([section for each in found for section in each], until)
    return {
        "sections": sum(counts) / seconds,
        "evenness": evenness(counts),
        "passed": passed,
        "handed": handed,
    }


def hand_overs(sections: Sequence[Section], until: float) -> tuple[float, list[float]]:
    """The share of releases after which another client came in, and how many seconds later.

    Sections after `until` do not count: some clients have ended by then.
    """
    ordered = sorted(section for section in sections if section[0] < until)
    pairs = list(pairwise(ordered))
    handed = [after[0] - before[1] for before, after in pairs if before[2] != after[2]]
    return (len(handed) / len(pairs) if pairs else 0.0), handed


def commands_of_a_section(
    server: RedisServer, name: str, clients: int, seconds: float
) -> float | None:
    """How many commands all clients together send to the server for a section."""
    with server.client() as counter, ExitStack() as counting:
        sent: list[Counter[str]] = []
        found = _all_sections(
            *(server, name, clients, seconds),
            lambda: sent.append(counting.enter_context(commands(counter))),
        )
        counting.close()
    sections = sum(len(each) for each in found)
    return sent[0].total() / sections if sections else None


def row(clients: int, name: str, figures: list[dict[str, Any]]) -> dict[str, Any]:
    if not figures:
        return {"clients": clients, "name": name}
    handed = [seconds for each in figures for seconds in each["handed"]]
    return {
        "clients": clients,
        "name": name,
        "sections": percentile([each["sections"] for each in figures], 0.5),
        "passed": percentile([each["passed"] for each in figures], 0.5),
        "p50": percentile(handed, 0.5) * 1000 if handed else None,
        "p99": percentile(handed, 0.99) * 1000 if handed else None,
        "evenness": percentile([each["evenness"] for each in figures], 0.5),
        "commands": figures[0].get("commands"),
        "rounds": [each["sections"] for each in figures],
    }


def table(rows: list[dict[str, Any]], rounds: int, seconds: float) -> Table:
    return Table(
        "contended",
        "One lock, many processes",
        [
            Column("clients", "clients", "d"),
            Column("name", "lock"),
            Column("sections", "sections/s", ",.0f"),
            Column("passed", "passed on", ".0%"),
            Column("p50", "hand-over p50 ms", ".2f"),
            Column("p99", "p99 ms", ",.1f"),
            Column("evenness", "evenness", ".2f"),
            Column("commands", "commands", ",.1f"),
        ],
        rows,
        [
            f"{rounds} rounds of {seconds:g} s each. A client acquires the lock, sleeps for"
            f" {SECTION * 1000:g} ms, releases it and begins again at once. Medians of the rounds.",
            "*Passed on*: the share of releases after which another client comes in, and not the"
            " same again. *Hand-over*: of those, from the call of release to the next one's entry.",
            "*Evenness*: Jain's index over the clients' sections: 1 if all have had the same, 1/n"
            " if one has had all.",
            "*Commands*: that the server is sent for a section, waiting included.",
        ],
        Bars("Releases after which another client comes in, by clients", "passed", _LABEL),
    )
