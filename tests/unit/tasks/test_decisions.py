"""What is decided of a delivery, as a table: facts, policy and the server's answers, and what
follows from them. Values only: nothing is asked and nothing done, and there is no server.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from celery import Celery

from celery_redislock import (
    Coalesce,
    ConfigError,
    Conflict,
    Debounce,
    Defer,
    LockUnavailable,
    Queue,
    Raise,
    Replace,
    SingletonTask,
    Skip,
    Wait,
)
from celery_redislock.app.delivery import KEY, Delivery, Kept
from celery_redislock.app.outcomes import Outcome
from celery_redislock.policies import Policy
from celery_redislock.protocol import notes
from celery_redislock.protocol.claims import Acquired, Busy, Done, Free, Full, Older, Parked
from celery_redislock.protocol.entries import slot_of
from celery_redislock.protocol.holders import Holder
from celery_redislock.protocol.suspensions import Suspension
from celery_redislock.tasks import decide
from celery_redislock.tasks.decide import (
    FIRST,
    GO,
    NOBODY,
    RERUN,
    Answer,
    Await,
    AwaitEarlier,
    CannotRun,
    Go,
    GoUnlocked,
    HasResult,
    Meet,
    Outcomes,
    Park,
    PutOff,
    Question,
    TooLarge,
    Try,
    TurnedAway,
    Waits,
)
from celery_redislock.tasks.facts import Facts
from celery_redislock.tasks.state import State
from tests.contract.clocks import clock

HOLDER = Holder(task="t", task_id="another")
BUSY = Busy(HOLDER, 9.0, "other")
OWN, EARLIER, FOR_MESSAGE = (
    BUSY._replace(relation="own"),
    BUSY._replace(relation="earlier"),
    BUSY._replace(for_message=True),
)
NEWER = BUSY._replace(relation="newer")
#: Another one than the first.
LATER = BUSY._replace(holder=Holder(task="t", task_id="later"))
GOT = Acquired("{}", 1, 0.0)
AWAY = LockUnavailable("a key", None, "the server is away")
SUSPENSION = Suspension(task="t", by="anna@h", why="migration", since=1.0, ends_at=2.0)
OFF = Busy(None, 9.0, "suspended", for_message=True, suspension=SUSPENSION)
OFF_DUTY = Waits(Outcome.QUEUED, None, SUSPENSION)
PARKED, FREE, FULL, TOO_LARGE = Parked({}), Free({}), Full(), TooLarge()
AWAIT_EARLIER = AwaitEarlier(1.0)
SKIP = Skip()


def done(kind: str = notes.ENDED, age: float = 1.0, sent: str = "m", by: Any = None) -> Done:
    return Done(notes.Note(kind, sent, by), age)


ANOTHERS, AGAIN = done(sent="other", age=60.0), Try(again="m")


def body() -> None:
    """It is never run."""


@functools.cache
def task_with(options: tuple[tuple[str, Any], ...]) -> Any:
    app = Celery("table", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(redislock_url="redis://nobody.invalid", redislock_eager=True)
    app.task(base=SingletonTask, name="t", shared=False, **dict(options))(body)
    return app.tasks["t"]


class Case(NamedTuple):
    """Some facts of a delivery: what it is not told is as for a task that was just sent."""

    options: dict[str, Any] = {}  # noqa: RUF012  never changed
    header: dict[str, Any] = {}  # noqa: RUF012
    mark: dict[str, Any] = {}  # noqa: RUF012
    raw: dict[str, Any] = {}  # noqa: RUF012
    result: bool = False
    is_eager: bool = False

    def delivery(self) -> tuple[Facts, State]:
        task = task_with(tuple(self.options.items()))
        mark = {"token": "a token", "received": clock(), "queue": "q", "sent": "m", **self.mark}
        raw = {
            "id": "this", "task": "t", "hostname": "w@h", "properties": {KEY: mark},
            "delivery_info": {}, KEY: {"v": 2, "sent": "m", **self.header}, **self.raw,
        }  # fmt: skip
        kept, message = Kept.of(raw), Delivery.take_from(raw)
        facts = Facts(task, task.app_locks, raw, message, kept, (), {}, self.is_eager)
        return facts, State(message)


class Walk(NamedTuple):
    """What was asked of the server, what was decided, and what was known then."""

    asked: list[Question]
    decision: Outcomes
    state: State


def walk(case: Case, answers: list[Answer], facts: Facts | None = None) -> Walk:
    """Give these answers, the case's result and what the policy says to each question."""
    own, state = case.delivery()
    facts, left, asked = facts or own, list(answers), []
    step = decide.first(facts, state)
    while isinstance(step, Question):
        answer: Any = None
        if isinstance(step, Meet):
            answer = step.ask(facts, state)
        elif isinstance(step, HasResult):
            answer = None if case.options.get("ignore_result") else case.result
        else:
            asked.append(step)
            answer = left.pop(0)
        state, step = decide.step(facts, state, step, answer)
    assert not left
    return Walk(asked, step, state)


def plain(question: Question) -> Question:
    """Without what the policy wanted before, and the note that the server leaves."""
    return dataclasses.replace(question, wish=None) if hasattr(question, "wish") else question


def policy(what: Policy, **more: Any) -> Case:
    return Case({"on_conflict": what}, **more)


def on_error(choice: str, **header: Any) -> Case:
    return Case({"on_redis_error": choice}, header=header)


