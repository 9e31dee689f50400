"""One sync for each account at a time, and every call gets its turn.

Calls for one account exclude each other, whatever their other arguments are; calls for
different accounts do not. A call that finds its account busy is deferred: it goes back to the
broker under its own id, and comes again until the account is free. None is lost.

From the top of the repository, with a Redis at REDIS_URL (default: redis://localhost:6379/0):

    celery -A examples.account_sync worker -c 4
    python examples/account_sync.py

One line says where the locks are. To move them to a Redis Cluster, set LOCKS_URL for both, such as
redis+cluster://redis-1:6379,redis-2:6379: messages and results stay where they are.
"""

import os
import time

from celery import Celery

from celery_redislock import Defer, SingletonTask

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

app = Celery("examples.account_sync", broker=REDIS_URL, backend=REDIS_URL)
app.conf.redislock_url = os.environ.get("LOCKS_URL", REDIS_URL)


@app.task(base=SingletonTask, bind=True, lock_key=["account_id"], on_conflict=Defer(delay=0.5))
def sync(self, account_id, force=False):
    start = time.time()
    time.sleep(1)  # the work
    return {"start": start, "end": time.time(), "pid": os.getpid(), "fence": self.lock.fence}


def main():
    calls = [("anna", False), ("anna", True), ("ben", False), ("anna", False), ("ben", True)]
    sent = time.time()
    promised = [sync.delay(*call) for call in calls]
    results = [each.get(timeout=60) for each in promised]

    print("call  account  force   starts     ends     pid   fence")
    for number, ((account, force), run) in enumerate(zip(calls, results, strict=True), 1):
        start, end = run["start"] - sent, run["end"] - sent
        print(
            f"{number:4}  {account:7}  {force!s:5}  {start:5.2f} s  {end:5.2f} s"
            f"  {run['pid']:6}   {run['fence']}"
        )
    runs = [(account, run) for (account, _), run in zip(calls, results, strict=True)]
    overlaps = sum(
        account == other and run["start"] < later["start"] < run["end"]
        for account, run in runs
        for other, later in runs
    )
    print(f"{len(calls)} calls, {len(results)} synced, {overlaps} overlaps within an account")


if __name__ == "__main__":
    main()
