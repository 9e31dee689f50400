"""What a lock alone cannot do, and what its fencing token can.

A process takes the lock, makes sure that it has it, and is stopped right there for longer than
the lock lives: by a signal here; by swap, a suspended machine or a long garbage collection
elsewhere. Another process takes the lock and writes. The first one goes on where it was, and
still believes that it has the lock. Only the database can refuse its write, and it does, by the
fence.

From the top of the repository, with a Redis at REDIS_URL (default: redis://localhost:6379/0):

    python examples/fenced_ledger.py                 # needs no worker
    celery -A examples.fenced_ledger worker          # the same section in a task, `deposit`
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile

from celery import Celery

from celery_redislock import RedisLock

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
LEDGER = os.environ.get("LEDGER", os.path.join(tempfile.gettempdir(), "ledger.sqlite"))

app = Celery("examples.fenced_ledger", broker=REDIS_URL)  # CELERY_BROKER_URL goes first


@app.task
def deposit(account, amount, stop=False):
    with RedisLock(REDIS_URL, f"ledger:{account}", ttl=1, timeout=30) as lock:
        balance = read(account)
        lock.ensure()  # raises LockLost unless the lock is ours; now it is
        say(f"has the lock, fence {lock.fence}, and reads {balance}")
        if stop:
            os.kill(os.getpid(), signal.SIGSTOP)  # and its heartbeat stops with it
            say("goes on where it was, and knows nothing")
        written = write(account, balance + amount, lock.fence)
        say(f"writes {balance + amount}: {'accepted' if written else 'REFUSED by the database'}")
        if stop:
            say(f"asks for its lock, which is {'lost' if lock.lost else 'its own'}")


def write(account, balance, fence):
    """Write, unless a higher fence has written before. This gives the correctness."""
    with sqlite3.connect(LEDGER) as db:
        update = "UPDATE accounts SET balance = ?, fence = ? WHERE name = ? AND fence <= ?"
        return db.execute(update, (balance, fence, account, fence)).rowcount == 1


def read(account):
    with sqlite3.connect(LEDGER) as db:
        query = "SELECT balance FROM accounts WHERE name = ?"
        return db.execute(query, (account,)).fetchone()[0]


def open_account(account):
    with sqlite3.connect(LEDGER) as db:
        db.execute("CREATE TABLE IF NOT EXISTS accounts (name PRIMARY KEY, balance, fence)")
        db.execute("INSERT OR REPLACE INTO accounts VALUES (?, 0, 0)", (account,))


def say(what):
    print(f"{'first ' if STOPS else 'second'}  {what}", flush=True)


STOPS = sys.argv[1:] == ["stop"]  # the role of this process: the one that is stopped


def main():
    open_account("anna")
    first = subprocess.Popen([sys.executable, __file__, "stop"])
    os.waitpid(first.pid, os.WUNTRACED)
    try:
        deposit("anna", 10)
    finally:
        first.send_signal(signal.SIGCONT)
        first.wait()
    print(f"the ledger says {read('anna')}; without the fence it would say 100")


if __name__ == "__main__":
    if STOPS:
        deposit("anna", 100, stop=True)
    else:
        main()
