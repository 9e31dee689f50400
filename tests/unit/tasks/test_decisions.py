"""What is decided of a delivery, as a table: facts, policy and the server's answers, and what
follows from them. Nothing is asked and nothing done: there is no server.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from celery import Celery

from celery_redislock import (
    Coalesce,
    ConfigError,
    Defer,
    LockUnavailable,
    Queue,
    Raise,
    Replace,
    SingletonTask,
    Skip,
    Wait,
)
from celery_redislock.app.delivery import KEY
from celery_redislock.app.outcomes import Outcome
from celery_redislock.policies import Decision, Policy
from celery_redislock.protocol import notes
from celery_redislock.protocol.claims import Acquired, Busy, Done, Free, Full, Older, Parked
from celery_redislock.protocol.clock import clock
from celery_redislock.protocol.holders import Holder
from celery_redislock.tasks.conflict import TaskConflict, decide
from celery_redislock.tasks.decisions import (
    FIRST,
    GO,
    Answer,
    Await,
    CannotRun,
    Go,
    GoUnlocked,
    Park,
    PutOff,
    Question,
    Try,
    TurnedAway,
    Waits,
)
from celery_redislock.tasks.run import Run

HOLDER = Holder(task="t", task_id="another")
BUSY = Busy(HOLDER, 9.0, "other")
OWN, EARLIER, FOR_MESSAGE = (
    BUSY._replace(relation="own"),
    BUSY._replace(relation="earlier"),
    BUSY._replace(for_message=True),
)
GOT = Acquired("{}", 1, 0.0)
AWAY = LockUnavailable("a key", None, "the server is away")
PARKED, FREE, FULL = Parked({}), Free({}), Full()
#: `lock_ttl` is 30: a task that waits for its own run looks again after a third of that.
BEHIND = {"redelivered": True, "sent": ""}
AGAIN, RERUNS = Try(again=True), Try(again=True, reruns=True)
AWAIT_EARLIER = Await(1.0, is_earlier=True)


def done(kind: str = notes.ENDED, age: float = 1.0, sent: str = "m", by: Any = None) -> Done:
    return Done(notes.Note(kind, sent, by), age)


def body() -> None:
    """It is never run."""


class Scripted(Run):
    """A run whose questions have these answers."""

    answers: list[Answer]
    asked: list[Question]
    result = False

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        if isinstance(question, Try):
            self.reruns = self.reruns or question.reruns
        return self.answers.pop(0)

    @property
    def has_result(self) -> bool:
        return self.result


class Case(NamedTuple):
    """Some facts of a delivery: what it is not told is as for a task that was just sent."""

    options: dict[str, Any] = {}  # noqa: RUF012  never changed
    header: dict[str, Any] = {}  # noqa: RUF012
    mark: dict[str, Any] = {}  # noqa: RUF012
    raw: dict[str, Any] = {}  # noqa: RUF012
    result: bool = False
    is_eager: bool = False

    def run(self) -> Scripted:
        app = Celery("table", broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.update(redislock_url="redis://nobody.invalid", redislock_eager=True)
        task = app.task(base=SingletonTask, name="t", shared=False, **self.options)(body)
        mark = {"token": "a token", "received": clock(), "queue": "q", "sent": "m", **self.mark}
        raw = {
            "id": "this", "task": "t", "hostname": "w@h", "properties": {KEY: mark},
            "delivery_info": {}, KEY: {"v": 2, "sent": "m", **self.header}, **self.raw,
        }  # fmt: skip
        run = Scripted(app.tasks[task.name], raw)
        run.asked, run.result = [], self.result
        request = app.tasks["t"].request_stack if self.is_eager else None
        run._learn_facts(app.tasks["t"].app_locks, (), {}, request)
        return run


def policy(what: Policy, **more: Any) -> Case:
    return Case({"on_conflict": what}, **more)


def on_error(choice: str, **header: Any) -> Case:
    return Case({"on_redis_error": choice}, header=header)


NEW, COPY = Case(), Case(header={"redelivered": True})
RETRY = Case(raw={"retries": 1})
FANOUT, FANOUT_COPY = (
    Case(mark={"fanout": True}),
    Case(mark={"fanout": True}, header={"redelivered": True}),
)
EAGER = Case(is_eager=True)
SKIPPED = TurnedAway(Outcome.SKIPPED, HOLDER)
DONE_ELSEWHERE = TurnedAway(Outcome.ALREADY_DONE)
QUEUED = Waits(Outcome.QUEUED, HOLDER)


def deferred(countdown: float, outcome: Outcome = Outcome.DEFERRED, **more: Any) -> PutOff:
    more.setdefault("comes_anew", outcome is Outcome.DEFERRED)
    return PutOff(countdown, outcome, HOLDER, **more)


#: Facts and policy, the answers, the questions after the first, and the decision.
TABLE: dict[str, tuple[Case, list[Answer], list[Question], Decision]] = {
    "free": (NEW, [GOT], [], GO),
    # The server does not answer.
    "away": (NEW, [AWAY], [], PutOff(1.0, Outcome.UNAVAILABLE, cause=AWAY)),
    "away, again": (
        on_error("defer", outages=3), [AWAY], [], PutOff(8.0, Outcome.UNAVAILABLE, cause=AWAY),
    ),
    "away, for long": (
        on_error("defer", outages=99), [AWAY], [], PutOff(60.0, Outcome.UNAVAILABLE, cause=AWAY),
    ),
    "away, and it runs": (on_error("run"), [AWAY], [], GoUnlocked(AWAY)),
    "away, and it fails": (on_error("raise"), [AWAY], [], CannotRun(AWAY)),
    "away, and nobody would run what is sent": (EAGER, [AWAY], [], CannotRun(AWAY)),
    # Other runs of the same task.
    "its own run": (NEW, [OWN], [], deferred(1.0, Outcome.REDELIVERED, is_alone=False,
                                             learned=BEHIND)),
    "its own run, again": (
        Case(header={"deferrals": 9}), [OWN], [],
        deferred(10.0, Outcome.REDELIVERED, is_alone=False, learned=BEHIND),
    ),
    "its own run, around it": (EAGER, [OWN], [], GoUnlocked()),
    "its own run, of another queue's copy": (
        FANOUT, [OWN], [], TurnedAway(Outcome.RUNS_ELSEWHERE, HOLDER),
    ),
    "its own run, of a copy that is left alone": (
        FANOUT_COPY, [OWN], [],
        deferred(1.0, Outcome.REDELIVERED, is_alone=False, learned=BEHIND),
    ),
    "its earlier attempt ends": (RETRY, [EARLIER, GOT], [AWAIT_EARLIER], GO),
    "its earlier attempt goes on": (
        RETRY, [EARLIER, EARLIER], [AWAIT_EARLIER],
        deferred(1.0, Outcome.RETRIED_EARLY, is_alone=False),
    ),
    "its earlier attempt ends, and another one is faster": (
        RETRY, [EARLIER, BUSY], [AWAIT_EARLIER], SKIPPED,
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
        NEW, [done(notes.EXPECTS_RESULT)], [], PutOff(1.0, learned={"redelivered": True}),
    ),
    "its process died after the body": (
        NEW, [done(notes.EXPECTS_RESULT, age=9.0), GOT], [RERUNS], GO,
    ),
    "what follows it was not published": (
        Case(result=True), [done(notes.PUBLISHING, age=9.0), GOT], [RERUNS], GO,
    ),
    "it runs again, and another one has the lock": (
        NEW, [done(notes.EXPECTS_RESULT, age=9.0), BUSY], [RERUNS],
        deferred(1.0, Outcome.REDELIVERED, is_alone=False, learned=BEHIND),
    ),
    "it was sent again under its id": (NEW, [done(sent="other"), GOT], [AGAIN], GO),
    "it was sent after that": (
        Case(header={"sent": ""}, mark={"sent": ""}),
        [done(sent="", age=60.0), GOT], [AGAIN], GO,
    ),
    "it was sent before that": (
        Case(header={"sent": ""}, mark={"sent": "", "received": clock() - 90.0}),
        [done(sent="", age=60.0)], [], DONE_ELSEWHERE,
    ),
    "a copy, whenever it came": (
        Case(header={"sent": "", "redelivered": True}),
        [done(sent="", age=60.0)], [], DONE_ELSEWHERE,
    ),
    "it was replaced": (NEW, [done(by=HOLDER)], [], TurnedAway(Outcome.REPLACED, HOLDER)),
    "it was replaced, but had ended": (
        COPY._replace(result=True), [done(by=HOLDER)], [], DONE_ELSEWHERE,
    ),
    # An ordinary conflict, and each policy.
    "skip": (policy(Skip()), [BUSY], [], SKIPPED),
    "skip with a result": (
        policy(Skip(result=None)), [BUSY], [],
        TurnedAway(Outcome.SKIPPED_WITH_RESULT, HOLDER, None),
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
            "it came through a fanout exchange, to a queue of which this broker cannot give it"
            " back to this worker alone")),
    ),
    "wait": (policy(Wait()), [BUSY, GOT], [Await(None)], Go(BUSY)),
    "wait in vain": (
        policy(Wait(timeout=3, then=Raise())), [BUSY, BUSY], [Await(3)],
        TurnedAway(Outcome.RAISED, HOLDER),
    ),
    "wait, and the server goes away": (
        policy(Wait()), [BUSY, AWAY], [Await(None)], PutOff(1.0, Outcome.UNAVAILABLE, cause=AWAY),
    ),
    "wait, and it runs in another process": (
        policy(Wait()), [BUSY, OWN], [Await(None)],
        deferred(1.0, Outcome.REDELIVERED, is_alone=False, learned=BEHIND),
    ),
    "wait for a message that needs the slot": (
        policy(Wait(timeout=3)), [BUSY, FOR_MESSAGE, PARKED],
        [Await(3), Park(FOR_MESSAGE, give_up=3)], QUEUED,
    ),
    "wait for a message, and have waited before": (
        policy(Wait(timeout=3), header={"gave_up": True}), [BUSY, FOR_MESSAGE], [Await(3)], SKIPPED,
    ),
    "queue": (policy(Queue()), [BUSY, PARKED], [Park(BUSY)], QUEUED),
    "queue, of some length": (
        policy(Queue(limit=2)), [BUSY, FULL], [Park(BUSY, limit=2)], SKIPPED,
    ),
    "queue, and the lock is free by then": (
        policy(Queue()), [BUSY, FREE, GOT], [Park(BUSY), FIRST], GO,
    ),
    "queue, and it was free for a moment": (
        policy(Queue()), [BUSY, FREE, EARLIER, BUSY, PARKED],
        [Park(BUSY), FIRST, AWAIT_EARLIER, Park(BUSY)], QUEUED,
    ),
    "queue, and the server goes away": (
        policy(Queue()), [BUSY, AWAY], [Park(BUSY)],
        PutOff(1.0, Outcome.UNAVAILABLE, cause=AWAY),
    ),
    "queue, and the server is not needed": (
        Case({"on_conflict": Queue(), "on_redis_error": "run"}), [BUSY, AWAY], [Park(BUSY)],
        GoUnlocked(AWAY),
    ),
    "queue, and its wait is over": (
        policy(Queue(max_wait=5, then=Raise()), header={"since": 1.0}), [BUSY], [],
        TurnedAway(Outcome.RAISED, HOLDER),
    ),
    "queue, from a fanout exchange": (
        policy(Queue(), mark={"fanout": True}), [BUSY], [], deferred(1.0),
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
    "replace, and nobody would run it": (policy(Replace(), is_eager=True), [BUSY], [], SKIPPED),
}  # fmt: skip


def decided(run: Scripted, answers: list[Answer]) -> Decision:
    run.answers = list(answers)
    found = run.understand(FIRST)
    if isinstance(found, Decision):
        return found
    assert isinstance(found, Busy)
    return decide(run.facts.policy, TaskConflict(run, found, run.understand))


@pytest.mark.parametrize("name", TABLE)
def test_a_delivery_goes_on_as_the_table_says(name):
    case, answers, questions, decision = TABLE[name]
    run = case.run()
    assert decided(run, answers) == decision
    assert run.asked == [FIRST, *questions]
    assert not run.answers
    assert run.course is None  # nothing was done


class Mine(Policy):
    """A policy of a user's."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def act(self, conflict: Any) -> Any:
        return self._act(conflict)


