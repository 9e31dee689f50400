"""Tasks that retry at once, and a result backend that stores RETRY late: not until the retry has
ended, if that is soon.
"""

from __future__ import annotations

import time
from typing import Any, Final

from celery import states
from celery.backends.redis import RedisBackend

from celery_redislock import SingletonTask

from .bodies import CONF, journal, new_app

#: Seconds for which the backend waits at most.
LATE: Final = 1.5

app = new_app("late_retries", CONF)


class LateRetries(RedisBackend):
    """It stands still where the other states are safe no more: SUCCESS has been looked for."""

    def _set_with_state(self, key: bytes, value: Any, state: str) -> Any:
        until = time.monotonic() + LATE
        task_id = key.removeprefix(self.task_keyprefix).decode()
        while state == states.RETRY and time.monotonic() < until:
            if self.get_state(task_id) in states.READY_STATES:
                break
            time.sleep(0.02)
        return super()._set_with_state(key, value, state)


def body(self: Any, label: str, other: str, how: str = "") -> str:
    """It retries at once, under the lock of another label; that attempt does what `how` says."""
    if not self.request.retries:
        journal.write("start", label, self.request)
        journal.await_go(self.request.id)
        options = {"expires": 0.001} if how == "expires" else {}
        raise self.retry(args=(other, other, how), countdown=0, **options)
    if how == "fails":
        raise ValueError("it fails")
    return other


#: A worker with one process then leaves the retry to another worker until all is stored.
OPTIONS: Final[dict[str, Any]] = {
    "base": SingletonTask, "bind": True, "acks_late": True, "max_retries": 1,
    "lock_key": "late:{label}",
}  # fmt: skip
app.task(name="skip", **OPTIONS)(body)
app.task(name="queue", **OPTIONS, on_conflict="queue")(body)
app.task(name="until_it_starts", **OPTIONS, lock_scope="queued")(body)
app.task(name="unstored", **OPTIONS, ignore_result=True, store_errors_even_if_ignored=True)(body)
# For Celery's main process, which sends the retry with the same arguments.
app.task(name="dies", **OPTIONS, retry_on_worker_lost=True, default_retry_delay=0)(body)
