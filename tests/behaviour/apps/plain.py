"""A task of the house in an app of plain Celery, which knows no lock."""

from __future__ import annotations

import sys
from typing import Any

from .bodies import CONF, journal, new_app, run

app = new_app("house", {k: v for k, v in CONF.items() if not k.startswith("redislock_")})


@app.task(bind=True, shared=False, name="quick_job")
def job(self: Any, label: str, how: str | float = 0.0) -> str:
    journal.write("unlocked", label, self.request, "celery_redislock" in sys.modules)
    return run(self, label, how)
