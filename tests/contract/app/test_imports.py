"""Which modules of the package a process imports, and when."""

from __future__ import annotations

import subprocess
import sys

SENDS = """
import sys
from celery import Celery
from celery_redislock import SingletonTask

app = Celery(broker="memory://")
app.conf.redislock_url = sys.argv[1]

@app.task(base=SingletonTask, lock_key="{n}")
def add(n): ...

add.delay(1)
package = sys.modules["celery_redislock"]
needless = ("servers.server", "lock.heartbeat", "lock.redis_lock", "tasks.tracer", "worker.sweeper")
assert not [name for name in needless if f"celery_redislock.{name}" in sys.modules]
"""


def test_a_program_that_only_sends_tasks_imports_nothing_that_runs_them(redis_server):
    asks = SENDS + (
        "from celery_redislock import RedisLock\n"
        "assert package.RedisLock is sys.modules['celery_redislock.lock.redis_lock'].RedisLock\n"
    )
    subprocess.run([sys.executable, "-c", asks, redis_server.url], check=True, timeout=60)


def test_the_pools_processes_inherit_what_runs_tasks(redis_server, label):
    starts = SENDS + (
        "from celery import signals\n"
        "worker = type('Within', (), {'app': app})\n"
        "signals.worker_init.send(sender=worker)\n"
        "loaded = set(sys.modules)\n"
        "from celery.app.trace import build_tracer\n"
        "add.__trace__ = build_tracer(add.name, add, app=app)\n"
        "request = {'id': 'one', 'delivery_info': {}, 'properties': {}}\n"
        f"assert add.__trace__('one', ('{label}',), {{}}, request).info is None\n"
        "ours = {n for n in set(sys.modules) - loaded if n.startswith('celery_redislock')}\n"
        "assert not ours, ours\n"
    )
    subprocess.run([sys.executable, "-c", starts, redis_server.url], check=True, timeout=60)
