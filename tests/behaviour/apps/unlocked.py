"""Tasks that come down another road than ours, each with the fault that the test names."""

from __future__ import annotations

import logging.config
from typing import Any

from celery import Task, signals
from celery.app import trace

from celery_redislock import SingletonTask

from .bodies import CONF, new_app

FAULT = CONF.get("test_fault")

app = new_app("unlocked", CONF)


@app.task(shared=False, name="locked", base=SingletonTask)
def locked() -> None: ...


if FAULT == "forgotten":

    @app.task(shared=False, name="forgotten", lock_key=["a"], on_conflict="queue")
    def forgotten(a: Any) -> None: ...


class Batches(Task):
    """As celery-batches has it: its strategy gives messages to the pool by itself."""

    abstract = True

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any:
        raise AssertionError("a worker has made it its own")


if FAULT == "batches":

    @app.task(shared=False, name="batched", base=Batches)
    def batched(requests: Any) -> None: ...


if FAULT == "tracer":
    build = trace.build_tracer

    def build_async_tracer(*args: Any, **kwargs: Any) -> Any:
        """As celery-aio-pool and celery-pool-asyncio have it: bodies run elsewhere."""

        async def trace_task(*args: Any) -> Any: ...

        return trace_task

    trace.build_tracer = build_async_tracer


if FAULT == "logging":

    @signals.setup_logging.connect
    def configure(**kwargs: Any) -> None:
        handler = {"class": "logging.StreamHandler", "formatter": "short"}
        logging.config.dictConfig(
            {
                "version": 1,
                "formatters": {"short": {"format": "%(levelname)s %(name)s %(message)s"}},
                "handlers": {"stderr": handler},
                "root": {"handlers": ["stderr"], "level": CONF["test_level"]},
                "loggers": {name: {} for name in CONF["test_loggers"]},
            }
        )
