"""Decides from a history alone what went wrong in it. Pure: it asks no server and no clock.

A body counts as inside from its start to its end, or to its last sign of life if it wrote no end.
So what cannot be known, such as the very moment of a death, is never held against anybody.
The right to a lock lasts ttl from each successful acquire or extend that was sent.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tests.proofs.history import Event

from .kinds import KINDS

T = TypeVar("T")

#: What every span of time is allowed beyond its bound, in seconds, beside the time in which the
#: machine was late: the witness looks from one process.
NOISE = 0.75
#: The bounds themselves, in seconds.
SOON = 0.5
NEVER = float("inf")
#: Two clocks are read one after the other, in seconds.
TICK = 0.005

#: Errors that a program makes, and not what goes wrong around it.
OF_PROGRAMS = (
    *("TypeError", "AttributeError", "KeyError", "IndexError", "NameError"),
    *("AssertionError", "RuntimeError", "ConfigError"),
)
SKIPPED = ("skipped", "skipped with a result")
FINAL = ("SUCCESS", "FAILURE", "REVOKED")
#: How a body ends if its attempt is over and will not be tried again by the broker.
COMPLETED = ("returned", "raised", "retried")


@dataclass(frozen=True)
class Violation:
    """One broken rule.

    Attributes:
        rule: its short name.
        message: what was seen, in words.
        events: where it was seen.
    """

    rule: str
    message: str
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join([f"{self.rule}: {self.message}", *map(str, self.events)])


@dataclass
class Verdict:
    """What a history shows.

    Attributes:
        violations: of the rules.
        outcomes: how many messages ended how.
        bodies: how many runs there were.
        overlaps: pairs that were inside at a time while both had the lock, unavoidably.
        vanished: messages that were lost as they may be with Celery alone.
        lost_by_transport: messages that the broker's transport lost.
        lost_by_us: messages that nobody else can have lost. Each is also a violation.
        again: attempts that ran once more, as they may.
        told: seconds from a loss until the loser was told; its process's stopped time excluded.
        parked: how often a task was put into a waiting room.
        suspended: how often a task met a suspension.
        forgotten: those that the lock server forgot while they waited there.
        freed_child, freed_worker: seconds from a death until the lock was free.
    """

    violations: list[Violation] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    bodies: int = 0
    overlaps: int = 0
    vanished: int = 0
    lost_by_transport: int = 0
    lost_by_us: int = 0
    again: int = 0
    told: list[float] = field(default_factory=list)
    parked: int = 0
    suspended: int = 0
    forgotten: int = 0
    freed_child: list[float] = field(default_factory=list)
    freed_worker: list[float] = field(default_factory=list)


def check(events: Iterable[Event]) -> Verdict:
    """All the rules, on one case's history."""
    facts = Facts(sorted(events, key=lambda event: event.at))
    verdict = Verdict(
        bodies=len(facts.bodies),
        parked=len(facts.kinds["parked"]),
        suspended=sum(bool(event.get("suspended")) for event in facts.kinds["conflict"]),
    )
    for rule in RULES:
        verdict.violations += rule(facts, verdict)
    return verdict


@dataclass
class Body:
    """One run of a body, as far as it is known."""

    start: Event
    end: Event | None = None
    samples: list[Event] = field(default_factory=list)
    told_at: float = NEVER
    #: (from, to): spans in which the lock was confirmed to be its own.
    rights: list[tuple[float, float]] = field(default_factory=list)

    @property
    def inside_until(self) -> float:
        last = self.samples[-1].at if self.samples else self.start.at
        return last if self.end is None else self.end.at

    @property
    def right_until(self) -> float:
        return max(until for _, until in self.rights)

    @property
    def outcome(self) -> str:
        return "cut short" if self.end is None else self.end.outcome

    @property
    def lost(self) -> bool:
        return self.told_at < NEVER

    def owned(self) -> Iterator[tuple[float, float]]:
        """The spans in which it was inside, the lock was its own, and it was not told otherwise."""
        end = min(self.told_at, self.inside_until)
        for since, until in self.rights:
            since, until = max(since, self.start.at), min(until, end)
            if since <= until:
                yield since, until


def grouped(items: Iterable[T], by: Callable[[T], str]) -> dict[str, list[T]]:
    found = defaultdict(list)
    for item in items:
        found[by(item)].append(item)
    return found


class Facts:
    """A history in the form in which the rules ask for it.

    Attributes:
        events, kinds: all of it, and by kind.
        case, ttl, allows, acks_late: what was played.
        bodies, by_key, bodies_of: every run, by its start; those with a lock, by its key; by task.
        of_id: what happened to each message, by its task's id.
        expiring, revoked: tasks that were sent with an expiry; that the fault revoked.
        mains, died: the workers' main processes; when each dead process was seen to be dead.
        faults: each one's begin, end, and whether the lock server may not have been reachable.
        releases: by the key and the fence.
    """

    def __init__(self, events: list[Event]) -> None:
        #: What comes after the end of the play, when the workers are ended, is not judged.
        quiet_at = max((event.at for event in events if event.kind == "quiet"), default=NEVER)
        self.events = [e for e in events if e.at <= quiet_at or e.kind in ("result", "crashed")]
        kinds = self.kinds = grouped(self.events, lambda event: event.kind)
        (self.case,) = kinds["case"]
        self.ttl: float = self.case.ttl
        self.allows = frozenset(self.case.allows)
        self.acks_late: bool = self.case.acks_late
        self.bodies = self._all_bodies()
        # Else it ran without the lock, as it was told to.
        self.by_key = grouped((b for b in self.bodies if b.start.fence), lambda b: b.start.key)
        self.bodies_of = grouped(self.bodies, lambda body: body.start.id)
        ids = {body.start.run: body.start.id for body in self.bodies}
        self.of_id = grouped(
            (event for event in self.events if event.kind != "released"),
            lambda event: event.get("id") or (event.kind == "end" and ids.get(event.run)) or "",
        )
        self.expiring = {e.id for e in kinds["sent"] if e.get("expires") is not None}
        self.revoked = {event.id for event in kinds["fault"] if event.get("id")}
        self.mains = {event.main for kind in ("worker", "received") for event in kinds[kind]}
        self.died = {pid: event.at for event in reversed(kinds["dead"]) for pid in event.pids}
        self.faults = self._all_faults()
        self.releases = {(event.key, event.fence): event for event in kinds["released"]}
        self._stops = self._all_stops()
        self._late = [(event.at - event.seconds, event.at) for event in kinds["late"]]

    def _all_bodies(self) -> list[Body]:
        runs = {event.run: Body(event) for event in self.kinds["start"]}
        by_fence = {(b.start.key, b.start.fence): b for b in runs.values() if b.start.fence}
        beats = grouped(self.kinds["beat"], lambda event: event.token)
        for body in runs.values():
            confirmed = [(beat.sent, beat.until) for beat in beats[body.start.token]]
            body.rights = sorted([(body.start.asked, body.start.right), *confirmed])
        for event in self.events:
            if event.kind == "alive":
                runs[event.run].samples.append(event)
            elif event.kind == "end":
                runs[event.run].end = event
            elif event.kind == "told":
                told = runs.get(event.get("run")) or by_fence.get(
                    (event.get("key"), event.get("fence"))
                )
                if told is not None and told.end is None:  # else its release found it out
                    told.told_at = min(told.told_at, event.at)
        return list(runs.values())

    def _all_faults(self) -> list[tuple[float, float, bool]]:
        spans, open_at = [], {}
        for event in self.kinds["fault"]:
            if event.phase == "begin":
                open_at[event.name] = event
            elif event.name in open_at:
                begin = open_at.pop(event.name)
                spans.append((begin.at, event.at, bool(event.get("unreachable"))))
        never_ended = self.events[-1].at
        spans += [(e.at, never_ended, bool(e.get("unreachable"))) for e in open_at.values()]
        return spans

    def _all_stops(self) -> dict[int, list[tuple[float, float]]]:
        """When each process stood still."""
        spans, since = defaultdict(list), {}
        for event in self.events:
            if event.kind == "stopped":
                since.update({pid: event.at for pid in event.pids if pid not in since})
            elif event.kind in ("continued", "dead"):
                for pid in event.pids:
                    if pid in since:
                        spans[pid].append((since.pop(pid), event.at))
        for pid, at in since.items():
            spans[pid].append((at, self.events[-1].at))
        return spans

    # -- messages and rooms ---------------------------------------------------------------

    def parked(self, task_id: str) -> Event | None:
        """When this one was put into a waiting room, if it did nothing since that lets it leave."""
        for event in reversed(self.of_id[task_id]):
            if event.kind in ("asks", "took", "out", "start", "failed"):
                return None
            if event.kind == "parked":
                return event
        return None

    def knows_loss(self, body: Body) -> bool:
        """Whether the body was told of its loss, or its release found it out."""
        release = self.releases.get((body.start.key, body.start.fence))
        return body.lost or (release is not None and not release.owned)

    def acknowledgement_lost(self, task_id: str) -> bool:
        """Whether the broker may not have heard that this message, acknowledged before it ran, was:
        the connection was faulted, and it delivered the message again.
        """
        again = any(e.kind == "received" and e.redelivered for e in self.of_id[task_id])
        return "vanished" in self.allows and not self.acks_late and again

    def published_again(self, task_id: str) -> bool:
        """Whether a room published its message once more, as it did not come."""
        return any(e.kind == "offered" and e.since for e in self.of_id[task_id])

    # -- processes ------------------------------------------------------------------------

    def death(self, pid: int | None) -> float:
        """When this process was seen to be dead."""
        return NEVER if pid is None else self.died.get(pid, NEVER)

    def is_dead(self, start: Event, by: float = NEVER) -> bool:
        """Whether the process of this body, or its worker, was dead by then."""
        return min(self.death(start.pid), self.death(start.main)) <= by

    def cancelled(self, body: Body, by: float) -> bool:
        """Whether by then the worker ended the task with the broker's connection, and perhaps in
        the moment between the body and its result: a greenlet dies and leaves its process alive.
        """
        return self.case.get("pool") == "gevent" and any(
            e.kind == "cancelled" and e.main == body.start.main and body.start.at < e.at < by
            for e in self.of_id[body.start.id]
        )

    def stopped(self, pid: int, begin: float, end: float) -> float:
        """For how many of these seconds the process could not do anything."""
        return _common(self._stops.get(pid, ()), begin, end)

    def late(self, begin: float, end: float) -> float:
        """For how many of these seconds the machine was late, as the watcher saw it."""
        return _common(self._late, begin, end)

    # -- what the fault allows ------------------------------------------------------------

    def forgot_since(self, begin: float) -> bool:
        """Whether the lock server may have forgotten since then what was in its rooms."""
        forgets = bool(self.allows & {"overlap", "again"})
        return forgets and any(begin <= end + self.ttl for _, end, _ in self.faults)

    def data_may_be_lost(self, at: float) -> bool:
        """Whether the lock server may have forgotten something by then, as the fault allows."""
        forgets = bool(self.allows & {"overlap", "again"})
        return forgets and any(begin <= at for begin, _, _ in self.faults)

    def overlap_allowed(self, at: float) -> bool:
        """Whether two may be inside from then on: the lock server just lost its data."""
        return "overlap" in self.allows and any(
            begin <= at <= end + self.ttl + SOON for begin, end, _ in self.faults
        )

    def unreachable(self, begin: float, end: float) -> float | None:
        """When the lock server was reachable again, if it was not for some of that time."""
        spans = [(a, b) for a, b, away in self.faults if away and a < end and b > begin]
        return max((b for _, b in spans), default=None)

    def could_not_say(self, body: Body) -> bool:
        """Whether the server could not be told that this body ended, and so does not know it."""
        release = self.releases.get((body.start.key, body.start.fence))
        if body.end is None or release is None or release.owned:
            return False
        return self.unreachable(body.end.at, release.at) is not None


def _common(spans: Iterable[tuple[float, float]], begin: float, end: float) -> float:
    """For how many of the seconds between these times there is a span."""
    return sum(max(min(b, end) - max(a, begin), 0.0) for a, b in spans)


# -- the rules --------------------------------------------------------------------------------


def no_overlap(facts: Facts, verdict: Verdict) -> Iterator[Violation]:
    """No two bodies of one key are inside at the same time while their lock is theirs."""
    for first, second in _pairs_inside(facts):
        both = _first_common(first, second)
        if both is None or _takes_over(first, second, facts.ttl):
            continue
        if facts.overlap_allowed(both):
            verdict.overlaps += 1
            continue
        yield Violation(
            "overlap",
            f"two bodies of {first.start.key} were inside at {both:.4f}, and each had the lock",
            (first.start, second.start, *filter(None, (first.end, second.end))),
        )


def _takes_over(first: Body, retry: Body, ttl: float) -> bool:
    """Whether this is the retry of a run that published it, and then stood still: it need not wait
    for the end of a lock that was not extended for half of its ttl.
    """
    if retry.start.id != first.start.id or retry.start.attempt <= first.start.attempt:
        return False
    extended = max((since for since, _ in first.rights if since < retry.start.asked), default=NEVER)
    return bool(retry.start.asked + TICK - extended >= ttl / 2)


