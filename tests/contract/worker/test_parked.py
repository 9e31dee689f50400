"""What a worker remembers of the tasks that it has put into rooms."""

from __future__ import annotations

from types import SimpleNamespace

from celery_redislock.app.settings import app_locks
from celery_redislock.protocol.keys import keys_of_lock_id
from celery_redislock.worker.parked import ParkedTasks

LOCK_ID = "1|pkg.task:one"


def test_a_parked_task_is_looked_for_where_it_was_parked(make_app, own_redis):
    app = make_app(redislock_url=own_redis.url)
    task = SimpleNamespace(name="pkg.task", app=app, app_locks=app_locks(app))
    request = SimpleNamespace(task=task, request_dict={})
    parked = ParkedTasks()
    parked.add(request, LOCK_ID, ("one", 0, 0))
    (there,) = parked._tasks
    entries = keys_of_lock_id("redislock", LOCK_ID).entries
    with own_redis.client() as client:
        client.hset(entries, there.claim.entry_id, "an entry")

        # The app has its locks elsewhere by now: such as nowhere, after a test.
        task.app_locks = app_locks(make_app())
        parked._look()
        assert [*parked._tasks] == [there], "it waits"

        client.delete(entries)
        parked._look()
        assert not parked._tasks, "it has left"
