"""A program on a host, which takes locks and says what it believed when:

    python -m tests.proofs.hosts.client HISTORY HOST TTL MIN_REPLICAS URL TRANSPORT_OPTIONS

It reads names, a line each: it asks for the lock of that name again and again, and holds it until
it is told that it was lost. At the end of its input it gives back what it has. What it writes into
the history: see `judge`.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial

from celery import Celery

from celery_redislock import LockUnavailable, RedisLock
from tests.proofs.history import History

#: Seconds between two questions whether the lock is still held, and between two acquire requests.
LOOK_EVERY = 0.01
ASK_EVERY = 0.05

_numbers = itertools.count()


class Taker:
    """Takes one lock, in a thread of its own."""

    def __init__(self, say: Callable[..., None], lock: RedisLock, over: threading.Event) -> None:
        self._say = say
        self._lock = lock
        self._over = over

    def run(self) -> None:
        while not self._over.is_set():
            asked = time.monotonic()
            if self._took(asked):
                self._hold(asked)
            self._over.wait(ASK_EVERY)

    def _took(self, asked: float) -> bool:
        try:
            answer = "taken" if self._lock.acquire(timeout=0) else "busy"
        except LockUnavailable:
            answer = "unavailable"
        self._say("asked", name=self._lock.name, at=asked, answer=answer)
        return answer == "taken"

    def _hold(self, asked: float) -> None:
        """Hold the lock, until it is lost, or until all is over."""
        since = time.monotonic()
        number = f"{os.getpid()}.{next(_numbers)}"
        fields = {"name": self._lock.name, "fence": self._lock.fence}
        self._say("held", id=number, asked=asked, since=since, **fields)
        until, told = since, None
        while not self._over.is_set():
            looked = time.monotonic()
            if self._lock.lost:
                told = time.monotonic()
                break
            until = looked
            self._over.wait(LOOK_EVERY)
        self._say("ended", id=number, until=until, told=told)
        self._lock.release()


def _fail(failure: threading.ExceptHookArgs) -> None:
    """A thread has failed: so has the client."""
    traceback.print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


def main(
    history: str, host: str, ttl: str, min_replicas: str, url: str, transport_options: str
) -> None:
    app = Celery("hosts", broker="memory://", set_as_current=False)
    app.conf.redislock_url = url
    app.conf.redislock_min_replicas = int(min_replicas)
    app.conf.redislock_transport_options = json.loads(transport_options)
    over, threads = threading.Event(), []
    threading.excepthook = _fail
    say = partial(History(history).write, host=host)
    say("ready")
    for line in sys.stdin:
        lock = RedisLock(app, line.strip(), ttl=float(ttl), label=host)
        threads.append(threading.Thread(target=Taker(say, lock, over).run))
        threads[-1].start()
    over.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