def _pairs_inside(facts: Facts) -> Iterator[tuple[Body, Body]]:
    for bodies in facts.by_key.values():
        for number, second in enumerate(bodies):
            for first in bodies[:number]:
                if first.inside_until > second.start.at:
                    yield first, second


def _first_common(first: Body, second: Body) -> float | None:
    """When both had the lock, or None."""
    common = [
        max(a, c) for a, b in first.owned() for c, d in second.owned() if max(a, c) <= min(b, d)
    ]
    return min(common, default=None)


def nothing_begins_under_a_suspension(facts: Facts, verdict: Verdict) -> Iterator[Violation]:
    """No run takes a suspended lock, but a retry for which it is kept."""
    took_at = {(event.key, event.fence): event.at for event in facts.kinds["took"]}
    for each in facts.kinds["suspended"]:
        for body in facts.bodies:
            start = body.start
            is_meant = each.get("lock") == start.key or each.get("task") == start.task
            # One that waits asks before, and may have it afterwards.
            began = is_meant and each.since < start.asked
            began = began and took_at.get((start.key, start.fence), NEVER) < each.until
            _, options = KINDS[start.task]
            is_kept = start.attempt > 0 and options.get("lock_across_retries") == "hold"
            if began and not is_kept and not facts.data_may_be_lost(start.at):
                yield Violation(
                    "suspended",
                    f"{start.task}[{start.id}] took {start.key}, for which it had asked at"
                    f" {start.asked:.4f}, while it was suspended",
                    (each, start),
                )


def no_message_vanishes(facts: Facts, verdict: Verdict) -> Iterator[Violation]:
    """Every message ends in one of: ran, skipped, failed visibly."""
    states = {event.id: event for event in facts.kinds["result"]}
    for sent in facts.kinds["sent"]:
        result = states.get(sent.id)
        if result is not None and result.state in FINAL:
            verdict.outcomes[_outcome(result)] += 1
            continue
        state = "unknown" if result is None else result.state
        why = _why_it_may_vanish(facts, sent, state)
        if why is None:
            verdict.lost_by_us += 1
            trail = [e for e in facts.of_id[sent.id] if e.kind != "alive"]
            yield Violation(
                "vanished",
                f"{sent.task}[{sent.id}] was sent and never ended; its state is {state}",
                tuple(trail[-8:]),
            )
        else:
            verdict.vanished += why not in (_FORGOTTEN, _TRANSPORT)
            verdict.forgotten += why == _FORGOTTEN
            verdict.lost_by_transport += why == _TRANSPORT
            verdict.outcomes[f"vanished, {why}"] += 1


def _outcome(result: Event) -> str:
    if result.get("error") in ("TaskSkipped", "TaskReplaced") or result.get("value") == "skipped":
        return "skipped"
    return {"SUCCESS": "ran", "FAILURE": "failed"}.get(result.state, "revoked")


def not_its_own_duplicate(facts: Facts, verdict: Verdict) -> Iterator[Violation]:
    """A copy of a message, or a retry, is never ended as the duplicate of its own task."""
    for event in facts.kinds["conflict"]:
        if event.outcome in (*SKIPPED, "raised") and event.holder == event.id:
            yield Violation(
                "own duplicate",
                f"{event.task}[{event.id}] was {event.outcome} because of its own lock",
                (event,),
            )


