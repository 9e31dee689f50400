"""A name that tries to break a worker's log."""

from __future__ import annotations

import re

from tests.support.waiting import eventually

EVIL = "a\n[2026-01-01 00:00:00,000: ERROR/MainProcess] FORGED\r\x1b[31m\x9b2J\u2028\u202eend"


def test_no_name_breaks_a_workers_log(start_worker, sender, journal, queue, label):
    worker = start_worker(queues=queue)
    name = f"{label}{EVIL}"
    first = sender.send_task("named", [name, 4.0], queue=queue)
    eventually(lambda: journal.read(name, "start"), "it runs")
    for _ in range(3):
        sender.send_task("named", [name], queue=queue).get(timeout=20, propagate=False)
    first.get(timeout=20)
    log = worker.log()
    lines = [line for line in log.split("\n") if "redislock: " in line]
    skipped = [line for line in lines if " skipped: " in line]
    assert len(skipped) == 3
    assert all(f" is held by named[{first.id}] on " in line for line in skipped)
    assert all(line.isprintable() for line in lines)
    assert not re.search(r"^\[2026-01-01 00:00:00,000: ERROR", log, re.M)
