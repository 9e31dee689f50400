"""A web API that starts tasks: one that coalesces its triggers, one that refuses a second.

From the top of the repository, with a Redis at REDIS_URL (default: redis://localhost:6379/0):

    celery -A examples.fastapi_app worker -c 4
    uvicorn examples.fastapi_app:api
    curl -X POST localhost:8000/accounts/5/sync
"""

import os
import time

from celery import Celery
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from celery_redislock import Coalesce, LockConflict, SingletonTask

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

app = Celery("examples.fastapi_app", broker=REDIS_URL, backend=REDIS_URL)
app.conf.redislock_url = REDIS_URL


@app.task(base=SingletonTask, on_conflict=Coalesce())
def sync(account_id):
    """Runs once more after the last trigger, however many came during a run."""
    time.sleep(1)  # the work
    return account_id


@app.task(base=SingletonTask, lock_scope="queued+running", on_queued_conflict="raise")
def export(account_id):
    """Refused at send, while another one waits or runs."""
    time.sleep(1)  # the work
    return account_id


api = FastAPI()


# Not `async def`: these wait for Redis, and FastAPI gives them a thread each.
@api.post("/accounts/{account_id}/sync", status_code=202)
def start_sync(account_id: int):
    return {"task_id": sync.delay(account_id).id}


@api.post("/accounts/{account_id}/export", status_code=202)
def start_export(account_id: int):
    return {"task_id": export.delay(account_id).id}


@api.exception_handler(LockConflict)
def conflict(request: Request, error: LockConflict):
    holder = error.holder
    content = {
        "detail": "it waits in the queue" if holder and holder.queued else "it is running",
        "task_id": holder and holder.task_id,
    }
    return JSONResponse(content, status_code=409)


@api.get("/tasks/{task_id}")
def state(task_id: str):
    return {"task_id": task_id, "state": app.AsyncResult(task_id).state}
