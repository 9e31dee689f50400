"""A contender's processes: a worker and a sender. They leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from tests.support.servers import RedisServer
from tests.support.workers import ROOT, Worker, make_app

from .contenders import NOTES_DB
from .counting import commands

_TICK = os.sysconf("SC_CLK_TCK")


class Sender:
    """A process of `bench.sender`."""

    def __init__(self, conf: dict[str, Any]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "bench.sender"],
            cwd=ROOT,
            env={**os.environ, "TEST_CONF": json.dumps(conf)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def publish(self, task: str, first: int, count: int, queue: str) -> dict[str, float]:
        return self._ask(do="publish", task=task, first=first, count=count, queue=queue)

    def send(self, task: str, args: list[Any], queue: str) -> dict[str, Any]:
        return self._ask(do="send", task=task, args=args, queue=queue)

    def begin(self, task: str, args: list[Any], queue: str) -> None:
        """As `send`, without waiting: some senders block. `end` gives the answer."""
        self._tell(do="send", task=task, args=args, queue=queue)

    def end(self) -> dict[str, Any]:
        return self._answer()

    def close(self) -> None:
        self._popen.kill()
        self._popen.communicate()

    def _ask(self, **request: Any) -> dict[str, Any]:
        self._tell(**request)
        return self._answer()

    def _tell(self, **request: Any) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(request) + "\n")
        self._popen.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            _, error = self._popen.communicate()
            raise ContenderError(error.strip().splitlines()[-1] if error else "the sender ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


class ContenderError(Exception):
    """A contender does not work here. Its text is for people."""


class Stage:
    """One contender's worker and sender, on these servers. The worker is frozen while it waits.

    Args:
        name: the contender's.
        server: for the broker, the results and the notes.
        locks: for the locks; the same by default.
        pool: the worker's.
        concurrency: the worker's.
        settings: more of the app's.
    """

    def __init__(
        self,
        name: str,
        server: RedisServer,
        *,
        locks: RedisServer | None = None,
        pool: str = "solo",
        concurrency: int = 1,
        **settings: Any,
    ) -> None:
        self.name = name
        self.queue = re.sub(r"\W+", "-", f"bench-{name}-{pool}")
        self.conf: dict[str, Any] = {
            "broker_url": f"{server.url}/1",
            "result_backend": f"{server.url}/2",
            "broker_connection_retry_on_startup": True,
            "bench_contender": name,
            "bench_url": server.url,
            "bench_lock_url": (locks or server).url,
            "task_ignore_result": True,
            **settings,
        }
        self._arguments = {"pool": pool, "concurrency": concurrency}
        self.notes: redis.Redis = server.client(NOTES_DB)
        self._plain_sender = make_app(self.conf)
        self._number = 0
        self.worker: Worker | None = None
        self.sender: Sender | None = None

    def __enter__(self) -> Stage:
        try:
            self.worker = self.another_worker(self.queue)
            self.sender = Sender(self.conf)
        except AssertionError as exc:  # of the worker, with its log
            self.__exit__()
            raise ContenderError(str(exc).strip().splitlines()[-1]) from exc
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for each in (self.sender, self.worker):
            if each is not None:
                each.close()
        self._plain_sender.close()
        self.notes.close()

    def another_worker(self, queue: str) -> Worker:
        """A worker with the same app. The caller closes it."""
        worker = Worker(
            *("-l", "INFO", "--without-heartbeat"),
            conf=self.conf,
            queues=queue,
            app="bench.celery_app",
            **self._arguments,
        )
        try:
            return worker.ready()
        except BaseException:
            worker.close()
            raise

    # -- one after the other --------------------------------------------------------------

    def freeze(self) -> None:
        """Let the worker do nothing at all until `drain`."""
        assert self.worker is not None
        self.worker.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.worker is not None
        self.worker.signal(signal.SIGCONT)

    def publish(self, count: int, task: str = "noop") -> dict[str, float]:
        """Send so many different calls, between two marks, to the frozen worker.

        Returns:
            The seconds that sending one took, and the CPU seconds.
        """
        assert self.sender is not None
        self._mark("first")
        self._number += count
        try:
            return self.sender.publish(task, self._number, count, self.queue)
        finally:
            self._mark("last")

    def drain(self, timeout: float = 120.0) -> tuple[float, float]:
        """Let the worker do what was sent. Returns the seconds between the marks, and of CPU."""
        cpu = self.cpu()
        self.thaw()
        try:
            first, last = (self.note(each, timeout) for each in ("first", "last"))
        except AssertionError as exc:
            raise ContenderError(f"not drained: {exc}") from exc
        finally:
            self.freeze()
        return last - first, self.cpu() - cpu

    def _mark(self, label: str) -> None:
        self._plain_sender.send_task("mark", (label,), queue=self.queue)

    def note(self, label: str, timeout: float = 30.0) -> float:
        """The next time that was noted under this label."""
        found = self.notes.blpop([label], timeout)
        if found is None:
            raise AssertionError(f"no note {label!r} within {timeout:g} s")
        return float(found[1])

    def cpu(self) -> float:
        """Seconds of CPU that the worker and its pool have used so far."""
        assert self.worker is not None
        return sum(_cpu_of(pid) for pid in (self.worker.pid, *self.worker.children()))

    def written_by_children(self) -> int:
        """Bytes that the pool's processes have written so far, except to sockets: they log nothing,
        so all went into the pipe to their main process.
        """
        assert self.worker is not None
        return sum(_written_by(pid) for pid in self.worker.children())

    def commands_of_a_call(self, locks: RedisServer, calls: int = 50, times: int = 3) -> float:
        """How many commands sender and worker send to the locks' database for a call.

        The fewest of some tries: what is done every few seconds does not belong to a call.
        """
        found = []
        for _ in range(times):
            with locks.client() as client, commands(client) as sent:
                self.publish(calls)
                self.drain()
            found.append(sent.total() / calls)
        return round(min(found), 1)


def _written_by(pid: int) -> int:
    # Bytes of `write` calls: data for a socket is sent by another call.
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["wchar"])


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK
