"""Several processes that do something at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from threading import BrokenBarrierError
from typing import Any

#: Seconds within which all must be ready.
_START = 60
#: Seconds that one may take beyond its own time until it ends.
_END = 120

#: What the processes need, imported once for all. What is not installed is skipped.
_IMPORTS = [
    *("bench.contended", "bench.heartbeats", "bench.load", "bench.market"),
    *("celery_redislock", "pottery", "redis_lock", "sherlock"),
]
# Not forks of this process, which may have threads and connections.
_context = multiprocessing.get_context("forkserver")


class CrowdError(Exception):
    """One of the processes failed. Its text is for people."""


def together(
    jobs: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]],
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Run each function in a process of its own.

    Args:
        jobs: functions of a module, and their arguments after the first. The first is for the
            function to call when it is ready: it returns when all are.
        meanwhile: called here once all are ready.

    Returns:
        What they returned.
    """
    _context.set_forkserver_preload(_IMPORTS)
    barrier = _context.Barrier(len(jobs) + 1)
    with ExitStack() as stack:
        ends = []
        for function, arguments in jobs:
            mine, its = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_run, args=(its, function, barrier, arguments), daemon=True
            )
            process.start()
            stack.callback(_end, process)
            its.close()
            ends.append(mine)
        try:
            barrier.wait(_START)
        except BrokenBarrierError:
            pass  # one has failed, and says below why
        else:
            meanwhile()
        return [_answer(end) for end in ends]


def _run(end: Connection, function: Any, barrier: Any, arguments: tuple[Any, ...]) -> None:
    try:
        end.send((None, function(barrier.wait, *arguments)))
    except BaseException as exc:
        barrier.abort()
        end.send((f"{type(exc).__name__}: {exc}", None))


def _answer(end: Connection) -> Any:
    if not end.poll(_END):
        raise CrowdError("a process did not come to its end")
    error, result = end.recv()
    if error is not None:
        raise CrowdError(error)
    return result


def _end(process: Any) -> None:
    process.kill()  # it has answered, or is not waited for
    process.join()