def _why_it_may_vanish(facts: Facts, sent: Event, state: str) -> str | None:
    """The reason for which this message may be lost, or its result may be, or None."""
    parked = facts.parked(sent.id)
    if parked is not None:  # the broker has nothing to do with it
        return _FORGOTTEN if facts.forgot_since(parked.at) else None
    trail = [e for e in facts.of_id[sent.id] if e.kind in ("sent", "received", *_AFTER_RECEIVED)]
    if _popped_by_the_dead(facts, trail):
        return _TRANSPORT
    may = "vanished" in facts.allows
    got = max((number for number, e in enumerate(trail) if e.kind == "received"), default=0)
    since = trail[got + 1 :]
    acked = next((e for e in since if e.kind == "acked"), None)
    ends = [body.outcome for body in facts.bodies_of[sent.id]]
    if facts.case.get("broker") == "rabbitmq" and sent.id in facts.expiring:
        if acked is None:
            return "dropped by the broker when it expired"
        if _was_deferred(facts, sent.id):
            return "deferred, and then dropped by the broker when it expired"
    if acked is None:
        # The broker was to deliver it, or to deliver it again.
        return _TRANSPORT if may else None
    elsewhere = any(e.kind == "conflict" and e.outcome == "runs elsewhere" for e in since)
    if elsewhere and facts.bodies_of[sent.id]:
        acked = facts.bodies_of[sent.id][-1].start  # a room's copy has ended beside this run
    if acked.main in facts.died and not facts.acks_late:
        return "acknowledged by a worker that died"
    if facts.case.get("pool") == "gevent" and (may or acked.main in facts.died):
        # The pool reports a greenlet that was killed as one that returned.
        return "acknowledged by the gevent pool, which had killed it"
    over = ends[-1:] in (["returned"], ["raised"]) or sent.id in facts.revoked
    if state == "RETRY" and "retried" in ends and over:
        # Celery looks whether there is a result, and then stores: that of an attempt that has
        # published the next one may come after that one's, or after that of a revocation.
        return "ended, and Celery stored an earlier attempt's state over its result"
    if ends and ends[-1] in ("returned", "raised"):
        # It cancels what runs when the connection is lost, and says so also if it just ended.
        return "ended, and Celery said that it was cancelled" if may else None
    if ends and ends[-1] == "rejected":
        # Celery rejects a retry that it cannot publish, and stores nothing.
        return "retry not published by Celery" if may else None
    if any(e.kind == "end" and e.outcome == "retried" for e in since) or _deferred(since):
        return _TRANSPORT if may else None
    if _is_already_done(since) and "retried" in ends:
        # RabbitMQ was not asked to confirm the retry's message, and the connection broke.
        return _TRANSPORT if may else None
    return None


_TRANSPORT = "lost by the broker's transport"
#: Seconds within which kombu puts a message back whose visibility timeout is over, and a worker
#: takes it: see `IMPATIENT`.
RESTORED_WITHIN = 5.0
_FORGOTTEN = "forgotten with the lock server's data"
_AFTER_RECEIVED = ("published", "acked", "conflict", "end")


def _was_deferred(facts: Facts, task_id: str) -> bool:
    """Whether the last that is known of it is that it was published again with a countdown: behind
    another run, or as its run has ended and its result is due, or since the server was out of
    reach, which are not written down.
    """
    kinds = ("asks", "refused", "took", "parked", "conflict")
    last = next((e for e in reversed(facts.of_id[task_id]) if e.kind in kinds), None)
    if last is not None and last.kind == "refused":
        return any(e.kind == "published" and e.at > last.at for e in facts.of_id[task_id])
    if last is None or last.kind not in ("asks", "conflict"):
        return False
    if last.kind == "conflict":
        return last.get("countdown") is not None
    return facts.unreachable(last.at, last.at + facts.ttl) is not None


