"""Not more often than once a second: five ways to limit a rate, for each key.

`lock_min_hold` keeps the lock for a while after a run has begun, so the calls that come meanwhile
are duplicates. The policy says what becomes of them.

From the top of the repository, with a Redis at REDIS_URL (default: redis://localhost:6379/0):

    celery -A examples.rates worker -c 8
    python examples/rates.py                # eight calls of each, a quarter of a second apart
"""

import contextlib
import os
import time
import uuid

import redis
from celery import Celery

from celery_redislock import Coalesce, Queue, SingletonTask, TaskSkipped

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
PAUSE = 1.0  # seconds
CALLS, EVERY = 8, 0.25

app = Celery("rates", broker=os.environ.get("CELERY_BROKER_URL", REDIS_URL), backend=REDIS_URL)
app.conf.redislock_url = REDIS_URL
starts = redis.Redis.from_url(REDIS_URL, decode_responses=True)


def options(**more):
    return {"base": SingletonTask, "lock_key": ["key"], **more}


def note(key, number):
    """The work: write down when it began."""
    starts.rpush(f"rates:{key}", f"{number} {time.time()}")


@app.task(name="skips", **options(lock_min_hold=PAUSE))
def skips(key, number):
    """At most once in PAUSE; what comes in between is skipped."""
    note(key, number)


@app.task(name="spreads", **options(lock_min_hold=PAUSE, on_conflict=Queue()))
def spreads(key, number):
    """Every call runs, PAUSE after the one before."""
    note(key, number)


@app.task(name="last_wins", **options(lock_min_hold=PAUSE, on_conflict=Coalesce()))
def last_wins(key, number):
    """At most once in PAUSE; of what comes in between, the last runs when the pause is over."""
    note(key, number)


@app.task(name="three", **options(lock_limit=3, lock_min_hold=PAUSE, on_conflict=Queue()))
def three(key, number):
    """Every call runs, and at most three begin in any PAUSE."""
    note(key, number)


@app.task(name="at_the_sender", **options(lock_scope="queued"))
def at_the_sender(key, number):
    """Sent with a countdown: until it starts, further calls are not even sent."""
    note(key, number)


def main():
    key = uuid.uuid4().hex
    tasks = [(task, f"{key}-{task.__name__}") for task in (skips, spreads, last_wins, three)]
    results, began = [], time.time()
    for number in range(1, CALLS + 1):
        for task, its_key in tasks:
            results.append(task.delay(its_key, number))
        sent = at_the_sender.apply_async((f"{key}-at_the_sender", number), countdown=PAUSE)
        results.append(sent)
        time.sleep(EVERY)
    for result in results:
        with contextlib.suppress(TaskSkipped):
            result.get(timeout=60)
    for task in (skips, spreads, last_wins, three, at_the_sender):
        ran = [each.split() for each in starts.lrange(f"rates:{key}-{task.__name__}", 0, -1)]
        shown = "  ".join(f"{number} at {float(at) - began:4.1f}" for number, at in ran)
        print(f"{task.__name__:<13}  {shown}")


if __name__ == "__main__":
    main()