QUEUES = policy(Queue())
NEW, COPY = Case(), Case(header={"redelivered": True})
RETRY = Case(raw={"retries": 1})
FANOUT, FANOUT_COPY = (
    Case(mark={"fanout": True}),
    Case(mark={"fanout": True}, header={"redelivered": True}),
)
EAGER = Case(is_eager=True)
FROM_ROOM = Case(header={"parked": "this:0.0", "redelivered": True, "began": False})
SKIPPED = TurnedAway(Outcome.SKIPPED, HOLDER)
DONE_ELSEWHERE = TurnedAway(Outcome.ALREADY_DONE)
REPLACED, ENDS_REPLACED = done(notes.REPLACED, by=HOLDER), TurnedAway(Outcome.REPLACED, HOLDER)
QUEUED = Waits(Outcome.QUEUED, HOLDER)


def deferred(countdown: float, outcome: Outcome = Outcome.DEFERRED, **more: Any) -> PutOff:
    more.setdefault("comes_anew", outcome is Outcome.DEFERRED)
    return PutOff(countdown, outcome, HOLDER, **more)


#: Facts and policy, the answers, the questions after the first, and the decision.
TABLE: dict[str, tuple[Case, list[Answer], list[Question], Outcomes]] = {
    "free": (NEW, [GOT], [], GO),
    # The server does not answer.
    "away": (NEW, [AWAY], [], PutOff(1.0, Outcome.UNAVAILABLE, cause=AWAY)),
    "away, again": (
        on_error("defer", outages=3), [AWAY], [], PutOff(8.0, Outcome.UNAVAILABLE, cause=AWAY),
    ),
    "away, and it runs": (on_error("run"), [AWAY], [], GoUnlocked(AWAY)),
    "away, and it fails": (on_error("raise"), [AWAY], [], CannotRun(AWAY)),
    "away, and nobody would run what is sent": (EAGER, [AWAY], [], CannotRun(AWAY)),
    # Other runs of the same task.
    "its own run": (NEW, [OWN], [], deferred(1.0, Outcome.REDELIVERED, is_alone=False)),
    "its own run, again": (
        Case(header={"deferrals": 9, "behind": 9}), [OWN], [],
        deferred(512.0, Outcome.REDELIVERED, is_alone=False),
    ),
    "its own run, of what others had been deferring": (
        Case(header={"deferrals": 14}), [OWN], [],
        deferred(1.0, Outcome.REDELIVERED, is_alone=False),
    ),
    "its own run, of what the room published twice": (
        FROM_ROOM, [OWN], [], TurnedAway(Outcome.RUNS_ELSEWHERE, HOLDER),
    ),
    "its own run, or a lock that it got in an outage": (
        FROM_ROOM._replace(header={**FROM_ROOM.header, "deferrals": 1, "outages": 1}), [OWN], [],
        deferred(1.0, Outcome.REDELIVERED, is_alone=False),
    ),
    "its own run, of what the room published and the broker delivered before": (
        FROM_ROOM._replace(mark={"redelivered": True}), [OWN], [],
        deferred(1.0, Outcome.REDELIVERED, is_alone=False),
    ),
    "its own run, of what an earlier release put off since it came from the room": (
        Case(header={"parked": "this:0.0", "redelivered": True, "deferrals": 1}), [OWN], [],
        deferred(1.0, Outcome.REDELIVERED, is_alone=False),
    ),
    "its own run, of what an earlier release parked": (
        Case(header={"parked": "this:0.0", "redelivered": True, "parked_at": 1.0}), [OWN], [],
        TurnedAway(Outcome.RUNS_ELSEWHERE, HOLDER),
    ),
    "its own run, around it": (EAGER, [OWN], [], GoUnlocked()),
    "its own run, of another queue's copy": (
        FANOUT, [OWN], [], TurnedAway(Outcome.RUNS_ELSEWHERE, HOLDER),
    ),
    "its own lock, which another queue's copy got in an outage": (
        Case(mark={"fanout": True}, header={"outages": 1}), [OWN], [],
        deferred(1.0, Outcome.REDELIVERED, is_alone=False),
    ),
    "its own run, of a copy that is left alone": (
        FANOUT_COPY, [OWN], [],
        deferred(1.0, Outcome.REDELIVERED, is_alone=False),
    ),
    "its earlier attempt ends": (RETRY, [EARLIER, GOT], [AWAIT_EARLIER], GO),
    "its earlier attempt goes on": (
        RETRY, [EARLIER, EARLIER], [AWAIT_EARLIER],
        deferred(1.0, Outcome.RETRIED_EARLY, is_alone=False),
    ),
    "its earlier attempt ends, and another one is faster": (
        RETRY, [EARLIER, BUSY], [AWAIT_EARLIER], SKIPPED,
    ),
    "its earlier attempt goes on, and the lock is short": (
        Case({"lock_ttl": 1.5}, raw={"retries": 1}), [EARLIER, GOT], [AwaitEarlier(0.5)], GO,
    ),
    "its newer attempt": (NEW, [NEWER], [], deferred(1.0, is_alone=False, comes_anew=False)),
    "its newer attempt, around it": (EAGER, [NEWER], [], SKIPPED),
    "its newer attempt, of what cannot come back": (
        Case(mark={"fanout": True, "queue": None}), [NEWER], [], SKIPPED,
    ),
    "its earlier attempt, around it": (EAGER, [EARLIER], [], GoUnlocked()),
    # It has run.
    "it has run": (NEW, [done()], [], DONE_ELSEWHERE),
    "it has run, with a result": (
        Case(result=True), [done(notes.EXPECTS_RESULT, age=9.0)], [], DONE_ELSEWHERE,
    ),
    "it stores no result": (
        Case({"ignore_result": True}), [done(notes.EXPECTS_RESULT, age=9.0)], [], DONE_ELSEWHERE,
    ),
    "its result is on the way": (
        NEW, [done(notes.EXPECTS_RESULT)], [], PutOff(1.0),
    ),
    "its result is still on the way": (
        Case(header={"deferrals": 1}), [done(notes.EXPECTS_RESULT, age=2.0)], [], PutOff(2.0),
    ),
    "its result is on the way for a moment more": (
        Case(header={"deferrals": 9}), [done(notes.EXPECTS_RESULT, age=4.25)], [], PutOff(0.75),
    ),
    "its process died after the body": (
        NEW, [done(notes.EXPECTS_RESULT, age=9.0), GOT], [RERUN], GO,
    ),
    "what follows it was not published": (
        Case(result=True), [done(notes.PUBLISHING, age=9.0), GOT],
        [RERUN], GO,
    ),
    "it runs again, and another one has the lock": (
        NEW, [done(notes.EXPECTS_RESULT, age=9.0), BUSY, PARKED], [RERUN, Park(BUSY)], QUEUED,
    ),
    "it runs again, and is suspended": (
        NEW, [done(notes.EXPECTS_RESULT, age=9.0), OFF, PARKED], [RERUN, Park(OFF)], OFF_DUTY,
    ),
    "it was sent again under its id": (NEW, [ANOTHERS, GOT], [AGAIN], GO),
    "it was sent again under its id, and has run meanwhile": (
        NEW, [ANOTHERS, done()], [AGAIN], DONE_ELSEWHERE,
    ),
    "it was sent again under its id, and has waited for long": (
        Case(mark={"received": clock() - 90.0}), [ANOTHERS, GOT], [AGAIN], GO,
    ),
    "it was sent after that": (
        Case(header={"sent": ""}, mark={"sent": ""}),
        [done(sent="", age=60.0), GOT], [Try(again=notes.NO_MESSAGE)], GO,
    ),
    "it was sent before that": (
        Case(header={"sent": ""}, mark={"sent": "", "received": clock() - 90.0}),
        [done(sent="", age=60.0)], [], DONE_ELSEWHERE,
    ),
    "a copy, whenever it came": (
        Case(header={"sent": "", "redelivered": True}),
        [done(sent="", age=60.0)], [], DONE_ELSEWHERE,
    ),
    "it was replaced": (NEW, [REPLACED], [], ENDS_REPLACED),
    "it was replaced, and had not ended": (COPY, [REPLACED], [], ENDS_REPLACED),
    "it was replaced, but had ended": (COPY._replace(result=True), [REPLACED], [], DONE_ELSEWHERE),
    "it was replaced where it waited": (NEW, [done(by=HOLDER)], [], DONE_ELSEWHERE),
    "a copy of it was replaced where it waited": (COPY, [done(by=HOLDER)], [], DONE_ELSEWHERE),
    "it was replaced where it waited for the lock again": (
        policy(Coalesce()), [BUSY, done(by=HOLDER)], [Park(BUSY, newest=True)], DONE_ELSEWHERE,
    ),
    "its run was replaced, and has stored its result": (
        COPY._replace(result=True), [done("1", by=HOLDER)], [], DONE_ELSEWHERE,
    ),
    "its run was replaced, and is storing its result": (
        COPY, [done("1", by=HOLDER)], [], PutOff(1.0),
    ),
    "its run was replaced, and died before it stored its result": (
        COPY, [done("1", age=6.0, by=HOLDER)], [], ENDS_REPLACED,
    ),
    "its run was replaced, and died before what follows was published": (
        COPY, [done("c", age=6.0, by=HOLDER)], [], ENDS_REPLACED,
    ),
    # An ordinary conflict, and each policy.
    "skip": (policy(Skip()), [BUSY], [], SKIPPED),
    "skip with a result": (
        policy(Skip(result=None)), [BUSY], [],
        TurnedAway(Outcome.SKIPPED_WITH_RESULT, HOLDER, result=None),
    ),
    "raise": (policy(Raise()), [BUSY], [], TurnedAway(Outcome.RAISED, HOLDER)),
    "defer": (policy(Defer(delay=7)), [BUSY], [], deferred(7.0)),
    "defer again": (
        policy(Defer(delay=7, backoff=2), header={"deferrals": 2}), [BUSY], [], deferred(28.0),
    ),
    "defer, but not for ever": (
        policy(Defer(max_wait=5, then=Raise()), header={"since": 1.0}), [BUSY], [],
        TurnedAway(Outcome.RAISED, HOLDER),
    ),
    "defer, and nobody would run it": (policy(Defer(), is_eager=True), [BUSY], [], SKIPPED),
    "defer, to no queue": (
        policy(Defer(), mark={"fanout": True, "queue": None}), [BUSY], [],
        TurnedAway(Outcome.SKIPPED, HOLDER, why=(
            "it came through a fanout exchange, and this broker cannot give it back to this"
            " worker alone")),
    ),
    "wait": (policy(Wait()), [BUSY, GOT], [Await(BUSY, None, SKIP)], Go(BUSY)),
    "wait in vain": (
        policy(Wait(timeout=3, then=Raise())), [BUSY, BUSY], [Await(BUSY, 3, Raise())],
        TurnedAway(Outcome.RAISED, HOLDER),
    ),
    "wait, and the server goes away": (
        policy(Wait()), [BUSY, AWAY], [Await(BUSY, None, SKIP)],
        PutOff(1.0, Outcome.UNAVAILABLE, cause=AWAY),
    ),
    "wait, and it runs in another process": (
        policy(Wait()), [BUSY, OWN], [Await(BUSY, None, SKIP)],
        deferred(1.0, Outcome.REDELIVERED, is_alone=False),
    ),
    "wait for a message that needs the slot": (
        policy(Wait(timeout=3)), [BUSY, FOR_MESSAGE, PARKED],
        [Await(BUSY, 3, SKIP), Park(FOR_MESSAGE, give_up=3, then=SKIP)], QUEUED,
    ),
    "wait for a message, and it is gone for a moment": (
        policy(Wait(timeout=3)), [BUSY, FOR_MESSAGE, FREE, EARLIER, LATER, PARKED],
        [Await(BUSY, 3, SKIP), Park(FOR_MESSAGE, give_up=3, then=SKIP), FIRST, AWAIT_EARLIER,
         Park(LATER, give_up=3, then=SKIP)], Waits(Outcome.QUEUED, LATER.holder),
    ),
    "wait for a message, and have waited before": (
        policy(Wait(timeout=3), header={"gave_up": True}), [BUSY, FOR_MESSAGE],
        [Await(BUSY, 3, SKIP)], SKIPPED,
    ),
    "wait, and another policy of an older release gave up": (
        policy(Wait(), header={"gave_up": True}), [BUSY, FOR_MESSAGE, PARKED],
        [Await(BUSY, None, SKIP), Park(FOR_MESSAGE, then=SKIP)], QUEUED,
    ),
    "queue": (policy(Queue()), [BUSY, PARKED], [Park(BUSY, then=SKIP)], QUEUED),
    "queue, of some length, and then something else": (
        policy(Queue(limit=2, then=Raise())), [BUSY, FULL], [Park(BUSY, limit=2, then=Raise())],
        TurnedAway(Outcome.RAISED, HOLDER),
    ),
    "queue, and the lock is free by then": (
        policy(Queue()), [BUSY, FREE, GOT], [Park(BUSY, then=SKIP), FIRST], GO,
    ),
    "queue, and it was free for a moment": (
        policy(Queue()), [BUSY, FREE, EARLIER, BUSY, PARKED],
        [Park(BUSY, then=SKIP), FIRST, AWAIT_EARLIER, Park(BUSY, then=SKIP)], QUEUED,
    ),
    "queue, and the server goes away": (
        policy(Queue()), [BUSY, AWAY], [Park(BUSY, then=SKIP)],
        PutOff(1.0, Outcome.UNAVAILABLE, cause=AWAY),
    ),
    "queue, and the server is not needed": (
        Case({"on_conflict": Queue(), "on_redis_error": "run"}), [BUSY, AWAY],
        [Park(BUSY, then=SKIP)], GoUnlocked(AWAY),
    ),
    "queue, and its wait is over": (
        policy(Queue(max_wait=5, then=Raise()), header={"since": 1.0}), [BUSY], [],
        TurnedAway(Outcome.RAISED, HOLDER),
    ),
    "queue, from a fanout exchange": (
        policy(Queue(), mark={"fanout": True}), [BUSY], [], deferred(1.0),
    ),
    "queue, from a fanout exchange, for long": (
        policy(Queue(), mark={"fanout": True}, header={"deferrals": 9}), [BUSY], [],
        deferred(10.0),
    ),
    "queue, but its message is too large": (
        policy(Queue(limit=2)), [BUSY, TOO_LARGE, BUSY], [Park(BUSY, limit=2, then=SKIP), FIRST],
        deferred(1.0),
    ),
    "queue, but its message is too large, and the lock is free by then": (
        policy(Queue()), [BUSY, TOO_LARGE, GOT], [Park(BUSY, then=SKIP), FIRST], GO,
    ),
    "queue a large message, and the server goes away": (
        policy(Queue()), [BUSY, TOO_LARGE, AWAY], [Park(BUSY, then=SKIP), FIRST],
        PutOff(1.0, Outcome.UNAVAILABLE, cause=AWAY),
    ),
    "replace, but its message is too large": (
        policy(Replace(grace=2)), [BUSY, TOO_LARGE, BUSY],
        [Park(BUSY, newest=True, grace=2), FIRST], deferred(1.0),
    ),
    "wait for a message, but its own is too large": (
        policy(Wait(timeout=3)), [BUSY, FOR_MESSAGE, TOO_LARGE, FOR_MESSAGE, FOR_MESSAGE],
        [Await(BUSY, 3, SKIP), Park(FOR_MESSAGE, give_up=3, then=SKIP), FIRST,
         Await(FOR_MESSAGE, 3, SKIP)], deferred(1.0),
    ),
    "coalesce with a result, and nobody would run it": (
        policy(Coalesce(result="r"), is_eager=True), [BUSY], [],
        TurnedAway(Outcome.SKIPPED_WITH_RESULT, HOLDER, result="r"),
    ),
    "replace with a result, as a retry": (
        policy(Replace(result="r"), raw={"retries": 1}), [BUSY], [],
        TurnedAway(Outcome.SKIPPED_WITH_RESULT, HOLDER, result="r"),
    ),
    "queue, and nobody would run it": (policy(Queue(), is_eager=True), [BUSY], [], SKIPPED),
    "coalesce": (
        policy(Coalesce()), [BUSY, PARKED], [Park(BUSY, newest=True)],
        Waits(Outcome.COALESCED, HOLDER),
    ),
    "coalesce with a newer one": (
        policy(Coalesce()), [BUSY, Older("newer")], [Park(BUSY, newest=True)],
        TurnedAway(Outcome.REPLACED, Holder(task="t", task_id="newer")),
    ),
    "replace": (
        policy(Replace(grace=2)), [BUSY, PARKED], [Park(BUSY, newest=True, grace=2)],
        Waits(Outcome.REPLACING, HOLDER),
    ),
    "replace a newer one": (
        policy(Replace(grace=2)), [BUSY, Older("x", HOLDER)], [Park(BUSY, newest=True, grace=2)],
        TurnedAway(Outcome.REPLACED, HOLDER),
    ),
    "replace, as a copy of what died": (
        policy(Replace(grace=2), header={"redelivered": True}), [BUSY, PARKED],
        [Park(BUSY, newest=True)], Waits(Outcome.COALESCED, HOLDER),
    ),
    "replace, as a retry": (policy(Replace(), raw={"retries": 1}), [BUSY], [], SKIPPED),
    # An operator has suspended the task or the lock.
    "suspended, skip": (NEW, [OFF], [], TurnedAway(Outcome.SKIPPED, suspension=SUSPENSION)),
    "suspended, skip with a result": (
        policy(Skip(result="r")), [OFF], [],
        TurnedAway(Outcome.SKIPPED_WITH_RESULT, suspension=SUSPENSION, result="r"),
    ),
    "suspended, raise": (
        policy(Raise()), [OFF], [], TurnedAway(Outcome.RAISED, suspension=SUSPENSION),
    ),
    "suspended, defer": (
        policy(Defer(delay=7)), [OFF], [],
        PutOff(7.0, Outcome.DEFERRED, suspension=SUSPENSION),
    ),
    "suspended, queue": (QUEUES, [OFF, PARKED], [Park(OFF, then=SKIP)], OFF_DUTY),
    "suspended, coalesce": (
        policy(Coalesce()), [OFF, PARKED], [Park(OFF, newest=True)],
        Waits(Outcome.COALESCED, None, SUSPENSION),
    ),
    "suspended, replace": (
        policy(Replace(grace=2)), [OFF, PARKED], [Park(OFF, newest=True, grace=2)],
        Waits(Outcome.REPLACING, None, SUSPENSION),
    ),
    "suspended, wait": (
        policy(Wait(timeout=9)), [OFF, OFF, PARKED],
        [Await(OFF, 9.0, SKIP), Park(OFF, give_up=9.0, then=SKIP)], OFF_DUTY,
    ),
    "suspended while it waits": (
        policy(Wait(timeout=9)), [BUSY._replace(sent_at=5.0), OFF._replace(sent_at=11.0), PARKED],
        [
            Await(BUSY._replace(sent_at=5.0), 9.0, SKIP),
            Park(OFF._replace(sent_at=11.0), give_up=3.0, then=SKIP),
        ], OFF_DUTY,
    ),
    "suspended as its time to wait ends": (
        policy(Wait(timeout=9, then=Raise())),
        [BUSY._replace(sent_at=5.0), OFF._replace(sent_at=14.0)],
        [Await(BUSY._replace(sent_at=5.0), 9.0, Raise())],
        TurnedAway(Outcome.RAISED, suspension=SUSPENSION),
    ),
    "suspended, and its time in the room is over": (
        policy(Queue(max_wait=5, then=Raise()), header={
            "parked": True, "gave_up": True, "since": 1.0, "redelivered": True, "began": False,
        }),
        [OFF], [], TurnedAway(Outcome.RAISED, suspension=SUSPENSION),
    ),
    "suspended, and its time in the room is over, by an older release's header": (
        policy(Wait(timeout=5), header={
            "parked": True, "gave_up": True, "since": 1.0, "redelivered": True, "parked_at": 1.0,
        }),
        [OFF, OFF], [Await(OFF, 5.0, SKIP)],
        TurnedAway(Outcome.SKIPPED, suspension=SUSPENSION),
    ),
    "suspended, a retry": (RETRY, [OFF, PARKED], [Park(OFF)], OFF_DUTY),
    "suspended, a redelivery": (
        Case(mark={"redelivered": True}), [OFF, PARKED], [Park(OFF)], OFF_DUTY,
    ),
    "suspended, a retry, whatever its policy": (
        policy(Queue(limit=1, max_wait=5, then=Raise()), raw={"retries": 1}), [OFF, PARKED],
        [Park(OFF)], OFF_DUTY,
    ),
    "suspended, a retry beside newer calls": (
        policy(Coalesce(), raw={"retries": 1}), [OFF, PARKED], [Park(OFF, newest=True)],
        Waits(Outcome.COALESCED, None, SUSPENSION),
    ),
    "suspended, a retry whose message is too large": (
        RETRY, [OFF, TOO_LARGE], [Park(OFF)],
        PutOff(1.0, Outcome.DEFERRED, suspension=SUSPENSION),
    ),
    "suspended, a retry from a fanout exchange": (
        FANOUT._replace(raw={"retries": 1}, mark={"fanout": True, "queue": "q"}), [OFF], [],
        PutOff(1.0, Outcome.DEFERRED, suspension=SUSPENSION),
    ),
    "suspended, a retry from a fanout exchange, close to the end": (
        FANOUT._replace(
            raw={"retries": 1}, mark={"fanout": True, "queue": "q"}, header={"deferrals": 9},
        ),
        [OFF], [], PutOff(9.0, Outcome.DEFERRED, suspension=SUSPENSION),
    ),
    "suspended, and nobody would run it": (
        EAGER, [OFF], [], TurnedAway(Outcome.SKIPPED, suspension=SUSPENSION),
    ),
    "replace, and nobody would run it": (policy(Replace(), is_eager=True), [BUSY], [], SKIPPED),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_a_delivery_goes_on_as_the_table_says(name):
    case, answers, questions, decision = TABLE[name]

    walked = walk(case, answers)

    assert walked.decision == decision
    assert [plain(each) for each in walked.asked] == [FIRST, *questions]


class QueueOfOnesOwn(Queue):
    """It might look at the holder."""

    def act(self, conflict: Conflict) -> Any:
        return conflict.park()


HELD = Parked({}, holder=HOLDER)
COALESCES = policy(Coalesce())
QUEUE_AT_ONCE = Park(NOBODY, then=SKIP, at_once=True)
#: The same where the task's last call under this lock was put into the room: the first question is
#: another one where the policy parks every duplicate. Facts, the answers, all the questions.
AFTER_ONE_THAT_WAITS: dict[str, tuple[Case, list[Answer], list[Question], Outcomes]] = {
    "queue": (QUEUES, [HELD], [QUEUE_AT_ONCE], QUEUED),
    "coalesce": (
        COALESCES, [HELD], [Park(NOBODY, newest=True, at_once=True)],
        Waits(Outcome.COALESCED, HOLDER),
    ),
    "queue, but its message is too large": (
        QUEUES, [TOO_LARGE, GOT], [QUEUE_AT_ONCE, FIRST], GO,
    ),
    "queue, and the lock is free": (QUEUES, [FREE, GOT], [QUEUE_AT_ONCE, FIRST], GO),
    "queue, and it was free for a moment": (
        QUEUES, [FREE, BUSY, PARKED], [QUEUE_AT_ONCE, FIRST, Park(BUSY, then=SKIP)], QUEUED,
    ),
    "queue, of some length": (
        policy(Queue(limit=2)), [FULL, BUSY, FULL],
        [Park(NOBODY, 2, then=SKIP, at_once=True), FIRST, Park(BUSY, 2, then=SKIP)], SKIPPED,
    ),
    "queue, of some length, and the lock is free": (
        policy(Queue(limit=2)), [FULL, GOT], [Park(NOBODY, 2, then=SKIP, at_once=True), FIRST], GO,
    ),
    "queue, for no time": (policy(Queue(max_wait=0)), [GOT], [FIRST], GO),
    "queue, and the server is away": (
        QUEUES, [AWAY], [QUEUE_AT_ONCE], PutOff(1.0, Outcome.UNAVAILABLE, cause=AWAY),
    ),
    # These ask for the lock first.
    "skip": (NEW, [BUSY], [FIRST], SKIPPED),
    "replace": (
        policy(Replace(grace=2)), [BUSY, PARKED], [FIRST, Park(BUSY, newest=True, grace=2)],
        Waits(Outcome.REPLACING, HOLDER),
    ),
    "queue, of one's own kind": (
        policy(QueueOfOnesOwn()), [BUSY, PARKED], [FIRST, Park(BUSY)], QUEUED,
    ),
    "a copy": (QUEUES._replace(header={"redelivered": True}), [done()], [FIRST], DONE_ELSEWHERE),
    "a retry": (QUEUES._replace(raw={"retries": 1}), [GOT], [FIRST], GO),
    "from the room": (QUEUES._replace(header={"parked": True}), [GOT], [FIRST], GO),
    "it waited in the worker": (
        QUEUES._replace(mark={"received": clock() - 2.0}), [done()], [FIRST], DONE_ELSEWHERE,
    ),
    "from a fanout exchange": (QUEUES._replace(mark={"fanout": True}), [GOT], [FIRST], GO),
    "in its caller": (QUEUES._replace(is_eager=True), [GOT], [FIRST], GO),
}  # fmt: skip


@pytest.mark.parametrize("name", AFTER_ONE_THAT_WAITS)
def test_a_task_is_parked_at_once_after_one_that_waits_under_the_same_lock(name):
    case, answers, questions, decision = AFTER_ONE_THAT_WAITS[name]
    facts, _ = case.delivery()
    facts.task._redislock_note_parked(facts.claim.keys.lock_id, "before:0.0")
    try:
        walked = walk(case, answers, facts)
    finally:
        facts.task._redislock_note_parked("", "")

    assert walked.decision == decision
    assert [plain(each) for each in walked.asked] == questions


def test_a_task_is_not_parked_at_once_after_one_that_waits_under_another_lock():
    facts, _ = QUEUES.delivery()
    facts.task._redislock_note_parked("another", "before:0.0")
    assert walk(QUEUES, [GOT], facts).asked == [FIRST]


@pytest.mark.parametrize(("case", "answers", "began", "sent"), [
    (NEW, [OWN], True, ""),
    (NEW, [done(notes.EXPECTS_RESULT, age=9.0), BUSY, PARKED], True, "m"),
    (NEW, [done(notes.EXPECTS_RESULT)], True, "m"),
    (NEW, [NEWER], False, "m"),
    (RETRY, [EARLIER, EARLIER], False, "m"),
])  # fmt: skip
def test_the_next_message_of_a_copy_counts_as_a_copy(case, answers, began, sent):
    walked = walk(case, answers)
    assert isinstance(walked.decision, PutOff | Waits)
    message = walked.state.message
    assert (message.began, message.copied, message.sent) == (began, began, sent)


@pytest.mark.parametrize(("answer", "may_be_there"), [
    ([PARKED], True), ([AWAY], True), ([FULL], False), ([FREE, GOT], False), ([OWN], False),
])  # fmt: skip
def test_what_waits_in_the_room_may_be_there_unless_the_server_says_that_it_is_not(
    answer, may_be_there
):
    state = walk(policy(Queue()), [BUSY, *answer]).state
    assert state.parks_as == ("this:0.0" if may_be_there else "")
    assert state.copied
    assert state.may_have_copies


@pytest.mark.parametrize(("case", "member"), [
    (policy(Queue()), "this:0.0"),
    (policy(Coalesce()), slot_of("t")),
    (policy(Coalesce(), raw={"retries": 1}), "this:0.1"),
    (policy(Replace()), slot_of("t")),
], ids=["queue", "coalesce", "a retry that coalesces", "replace"])  # fmt: skip
def test_who_is_the_newest_of_its_name_takes_the_slot_for_it(case, member):
    assert walk(case, [BUSY, PARKED]).state.parks_as == member


def test_what_runs_again_leaves_the_slot_to_newer_calls():
    case = policy(Coalesce(), header={"kept": ["1|t", ""], "parked": slot_of("t")})
    walked = walk(case, [done(notes.EXPECTS_RESULT, age=9.0), BUSY, PARKED])
    assert walked.asked[1:] == [RERUN, Park(BUSY, newest=True)]
    assert walked.state.parks_as == "this:0.0"


def test_who_begins_to_wait_notes_since_when_and_when_it_came():
    received = clock() - 5.0
    busy = BUSY._replace(at=1000.0, sent_at=received + 2.0)
    case = policy(Queue(), mark={"received": received})

    message = walk(case, [busy, PARKED]).state.message

    assert message.since == pytest.approx(time.time(), abs=60)
    assert message.arrived == pytest.approx(998.0)
    before = {"since": 5.0, "arrived": 6.0}
    message = walk(case._replace(header=before), [busy, PARKED]).state.message
    assert {"since": message.since, "arrived": message.arrived} == before
    message = walk(case._replace(raw={"retries": 1}), [busy, PARKED]).state.message
    assert message.arrived is None, "a retry came when its first attempt did"


def test_a_task_whose_time_is_over_leaves_the_room_before_its_policy_is_asked():
    for header, leaves in (({}, False), ({"gave_up": True}, True)):
        facts, state = Case(header=header).delivery()
        _, meet = decide.step(facts, state, FIRST, BUSY)
        assert meet == Meet(facts.policy, BUSY, gave_up=leaves)


@pytest.mark.parametrize(("known", "is_lasting"), [
    ({}, False), ({"copied": True}, True), ({"began": True, "copied": True}, True),
    ({"fanout": True}, True),
], ids=repr)  # fmt: skip
def test_a_note_lasts_if_a_copy_may_come_after_the_acknowledgement(known, is_lasting):
    _, state = NEW.delivery()
    state = state._replace(**known) if [*known] == ["copied"] else state.learn(**known)
    note = state.note_of(notes.ENDED)
    assert note == (notes.lasting(notes.ENDED) if is_lasting else notes.ENDED)


def test_a_burst_waits_before_the_lock_is_asked_for():
    quiet = Park(NOBODY, newest=True, quiet=(5.0, 60.0))
    for suspension in (None, SUSPENSION):
        parked = Parked({}, suspension=suspension)
        walked = walk(policy(Debounce(quiet=5, max_wait=60)), [parked])
        waits = Waits(Outcome.DEBOUNCED, None, suspension)
        assert (walked.asked, walked.decision) == ([quiet], waits)
    for later in (RETRY, Case(header={"parked": True}), FANOUT, EAGER):
        case = later._replace(options={"on_conflict": Debounce()})
        assert walk(case, [GOT]).asked == [FIRST]


@pytest.mark.parametrize("result", [False, True])
def test_a_message_that_only_ends_its_task_asks_for_no_lock(result):
    by = {"task": "t", "task_id": "another"}
    walked = walk(Case(header={"replaced_by": by}, result=result), [])
    ends = DONE_ELSEWHERE if result else TurnedAway(Outcome.REPLACED, HOLDER)
    assert (walked.asked, walked.decision) == ([], ends)


@pytest.mark.parametrize(("options", "raw", "note"), [
    ({"on_conflict": Skip()}, {}, notes.EXPECTS_RESULT),
    ({"on_conflict": Raise()}, {}, notes.EXPECTS_RESULT),
    ({"on_conflict": Raise(), "acks_late": True, "acks_on_failure_or_timeout": False}, {}, ""),
    ({"on_conflict": Defer()}, {}, ""),
    ({"on_conflict": Skip()}, {"ignore_result": True}, notes.EXPECTS_RESULT),
    ({"on_conflict": Skip()}, {"callbacks": [{}]}, notes.EXPECTS_RESULT),
    ({"on_conflict": Skip()}, {"ignore_result": True, "callbacks": [{}]}, notes.PUBLISHING),
    ({"on_conflict": Skip()}, {"chain": [{}]}, notes.PUBLISHING),
    ({"on_conflict": Skip()}, {"chord": {"task": "t"}}, notes.PUBLISHING),
    ({"on_conflict": Raise()}, {"errbacks": [{}]}, notes.PUBLISHING),
], ids=repr)  # fmt: skip
def test_the_server_notes_an_end_that_it_finds_out_itself(options, raw, note):
    """It notes whether a result will prove that all that follows has been told."""
    facts, state = Case(options, raw=raw).delivery()
    state = state._replace(may_have_copies=True)
    asked = decide.first(facts, state)
    assert asked == Try(note=note)
    for busy, is_end in ((BUSY, True), (EARLIER, False)):
        after, _ = decide.step(facts, state, asked, busy)
        assert after.is_noted == (bool(note) and is_end)
        assert after.is_counted == (facts.policy.turns_away and is_end)
        assert after.first_busy == busy


class Mine(Policy):
    """A policy of a user's."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def act(self, conflict: Any) -> Any:
        return self._act(conflict)


@pytest.mark.parametrize("act", [lambda conflict: None, lambda conflict: True, lambda c: "skip"])
def test_a_policy_that_decides_nothing_fails_the_task(act):
    with pytest.raises(ConfigError, match=r"did not end the conflict: its act\(\) must return"):
        walk(policy(Mine(act)), [BUSY])


def test_a_verb_that_is_not_returned_does_nothing():
    def act(conflict: Any) -> Any:
        conflict.park()
        return conflict.skip()

    assert walk(policy(Mine(act)), [BUSY]).decision == SKIPPED


def test_a_policy_may_wait_and_then_do_something_else():
    def later(conflict: Any) -> Any:
        return conflict.defer(10) if conflict.deferrals < 3 else conflict.fail()

    def act(conflict: Any) -> Any:
        return conflict.wait(timedelta(seconds=1), then=later)

    for deferrals, decision in {0: deferred(10), 3: TurnedAway(Outcome.RAISED, HOLDER)}.items():
        case = policy(Mine(act), header={"deferrals": deferrals})
        assert walk(case, [BUSY, BUSY]).decision == decision
    assert walk(policy(Mine(act)), [BUSY, GOT]).decision == Go(BUSY)


@pytest.mark.parametrize(("act", "answer"), [
    (lambda conflict: conflict.wait(1.0), BUSY), (lambda conflict: conflict.park(limit=1), FULL),
])  # fmt: skip
def test_without_a_then_a_task_that_waits_in_vain_is_skipped(act, answer):
    assert walk(policy(Mine(act)), [BUSY, answer]).decision == SKIPPED


@pytest.mark.parametrize("verb", ["wait", "park"])
def test_what_acts_then_is_checked_where_it_is_given(verb):
    conflict = Conflict("a key", None, 1.0)
    given = {"timeout": 1.0} if verb == "wait" else {}
    with pytest.raises(ConfigError, match="then='skip' must be a policy object"):
        getattr(conflict, verb)(**given, then="skip")


def test_a_policy_that_is_asked_first_may_let_the_task_ask_for_the_lock():
    class Undecided(Mine):
        admits = True

    walked = walk(policy(Undecided(lambda conflict: conflict.skip())), [GOT])
    assert (walked.asked, walked.decision) == ([FIRST], GO)


def test_a_task_may_wait_in_the_room_for_what_is_left_of_its_time():
    case = policy(Queue(max_wait=60))
    (_, park) = walk(case, [BUSY, PARKED]).asked
    assert isinstance(park, Park)
    assert park.give_up == pytest.approx(60, abs=10)


@pytest.mark.parametrize(("case", "decision"), [
    (EAGER, SKIPPED),
    (FANOUT._replace(header={"since": 1.0}), TurnedAway(Outcome.RAISED, HOLDER)),
])  # fmt: skip
def test_a_policy_of_ones_own_that_asks_for_what_cannot_be(case, decision):
    def act(conflict: Any) -> Any:
        if case is EAGER:
            return conflict.defer(10)
        return conflict.park(max_wait=5, then=Raise())

    assert walk(case._replace(options={"on_conflict": Mine(act)}), [BUSY]).decision == decision


def test_a_policy_may_say_its_quiet_time_as_timedeltas():
    def act(conflict: Any) -> Any:
        return conflict.park(newest=True, quiet=(timedelta(seconds=5), timedelta(minutes=1)))

    asked = walk(policy(Mine(act)), [BUSY, PARKED]).asked
    assert asked == [FIRST, Park(BUSY, newest=True, quiet=(5.0, 60.0))]


@pytest.mark.parametrize("visible", [None, 60, 1])
def test_no_countdown_is_longer_than_half_of_the_time_until_the_broker_delivers_again(
    visible, monkeypatch
):
    case = Case(header={"deferrals": 99, "outages": 99, "behind": 99})
    facts, _ = case.delivery()
    redelivery = facts.locks.redelivery._replace(after=visible)
    monkeypatch.setattr(facts.locks, "redelivery", redelivery)
    longest = math.inf if visible is None else max(visible / 2, 0.5)
    for answer, most in ((AWAY, 60.0), (OWN, 600.0), (NEWER, 10.0)):
        decision = walk(case, [answer], facts).decision
        assert isinstance(decision, PutOff)
        assert decision.countdown == min(most, longest)
