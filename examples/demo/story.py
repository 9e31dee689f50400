"""The demo's story, scene by scene. Each step waits until something has happened."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import Final, NoReturn, TypeVar

import redis

from . import scenes
from .history import History, Run
from .interrupts import Interrupts
from .screen import Screen
from .stage import Stage, StageError

T = TypeVar("T")

#: Seconds between looks at what has happened.
_TICK: Final = 0.05


class Story:
    """Plays on a stage, shows it on a screen, and keeps its history.

    Args:
        web: whether the page is served beside it.
    """

    def __init__(
        self, stage: Stage, screen: Screen, interrupts: Interrupts, *, web: bool = False
    ) -> None:
        os.environ["REDISLOCK_DEMO_URL"] = self.server_url = stage.url
        from . import tasks  # its app reads the URL when it is imported

        # Before several threads send at once: Celery's proxy of a task, evaluated by two of them at
        # the same time, fails in one with an AttributeError.
        tasks.app.finalize()
        self._tasks = tasks
        self._stage = stage
        self._screen = screen
        self._interrupts = interrupts
        self._web = web
        self.history = History()
        #: What the story waits for, in words.
        self.pending = ""
        #: Where the page is; "" without it.
        self.page_url = ""

    def play(self) -> None:
        """Tell all of it.

        Raises:
            Interrupted: somebody wants the demo to end.
            TooLate: it took too long; `pending` says what did.
            StageError: a process has ended before its time.
        """
        self._set_the_stage()
        self._beat_fires()
        self._callers_ask()
        self._kill_a_run()
        self._finish()

    def go_on(self) -> NoReturn:
        """Let the same jobs come again and again, for those who look at the page. What they do is
        not shown on the screen, and not counted.

        Raises:
            Interrupted, TooLate, StageError: as in `play`. Nothing else ends it.
        """
        self._stage.start_beat()
        while True:
            self._tasks.import_prices.delay()
            self._tasks.import_prices.delay()
            self._pause(scenes.NEXT_AFTER)
            self._call()
            self._pause(scenes.NEXT_AFTER)

    # -- the scenes -----------------------------------------------------------------------

    def _set_the_stage(self) -> None:
        self._screen.caption(
            f"Starting redis-server on port {self._stage.port}, and two Celery workers."
        )
        self._stage.start_redis()
        self._await_redis()
        for node in scenes.NODES:
            self._stage.start_worker(node)
        if self._web:
            self._stage.start_page()
            self.page_url = self._until(self._stage.page_url, "the page is served")
            self._screen.note(f"The page is at {self.page_url}")
        self._until(lambda: self.history.ready >= set(scenes.NODES), "the workers are ready")
        self._stage.start_beat()
        self._tasks.record_what_is_fired()
        self._screen.begin()

    def _beat_fires(self) -> None:
        self._screen.caption(
            "Beat fires the report every second, and it takes three. What comes while it runs"
            " is skipped."
        )
        row, history = scenes.REPORT, self.history
        self._until(lambda: history.duplicates("skipped", row), "a report was skipped")
        self._until(lambda: len(history.ended(row)) >= 2, "two reports have ended")

    def _callers_ask(self) -> None:
        self._screen.caption(
            "Ten callers ask at once for a sync of one of three accounts. Each account is synced"
            " by one at a time; the others are deferred, and none is lost."
        )
        self._call()
        ended = self.history.ended
        self._until(lambda: len(ended(*scenes.SYNC_ROWS)) >= scenes.CALLERS, "the syncs have run")

    def _call(self) -> None:
        at_once = threading.Barrier(scenes.CALLERS)

        def ask(account: int) -> None:
            at_once.wait()
            self._tasks.sync.delay(account)

        with ThreadPoolExecutor(scenes.CALLERS) as callers:
            # list: what a caller raised is raised here.
            list(callers.map(ask, islice(cycle(scenes.ACCOUNTS), scenes.CALLERS)))

    def _kill_a_run(self) -> None:
        row, history = scenes.IMPORT, self.history
        self._screen.caption(
            "An import runs, and the same import waits for its turn. In a moment the process that"
            " runs it is killed with SIGKILL."
        )
        self._tasks.import_prices.delay()
        run = self._until(lambda: history.running(row), "the import runs")
        self._tasks.import_prices.delay()
        self._until(lambda: len(history.waits(row)) == 2, "the second import waits")
        midst = run.start + scenes.KILLED_AFTER
        self._until(lambda: time.monotonic() >= midst, "the import is in mid-run")
        self._kill(run)
        self._until(lambda: len(history.runs_of(row)) == 2, "the next import runs")
        after = history.runs_of(row)[-1].start - run.until
        self._screen.caption(
            f"Killed: pid {run.pid} on worker {run.node}. The next run started {after * 1000:.0f}"
            f" ms later: the worker freed the lock, whose ttl is {scenes.LOCK_TTL} s."
        )
        self._until(lambda: history.running(row) is None, "the next import has ended")

    def _kill(self, run: Run) -> None:
        if run.end is not None:  # its process may by now run something else
            raise StageError("the import ended before it could be killed: the machine is too busy")
        at = time.monotonic()
        os.kill(run.pid, signal.SIGKILL)
        self._tasks.record(
            "killed", at=at, node=run.node, pid=run.pid, task_id=run.task_id, row=run.row
        )
        self._until(lambda: run.until < math.inf, "the kill is noted")

    def _finish(self) -> None:
        self._screen.caption("Beat is stopped, and the last report comes to its end.")
        # Right after a firing, so that none is cut short.
        before = len(self.history.fired(scenes.REPORT))
        self._until(lambda: len(self.history.fired(scenes.REPORT)) > before, "beat fires again")
        self._stage.end_beat()
        self._until(self._is_settled, "the last report has ended")
        self._screen.caption("The end: who ran when and where, and what met a held lock.")

    def _is_settled(self) -> bool:
        history, row = self.history, scenes.REPORT
        ended, skipped = history.ended(*scenes.ROWS), history.duplicates("skipped", row)
        runs = len(history.ended(row)) + len(skipped)
        released = all(history.releases[run.task_id] for run in ended)
        return released and runs >= len(history.fired(row))

    # -- waiting --------------------------------------------------------------------------

    def _await_redis(self) -> None:
        self.pending = "redis-server answers"
        while not self._tasks.log.answers():
            self._interrupts.check()
            self._stage.check()
            time.sleep(_TICK)

    def _until(self, condition: Callable[[], T | None], what: str) -> T:
        """Let time pass until the condition is true, and return its value."""
        self.pending = what
        while not (value := condition()):
            self._tick()
        return value

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._interrupts.check()
            self._stage.check()
            time.sleep(_TICK)

    def _tick(self) -> None:
        self._interrupts.check()
        self._stage.check()
        try:
            events = self._tasks.log.read_new()
        except redis.RedisError as exc:
            raise StageError(f"the embedded Redis does not answer: {exc}") from exc
        for event in events:
            self.history.add(event)
            self._screen.event(event, self.history)
        self._screen.refresh(self.history)
        time.sleep(_TICK)
