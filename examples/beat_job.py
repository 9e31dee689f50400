"""Beat jobs that neither overlap themselves nor run twice for one tick.

`report` is sent every second and takes three: ticks that come while it runs are skipped, the
default. `digest` is sent every two seconds and is done at once; but a second beat runs by accident,
and so every tick is fired twice. The second finds the lock still held, for `lock_min_hold`.

Late messages are dropped: they expire (`expires` in the schedule). Without that, a worker that was
away would run all the ticks that it missed, one after another. And a job that hangs is noticed: a
skipped tick is a line at WARNING if the run has held the lock for longer than ten times `lock_ttl`,
and the signal names the run.

From the top of the repository, with a Redis at REDIS_URL (default: redis://localhost:6379/0):

    celery -A examples.beat_job worker -c 2 -B -s /tmp/beat-1    # a worker, and a beat within it
    celery -A examples.beat_job beat -s /tmp/beat-2              # one beat too many
    python examples/beat_job.py                                  # shows what they do
"""

import json
import os
import time
from itertools import pairwise

import redis
from celery import Celery

from celery_redislock import SingletonTask, lock_conflict

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

app = Celery("examples.beat_job", broker=REDIS_URL)  # CELERY_BROKER_URL, if set, goes first
app.conf.redislock_url = REDIS_URL
app.conf.beat_schedule = {
    "report": {"task": "examples.beat_job.report", "schedule": 1.0, "options": {"expires": 1}},
    "digest": {"task": "examples.beat_job.digest", "schedule": 2.0, "options": {"expires": 2}},
}


@app.task(base=SingletonTask, bind=True, lock_ttl=6)
def report(self):
    note(self.name, "starts", self.request.id)
    time.sleep(3)
    note(self.name, "ends", self.request.id)


@app.task(base=SingletonTask, bind=True, lock_min_hold=1.6)  # a bit less than from tick to tick
def digest(self):
    note(self.name, "starts", self.request.id)
    note(self.name, "ends", self.request.id)


@lock_conflict.connect
def on_duplicate(sender, details, **kwargs):
    note(sender.name, details.outcome, details.task_id)
    since = details.holder and details.holder.acquired_at
    if since and time.time() - since > 600:  # the library has warned for nine minutes by then
        page_somebody(f"{sender.name} hangs? {details.holder} has the lock")


def page_somebody(message): ...


# -- only to show what happens --------------------------------------------------------------

NOTES = "examples.beat_job"
server = redis.Redis.from_url(REDIS_URL, decode_responses=True)


def note(task, what, task_id):
    server.rpush(NOTES, json.dumps([time.time(), task, what, task_id]))
    server.expire(NOTES, 60)


def watch(runs=3, patience=60):
    """Print the next runs. The notes in Redis are in the order of what happened."""
    server.delete(NOTES)
    give_up = time.monotonic() + patience
    times, jobs = [], {report.name: ({}, {}, []), digest.name: ({}, {}, [])}
    starts, ends, duplicates = jobs[report.name]
    while len(starts.keys() & ends.keys()) < runs:
        if time.monotonic() > give_up:
            raise SystemExit(f"{runs} runs did not end within {patience} s. Is a worker running?")
        time.sleep(0.2)
        for line in server.lrange(NOTES, len(times), -1):
            at, task, what, task_id = json.loads(line)
            if what == "skipped":
                jobs[task][2].append(len(times))
            else:
                jobs[task][what == "ends"][task_id] = len(times)
            times.append(at)

    print("report    starts       ends   duplicates skipped meanwhile")
    overlaps = 0
    for number, task_id in enumerate([each for each in starts if each in ends], 1):
        start, end = starts[task_id], ends[task_id]
        skipped = sum(start < each < end for each in duplicates)
        overlaps += sum(start < other < end for other in starts.values())
        print(
            f"{number:6}  {times[start] - times[0]:6.2f} s   {times[end] - times[0]:6.2f} s"
            f"   {skipped:10}"
        )
    print(f"report: {runs} runs, {len(duplicates)} duplicates skipped, {overlaps} overlaps")
    starts, _, duplicates = jobs[digest.name]
    began = [times[start] for start in starts.values()]
    apart = min((later - each for each, later in pairwise(began)), default=0)
    print(
        f"digest: {len(starts)} runs, {len(duplicates)} duplicates skipped,"
        f" {apart:.2f} s apart at least"
    )


if __name__ == "__main__":
    watch()