@pytest.mark.parametrize(
    "act", [lambda conflict: None, lambda conflict: conflict.wait(1.0), lambda conflict: "skip"]
)
def test_a_policy_that_decides_nothing_fails_the_task(act):
    with pytest.raises(ConfigError, match=r"did not end the conflict: its act\(\) must return"):
        decided(policy(Mine(act)).run(), [BUSY, GOT])


def test_a_policy_runs_nothing_without_the_lock():
    with pytest.raises(RuntimeError, match="before wait"):
        decided(policy(Mine(lambda conflict: conflict.run())).run(), [BUSY])


def test_a_policy_may_wait_and_then_do_something_else():
    def act(conflict: Any) -> Any:
        if conflict.wait(1.0):
            return conflict.run()
        return conflict.defer(10) if conflict.deferrals < 3 else conflict.fail()

    ends = {0: deferred(10), 3: TurnedAway(Outcome.RAISED, HOLDER)}
    for deferrals, decision in ends.items():
        run = policy(Mine(act), header={"deferrals": deferrals}).run()
        assert decided(run, [BUSY, BUSY]) == decision
    assert decided(policy(Mine(act)).run(), [BUSY, GOT]) == Go(BUSY)


def test_a_policy_may_say_its_quiet_time_as_timedeltas():
    def act(conflict: Any) -> Any:
        conflict.park(newest=True, quiet=(timedelta(seconds=5), timedelta(minutes=1)))
        return conflict.run()

    run = policy(Mine(act)).run()
    decided(run, [BUSY, PARKED])
    assert run.asked == [FIRST, Park(BUSY, newest=True, quiet=(5.0, 60.0))]


@pytest.mark.parametrize("visible", [None, 60, 1])
def test_no_countdown_is_longer_than_half_of_the_time_until_the_broker_delivers_again(visible):
    run = Case(header={"deferrals": 99, "outages": 99}).run()
    redelivery = run.facts.locks.redelivery
    run.facts.locks.redelivery = redelivery._replace(after=visible)
    longest = math.inf if visible is None else max(visible / 2, 0.5)
    for answer, most in ((AWAY, 60.0), (OWN, 10.0)):
        decision = decided(run, [answer])
        assert isinstance(decision, PutOff)
        assert decision.countdown == min(most, longest)
