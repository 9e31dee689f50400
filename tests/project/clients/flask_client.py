"""Asks the Flask application of examples/ to start a task. Prints what it answers, as JSON."""

from __future__ import annotations

import json
import sys

from examples.flask_app import celery_app, flask_app
from tests.support.waiting import eventually

client = flask_app.test_client()
url = f"/accounts/{int(sys.argv[1])}/sync"
first, second = client.post(url), client.post(url)
task = celery_app.AsyncResult(first.json["task_id"])
# Before Celery 5.7 it is not told if the view's own object for this result is collected meanwhile.
eventually(task.ready, "it has ended")
third = client.post(url)
json.dump(
    {
        "statuses": [each.status_code for each in (first, second, third)],
        "same": first.json == second.json,
        "result": task.get(),
        "locked": bool(celery_app.tasks["examples.flask_app.sync"].lock_options),
    },
    sys.stdout,
)
