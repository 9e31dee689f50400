"""The app of a worker whose code never imports `celery_redislock`."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import redis
from celery import Celery

from tests.support.journal import Journal

CONF: dict[str, Any] = json.loads(os.environ.get("TEST_CONF", "{}"))

app = Celery("unaware")
app.conf.update({k: v for k, v in CONF.items() if not k.startswith("test_")})
journal = Journal(redis.Redis.from_url(CONF.get("test_journal", "redis://"), decode_responses=True))


@app.task(name="unaware", bind=True)
def unaware(self: Any, label: str, seconds: float = 0.2) -> bool:
    journal.write("start", label, self.request)
    time.sleep(seconds)
    journal.write("end", label, self.request)
    return "celery_redislock" in sys.modules
