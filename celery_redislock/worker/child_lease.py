"""What a worker's main process does for the lock that a child holds.

A child that is killed cannot release its lock, and one that is stopped, or keeps the GIL, cannot
extend it. The main process knows the key and token of what each child runs: it extends the lock
beside the child's own heartbeat, and releases it once the child is gone.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import weakref
from functools import cached_property, partial
from typing import Any, Final

from celery.worker.request import Request

from ..app.delivery import Kept, attempt_of
from ..app.housekeeper import housekeeper
from ..app.internals import call_in_consumer, is_active
from ..app.outcomes import Outcome, Whose, report
from ..errors import LockUnavailable, TaskReplaced
from ..lock.heartbeat import heartbeat
from ..lock.right import beat_every
from ..protocol import notes, past
from ..protocol.calls import EXTENSION, REQUEST, Release, mark_done, settle
from ..protocol.claims import NOT_OURS, Claim, Extended, Extension
from ..protocol.clock import clock
from ..protocol.holders import Holder, opening_of_held
from ..protocol.log import logger
from ..protocol.waiting import RETRY_EVERY
from ..servers.server import Server
from ..tasks.ends import End
from ..tasks.room import follow_up
from ..tasks.settle import settle_beside
from ..tasks.task import SingletonTask

#: Seconds after which a child that is to end and survived the first signal is killed.
KILL_AFTER: Final = 5.0
#: Windows has no SIGKILL, and there SIGTERM kills.
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)


class ChildLease:
    """What the main process knows of a lock that a child may hold. It never acquires a lock."""

    end_reason = past.DIED  # for the history, unless the child itself says there how it ended
    _is_cut_short = False  # the child died before its run had ended
    _is_not_retried = False  # the child died, and Celery has sent no retry
    #: The lock could not be released yet.
    _failed = False

    def __init__(self, pid: int, request: Request, token: str) -> None:
        self._pid = pid
        self._request = weakref.ref(request)
        self._task: SingletonTask = request.task
        self._call = (request.args, request.kwargs, request.request_dict)
        self._attempt = attempt_of(request.request_dict)
        self._is_to_end = self._child_is_dead = False
        self.token = token
        options = self._task.lock_options
        self.ttl: float = options.lock_ttl
        self._beat_every = beat_every(self.ttl, options.on_conflict.replaces)
        self._began = clock()
        self.next_beat = self._began + self._beat_every
        #: When the server last said that the child has the lock, and whether it has it by the last
        #: answer; None until the server was asked.
        self._confirmed_at: float | None = None
        self._held: bool | None = None

    @property
    def server(self) -> Server:
        return self._task.app_locks.server

    @cached_property
    def claim(self) -> Claim:
        """The child's claim. Made only when needed: most tasks end before that."""
        keys = self._task.lock_keys_for(*self._call)
        locks = self._task.app_locks
        more = {"task": self._task.name, "history": locks.history, "done_ttl": locks.done_ttl}
        return Claim(keys, self.token, self.ttl, "", *self._attempt, **more)

    def _finds_slot(self) -> bool:
        """Whether the child has a slot that `lock_limit` no longer gives. Remembers it."""
        opening, claim = self.claim.opening.encode(), self.claim
        keys = self._task.reaching(claim.keys, lambda value: value.startswith(opening))
        if keys == claim.keys:
            return False
        self.claim = dataclasses.replace(claim, keys=keys)
        heartbeat.beat_now(self)
        return True

    @property
    def _label(self) -> str | None:
        return self._task.label_for(*self._call)

    @property
    def known_claim(self) -> Claim | None:
        """The claim; None if the arguments give no lock name, for which the task fails."""
        try:
            return self.claim
        except Exception as exc:
            logger.debug(
                "redislock: the arguments of %s give no lock name: %s", self._attempt[0], exc
            )
            return None

    def expect_end(self, end_reason: str) -> None:
        """Note that this worker ends the child, before Celery forgets the request."""
        self._is_to_end, self.end_reason = True, end_reason

    def note_cut_short(self, is_retried: bool) -> None:
        """Note that the child died before its run had ended, and if Celery has sent a retry."""
        self._is_cut_short, self._is_not_retried = True, not is_retried

    def child_ended(self) -> None:
        """The child is gone, and this was its last task: release the lock that it left."""
        self._child_is_dead = True
        heartbeat.discard(self)  # first, or an extend could cross the release
        try:
            claim = self.known_claim
            if claim is None:
                return  # the child could not make the lock's name either
            end = self.end_reason if claim.history else ""
            if self._keep_for_retry(claim, end):
                return  # Celery has sent the retry, or is about to
            stray = EXTENSION + REQUEST * self._may_have_left
            release = Release(stray=stray, run_end=end, died=True)
            reply = self.server.run(settle(claim, release))
            if not reply.ours and self._finds_slot():
                reply = self.server.run(settle(self.claim, release))
            if reply.ours:
                self._say_freed()
            follow_up(self._task.app, claim.keys, self.ttl, reply)
        except LockUnavailable as exc:
            if not self._failed:
                text = "redislock: could not release the lock of dead pid %d, will try again: %s"
                level = logging.ERROR if self._may_have_left else logging.DEBUG
                logger.log(level, text, self._pid, exc)
            self._failed = True
            raise
        except Exception:
            logger.exception("redislock: could not release the lock of dead pid %d", self._pid)

    @property
    def _may_have_left(self) -> bool:
        """Whether the child did not end its last task, and so may have left the lock."""
        return self._is_active or self._is_to_end or self._is_cut_short

    @property
    def heir(self) -> Kept | None:
        """What the retry that Celery sends if the child dies will find reserved: the lock, or, if
        it was not acquired yet, the reservation. None if there is none.
        """
        task, request, claim = self._task, self._request(), self.known_claim
        if not getattr(task, "retry_on_worker_lost", False):  # Celery 5.7 has it
            return None
        limit = task.max_retries
        if (limit is not None and self._attempt[1] >= limit) or self._is_to_end:
            return None
        if not task.lock_options.kept_across_retries or request is None or claim is None:
            return None
        kept = Kept.of(request.request_dict)
        own_id = claim.keys.lock_id
        if kept is not None and kept.lock_id == own_id and kept.token and kept.place is None:
            return kept
        return Kept(own_id, f"{self.token}.retry")

    def _keep_for_retry(self, claim: Claim, end: str) -> bool:
        heir, task = self.heir, self._task
        if heir is None or self._is_not_retried:
            return False
        seconds = task.default_retry_delay + task.lock_options.kept_across_retries
        # No done note: we do not know yet whether there is a retry.
        kept = Release(run_end=end, heir=(opening_of_held(heir.token), seconds), died=True)
        is_ours = self.server.run(settle(claim, kept)).ours
        if not is_ours and self._finds_slot():
            is_ours = self.server.run(settle(self.claim, kept)).ours
        if not is_ours:
            return False
        if self._is_not_retried:  # this became known meanwhile
            settle_beside(task.app, heir, End.ENDED_BY_CELERY)
        return True

    def note_over(self, kind: str) -> None:
        """Leave such a done note for copies of the message: this process ends the attempt."""
        claim = self.known_claim
        if claim is not None:
            note = mark_done(claim, notes.lasting(kind))
            housekeeper.add(partial(self.server.run, note, once=True), most=claim.done_ttl)

    def _say_freed(self) -> None:
        key = self.claim.keys.lock
        task_id, attempt, _ = self._attempt
        report(
            Outcome.RECOVERED, Whose(key, self._task, task_id, attempt, self._label),
            "redislock: released %s: its holder, pid %d, died", key, self._pid,
            # If this worker ended the child, it sent an event, whose state ours would hide.
            emits=not self._is_to_end, details={"how": "freed"}, reason="freed",
        )  # fmt: skip

    def report(self) -> dict[str, Any] | None:
        """What this process knows of the lock, as plain data; None if the child cannot hold it."""
        now = clock()
        if not self._may_hold:
            return None
        task_id, attempt, _ = self._attempt
        confirmed = self._confirmed_at
        return {
            "key": self.claim.keys.lock,
            "task": self._task.name,
            "task_id": task_id,
            "attempt": attempt,
            "label": self._label,
            "pid": self._pid,
            "fence": None,
            "held": self._held,
            "held_for": round(now - self._began, 3),
            "confirmed_ago": None if confirmed is None else round(now - confirmed, 3),
            "ttl": self.ttl,
        }

    # -- for the heartbeat ----------------------------------------------------------------

    @property
    def _may_hold(self) -> bool:
        """Whether the child may still run the task, and we know which lock the task takes."""
        if self._child_is_dead or not (self._is_to_end or self._is_active):
            return False
        return self.known_claim is not None

    @property
    def _is_active(self) -> bool:
        request = self._request()
        return request is not None and is_active(request)

    def extension(self, now: float) -> Extension | None:
        """How to extend the lock. A missing one is not retaken: the child may have released it."""
        if not self._may_hold:
            heartbeat.discard(self)
            return None
        max_hold = self._task.lock_options.lock_max_hold
        return Extension(self.claim, self.claim.opening, 0, retake=False, max_hold=max_hold)

    def answered(self, reply: Extended | LockUnavailable, sent_at: float, discarded: bool) -> None:
        if discarded or self._child_is_dead:
            return
        if isinstance(reply, LockUnavailable):
            logger.debug("redislock: could not extend the lock of pid %d: %s", self._pid, reply)
            self.next_beat = clock() + RETRY_EVERY
        elif reply.outcome == NOT_OURS:
            # The child still waits for the lock, has lost it or released it, and says which.
            self._held = False
            self.next_beat = clock() + self._beat_every
            if callable(self._task.lock_options.lock_limit):
                housekeeper.add(self._finds_slot, most=0.0)  # the heartbeat waits for no answer
        else:
            self.next_beat = sent_at + self._beat_every
            self._confirmed_at, self._held = sent_at, True
            if reply.replaced_by is not None:
                self._make_room(reply.replaced_by, reply.ends_in)

    def _make_room(self, by: Holder, ends_in: float) -> None:
        """Terminate the child, whose run a newer one replaces, when its grace is over."""
        request = self._request()
        if ends_in > 0:
            self.next_beat = min(self.next_beat, clock() + ends_in)
        elif request is not None:
            signum = _KILL if -ends_in > KILL_AFTER else signal.SIGTERM
            error = TaskReplaced(self.claim.keys.lock, by)
            call_in_consumer(self._task.worker_consumer, request.end_child, error, signum)
