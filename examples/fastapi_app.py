"""A web API that starts tasks: one that coalesces its triggers, one that refuses a second; and
a handler that shares a lock with a task.

From the top of the repository, with a Redis at REDIS_URL (default: redis://localhost:6379/0):

    celery -A examples.fastapi_app worker -c 4
    uvicorn examples.fastapi_app:api
    curl -X POST localhost:8000/accounts/5/sync
"""

import asyncio
import os
import time
from typing import Annotated

from celery import Celery
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from celery_redislock import (
    AsyncAcquisition,
    AsyncRedisLock,
    Coalesce,
    LockConflict,
    LockUnavailable,
    SingletonTask,
    Wait,
)

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


@app.task(base=SingletonTask, lock_key="account:{account_id}", on_conflict=Wait(timeout=30))
def settle(account_id):
    """Not while an adjustment is made, which holds the same lock."""
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


@api.post("/accounts/{account_id}/settle", status_code=202)
def start_settle(account_id: int):
    return {"task_id": settle.delay(account_id).id}


@api.post("/accounts/{account_id}/adjust")
async def adjust(account_id: int, seconds: float = 0):
    label = f"api: adjust {account_id}"
    async with AsyncRedisLock(app, f"account:{account_id}", timeout=2, label=label) as held:
        await asyncio.sleep(seconds)  # the work
        return {"fence": held.fence}


async def account_lock(account_id: int):
    async with AsyncRedisLock(app, f"account:{account_id}", timeout=2) as held:
        yield held


@api.post("/accounts/{account_id}/close")
async def close(held: Annotated[AsyncAcquisition, Depends(account_lock)]):
    return {"fence": held.fence}


@api.exception_handler(LockConflict)
def conflict(request: Request, error: LockConflict):
    holder = error.holder
    content = {
        "detail": "it waits in the queue" if holder and holder.queued else "it is running",
        "task_id": holder and holder.task_id,
    }
    return JSONResponse(content, status_code=409)


@api.exception_handler(LockUnavailable)
def unavailable(request: Request, error: LockUnavailable):
    content = {"detail": "try again later"}
    return JSONResponse(content, status_code=503, headers={"Retry-After": "5"})


@api.get("/tasks/{task_id}")
def state(task_id: str):
    return {"task_id": task_id, "state": app.AsyncResult(task_id).state}
