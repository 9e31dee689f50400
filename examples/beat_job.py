"""A beat job that must not overlap itself.

Beat sends the job every second, each run takes three, and a second beat runs by accident. The
job runs once at a time all the same: whatever comes while it runs is skipped, the default.

From the top of the repository, with a Redis at REDIS_URL (default: redis://localhost:6379/0):

    celery -A examples.beat_job worker -c 2 -B -s /tmp/beat-1    # a worker, and a beat within it
    celery -A examples.beat_job beat -s /tmp/beat-2              # one beat too many
    python examples/beat_job.py                                  # shows what they do
"""

import json
import os
import time

import redis
from celery import Celery

from celery_redislock import SingletonTask, lock_conflict

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

app = Celery("examples.beat_job", broker=REDIS_URL)  # CELERY_BROKER_URL, if set, goes first
app.conf.redislock_url = REDIS_URL
app.conf.beat_schedule = {"each second": {"task": "examples.beat_job.report", "schedule": 1.0}}


@app.task(base=SingletonTask, bind=True, lock_ttl=10)
def report(self):
    note("starts", self.request.id)
    time.sleep(3)
    note("ends", self.request.id)


@lock_conflict.connect
def on_duplicate(sender, details, **kwargs):
    note(details.outcome, details.task_id)


# -- only to show what happens --------------------------------------------------------------

NOTES = "examples.beat_job"
server = redis.Redis.from_url(REDIS_URL, decode_responses=True)


def note(what, task_id):
    server.rpush(NOTES, json.dumps([time.time(), what, task_id]))
    server.expire(NOTES, 60)


def watch(runs=3, patience=60):
    """Print the next runs. What came before what is told by the order of the notes in Redis."""
    server.delete(NOTES)
    give_up = time.monotonic() + patience
    starts, ends, duplicates, times = {}, {}, [], []
    while len(starts.keys() & ends.keys()) < runs:
        if time.monotonic() > give_up:
            raise SystemExit(f"{runs} runs did not end within {patience} s. Is a worker running?")
        time.sleep(0.2)
        for line in server.lrange(NOTES, len(times), -1):
            at, what, task_id = json.loads(line)
            if what == "skipped":
                duplicates.append(len(times))
            else:
                (starts if what == "starts" else ends)[task_id] = len(times)
            times.append(at)

    print("run    starts       ends   duplicates skipped meanwhile")
    overlaps = 0
    for number, task_id in enumerate([each for each in starts if each in ends], 1):
        start, end = starts[task_id], ends[task_id]
        skipped = sum(start < each < end for each in duplicates)
        overlaps += sum(start < other < end for other in starts.values())
        print(
            f"{number:3}  {times[start] - times[0]:6.2f} s   {times[end] - times[0]:6.2f} s"
            f"   {skipped:10}"
        )
    print(f"{runs} runs, {len(duplicates)} duplicates skipped, {overlaps} overlaps")


if __name__ == "__main__":
    watch()