def _popped_by_the_dead(facts: Facts, trail: list[Event]) -> bool:
    """Whether a worker was killed that may just have taken a message of this task: as it was
    published, or put back after its visibility timeout. Kombu's Redis transport takes it from its
    list first, and notes that it has it in a second step.
    """
    if facts.case.get("broker") != "redis":
        return False
    published = [e.at for e in trail if e.kind in ("sent", "published")]
    received = {e.tag: e.at for e in trail if e.kind == "received"}
    deaths = [at for pid, at in facts.died.items() if pid in facts.mains]
    if len(published) > len(received) and published[-1] - NOISE < max(deaths, default=0.0):
        return True
    acked = {e.tag for e in trail if e.kind == "acked"}
    back = [
        at + (facts.case.get("visibility") or NEVER)
        for tag, at in received.items()
        if tag not in acked
    ]
    return any(at - NOISE < death < at + RESTORED_WITHIN for at in back for death in deaths)


def _is_already_done(trail: list[Event]) -> bool:
    return any(e.kind == "conflict" and e.outcome == "already done" for e in trail)


def _deferred(trail: list[Event]) -> bool:
    outcomes = ("deferred", "redelivered", "retried early")
    return any(e.kind == "conflict" and e.outcome in outcomes for e in trail)


def no_attempt_completes_twice(facts: Facts, verdict: Verdict) -> Iterator[Violation]:
    """An attempt that ran to its end runs again only if its lock was lost or its process died."""
    for task_id, bodies in facts.bodies_of.items():
        by_attempt = defaultdict(list)
        for body in bodies:
            by_attempt[body.start.attempt].append(body)
        # An attempt that runs again brings those after it along.
        excused_from = NEVER
        for _, runs in sorted(by_attempt.items()):
            for earlier, later in itertools.pairwise(runs):
                may = _may_run_again(facts, earlier, later.start.at)
                # Celery alone runs each copy: of what the broker delivers again, and of what was
                # published again since it did not come.
                copied = any(run.start.get("redelivered") for run in (earlier, later))
                copied = copied or facts.published_again(task_id)
                may = may or (not later.start.token and copied)
                if earlier.outcome not in COMPLETED or may or later.start.at > excused_from:
                    verdict.again += 1
                    excused_from = min(excused_from, later.start.at)
                    continue
                assert earlier.end is not None
                yield Violation(
                    "twice",
                    f"{earlier.start.task}[{task_id}] had {earlier.outcome} and ran again",
                    (earlier.start, earlier.end, later.start),
                )


def _may_run_again(facts: Facts, body: Body, at: float) -> bool:
    return (
        body.lost
        or facts.is_dead(body.start, by=at)
        or facts.data_may_be_lost(at)
        or ("again" in facts.allows and any(begin <= at for begin, _, _ in facts.faults))
        or facts.could_not_say(body)
        or facts.cancelled(body, by=at)
        or facts.acknowledgement_lost(body.start.id)
    )


def nothing_is_left(facts: Facts, verdict: Verdict) -> Iterator[Violation]:
    """No lock stands when all is quiet, and none ever stands without an expiry."""
    for event in facts.kinds["quiet"]:
        for key, value in event.keys.items():
            yield Violation("left", f"{key} is still held: {value}", (event,))
        for key, value in event.get("rooms", {}).items():
            yield Violation("left", f"there is still {key}: {value}", (event,))
    for event in facts.kinds["immortal"]:
        yield Violation("immortal", f"{event.key} has no expiry", (event,))


def losers_are_told(facts: Facts, verdict: Verdict) -> Iterator[Violation]:
    """A body that lost its lock is told, and soon, and never believes beyond its right."""
    others: dict[str, list[Body]] = defaultdict(list)
    for first, second in _pairs_inside(facts):
        # Either may have lost it: one that stood still between acquiring and its start, or who took
        # it from a master that was about to be replaced. Who does not know it has the lower fence.
        loser, winner = sorted(
            (first, second), key=lambda body: (not facts.knows_loss(body), body.start.fence)
        )
        others[loser.start.run].append(winner)
    for bodies in facts.by_key.values():
        for body in bodies:
            yield from _never_believes_beyond_its_right(body)
            yield from _told_in_time(facts, verdict, body, others[body.start.run])


