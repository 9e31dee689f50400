"""Table 6.2 of "Redis in Action": listers and buyers on one market, WATCH against a lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from examples import marketplace
from examples.marketplace import Tally
from tests.support.servers import RedisServer

from .crowd import together
from .report import Column, Table
from .section import Run

CROWDS = ((1, 1), (5, 1), (5, 5))
#: Seconds for which the book's figures were taken.
BOOK_SECONDS = 60
#: As the book prints them: listed, bought, retries, milliseconds of a mean wait. Josiah L. Carlson,
#: "Redis in Action" (2013), table 6.2.
BOOK = {
    (1, 1, False): ("145,000", "27,000", "80,000", "14"),
    (1, 1, True): ("51,000", "50,000", "0", "1"),
    (5, 1, False): ("331,000", "<200", "50,000", "150"),
    (5, 1, True): ("68,000", "13,000", "<10", "5"),
    (5, 5, False): ("206,000", "<600", "161,000", "498"),
    (5, 5, True): ("21,000", "20,500", "0", "14"),
}


def measure(run: Run) -> list[Table]:
    seconds = run.size(8.0, 1.0)
    rows = []
    for sellers, buyers in CROWDS:
        for locked in (False, True):
            rows.append(one_row(sellers, buyers, locked, seconds))
            run.say(f"{sellers} listers, {buyers} buyers, {rows[-1]['way']}: {seconds:g} s")
    return [table(rows, seconds)]


def one_row(sellers: int, buyers: int, locked: bool, seconds: float) -> dict[str, Any]:
    with RedisServer() as server:
        jobs = [(trader, (server.url, "sell", f"s{n}", locked, seconds)) for n in range(sellers)]
        jobs += [(trader, (server.url, "buy", f"b{n}", locked, seconds)) for n in range(buyers)]
        tallies: list[Tally] = together(jobs)
    waits = [wait for tally in tallies for wait in tally.waits]
    bought = sum(tally.bought for tally in tallies)
    book = dict(
        zip(("listed", "bought", "retries", "wait"), BOOK[sellers, buyers, locked], strict=True)
    )
    return {
        "crowd": f"{sellers}, {buyers}",
        "way": "lock" if locked else "WATCH",
        "listed": sum(tally.listed for tally in tallies) / seconds,
        "bought": bought / seconds,
        "retries": sum(tally.retries for tally in tallies) / seconds,
        "wait": sum(waits) / bought * 1000 if bought else None,
        **{f"book {key}": figure for key, figure in book.items()},
    }


def trader(
    ready: Callable[[], Any], url: str, what: str, name: str, locked: bool, seconds: float
) -> Tally:
    work = {"sell": marketplace.sell, "buy": marketplace.buy}[what]
    ready()
    return work(url, name, locked, time.monotonic() + seconds)


def table(rows: list[dict[str, Any]], seconds: float) -> Table:
    return Table(
        "market",
        "A market, with WATCH and with a lock (Redis in Action, table 6.2)",
        [
            Column("crowd", "listers, buyers"),
            Column("way", "way"),
            Column("listed", "listed/s", ",.0f"),
            Column("bought", "bought/s", ",.0f"),
            Column("retries", "retries/s", ",.0f"),
            Column("wait", "wait for a purchase, ms", ",.1f"),
            Column("book listed", "book: listed in 60 s", str),
            Column("book bought", "bought", str),
            Column("book retries", "retries", str),
            Column("book wait", "wait, ms", str),
        ],
        rows,
        [
            f"{seconds:g} s for each row, each lister and buyer a process of its own;"
            " [examples/marketplace.py](../examples/marketplace.py). The book's figures are of"
            f" {BOOK_SECONDS} seconds, on a machine of its time.",
            "*Wait*: all the time spent in trying to buy, divided by the purchases. *Retries*: of"
            " purchases, since the market or the buyer had changed.",
        ],
    )
