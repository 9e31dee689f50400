"""Counts what a server is sent, at the server."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import redis

_GREETINGS = frozenset({"HELLO", "AUTH", "CLIENT", "SELECT"})


@contextmanager
def commands(client: redis.Redis, db: int = 0) -> Iterator[Counter[str]]:
    """The commands that all clients send to this database meanwhile, by name, known at the end.

    Each is a round trip unless pipelined. Those that a script calls do not count, since they are
    not sent; nor do the first commands of a new connection. All clients are slower meanwhile, so
    nothing is timed in here.
    """
    found: Counter[str] = Counter()
    end = uuid.uuid4().hex
    with client.monitor() as monitor:
        yield found
        client.echo(end)
        for told in monitor.listen():
            if end in told["command"]:
                return
            name = told["command"].split(" ", 1)[0].upper()
            if told["client_type"] != "lua" and told["db"] == db and name not in _GREETINGS:
                found[name] += 1


def bytes_moved(client: redis.Redis) -> int:
    """Bytes that this server has read and written so far."""
    stats = client.info("stats")
    return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])