def _never_believes_beyond_its_right(body: Body) -> Iterator[Violation]:
    samples = [*body.samples, *([body.end] if body.end else [])]
    for sample in samples:
        if sample.lost:
            continue
        if not any(a <= sample.at and b + TICK >= sample.asked for a, b in body.rights):
            yield Violation(
                "believed",
                f"a body asked at {sample.asked:.4f} and was told that the lock was its own;"
                f" its right had ended at {body.right_until:.4f}",
                (body.start, sample),
            )
            return


def _told_in_time(
    facts: Facts, verdict: Verdict, body: Body, winners: list[Body]
) -> Iterator[Violation]:
    taken_at = min((max(w.start.at, body.start.at) for w in winners), default=NEVER)
    ended_at = body.right_until
    lost_at = min(taken_at, ended_at)
    if lost_at >= body.inside_until:
        return
    if lost_at == ended_at:
        bound = SOON
    elif facts.unreachable(lost_at - facts.ttl, lost_at + facts.ttl):
        bound = facts.ttl + SOON
    else:
        bound = facts.ttl / 3 + SOON
    known_at = min(body.told_at, body.inside_until)
    took = known_at - lost_at - facts.stopped(body.start.pid, lost_at, known_at)
    if body.lost:
        verdict.told.append(max(took, 0.0))
    in_time = took - facts.late(lost_at, known_at) <= bound + NOISE
    if not in_time:
        said = "was told only" if body.lost else "ended, without having been told,"
        yield Violation(
            "not told",
            f"a body lost its lock at {lost_at:.4f} and {said} {took:.2f} s later;"
            f" the bound is {bound:.2f} s",
            (body.start, *(w.start for w in winners), *filter(None, (body.end,))),
        )


def locks_of_the_dead_are_freed(facts: Facts, verdict: Verdict) -> Iterator[Violation]:
    """A killed child's lock is free at once, and a killed worker's after its ttl."""
    freed = {(event.key, event.token): event.at for event in facts.kinds["freed"]}
    for event in facts.kinds["revived"]:
        yield Violation("revived", f"{event.key} is held again by a dead body", (event,))
    for body in facts.bodies:
        if body.end is not None or not body.start.fence:
            continue
        start = body.start
        dead_at = min(facts.death(start.pid), facts.death(start.main))
        if dead_at == NEVER or (start.key, start.token) not in freed:
            continue  # what is never freed is found by `nothing_is_left`
        freed_at = freed[start.key, start.token]
        back_at = facts.unreachable(dead_at - facts.ttl, freed_at)
        by_child = start.pid != start.main and facts.death(start.main) > freed_at
        main_stopped = facts.stopped(start.main, dead_at, freed_at) > 0
        took = max(freed_at - dead_at, 0.0)
        if back_at is not None:
            bound = max(back_at - dead_at, 0.0) + facts.ttl + SOON
        elif by_child and not main_stopped:
            bound = SOON
            verdict.freed_child.append(took)
        else:
            bound = facts.ttl + SOON
            if not main_stopped:
                verdict.freed_worker.append(took)
        if took - facts.late(dead_at, freed_at) > bound + NOISE:
            yield Violation(
                "not freed",
                f"{start.key} was free only {took:.2f} s after its holder's death;"
                f" the bound is {bound:.2f} s",
                (start,),
            )


def nothing_fails_by_itself(facts: Facts, verdict: Verdict) -> Iterator[Violation]:
    """No task fails with an error of the package's own."""
    ours = {event.id for event in facts.kinds["sent"]}
    for event in facts.kinds["failed"]:
        if event.id in ours and event.error in OF_PROGRAMS:
            yield Violation("error", f"{event.id} failed with {event.error}", (event,))


def workers_live(facts: Facts, verdict: Verdict) -> Iterator[Violation]:
    """No worker ends that nobody has ended."""
    for event in facts.kinds["crashed"]:
        if "vanished" in facts.allows and event.get("error"):
            continue  # kombu's Redis transport acknowledges on a channel that it has closed
        yield Violation("crashed", f"a worker ended with status {event.status}", (event,))


RULES = (
    workers_live,
    nothing_fails_by_itself,
    no_overlap,
    nothing_begins_under_a_suspension,
    no_message_vanishes,
    not_its_own_duplicate,
    no_attempt_completes_twice,
    nothing_is_left,
    losers_are_told,
    locks_of_the_dead_are_freed,
)
