"""The right to a lock, as a table: what was known, what came, what is believed and told then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_redislock import LockUnavailable
from celery_redislock.lock import right as module
from celery_redislock.lock.right import (
    ANSWERED,
    BROKEN,
    GONE,
    KEPT,
    LOST,
    REPLACED,
    SILENT,
    TAKEN_AGAIN,
    TOO_LONG,
    Ask,
    News,
    Right,
)
from celery_redislock.protocol.calls import settle
from celery_redislock.protocol.claims import (
    EXTENDED,
    NOT_OURS,
    RETAKEN,
    Acquired,
    Busy,
    Claim,
    Done,
    Extended,
    Extension,
)
from celery_redislock.protocol.holders import Holder
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.notes import ENDED, Note

TTL = 10.0
NEWER = Holder(task_id="newer")
NO_REPLY = LockUnavailable("lock", None, "no reply")


class Heard(Right):
    """A right that keeps what it tells, and whether somebody keeps it alive."""

    def __init__(self, **options: Any) -> None:
        claim = Claim(lock_keys("redislock", "lock"), "token", TTL, '{"token":"token"}')
        super().__init__(claim, **options)
        self.told: list[News] = []
        self.is_kept_alive = False

    def tell(self, news: News) -> None:
        self.told.append(news)

    def keep_alive(self) -> None:
        self.is_kept_alive = True

    @property
    def kinds(self) -> list[module.Kind]:
        return [news.kind for news in self.told]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(module, "clock", clock := Clock())
    return clock


@pytest.fixture
def right() -> Heard:
    """A right that was acquired at 0."""
    right = Heard()
    assert right.accept(Acquired("stored", 7, sent_at=0.0))
    return right


def answered(steps: Generator[Ask, Any, Any], *answers: Any) -> tuple[list[Ask], Any]:
    """What was asked, and what came of it."""
    asked = []
    try:
        step = next(steps)
        for answer in answers:
            asked.append(step)
            failed = isinstance(answer, Exception)
            step = steps.throw(answer) if failed else steps.send(answer)
    except StopIteration as end:
        return asked, end.value
    raise AssertionError(f"{step} was not answered")


# -- how it begins ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "at", "deadline", "next_beat"),
    [
        (Acquired("stored", 7, sent_at=1.0), None, 11.0, 4.0),
        (Acquired("stored", 7, sent_at=1.0), 3.0, 11.0, 4.0),  # woken at 3
    ],
)
def test_it_lasts_for_a_ttl_after_the_lock_was_asked_for(answer, at, deadline, next_beat) -> None:
    right = Heard()

    assert right.accept(answer, at) is answer

    assert (right.fence, right.stored, right.is_kept_alive) == (7, "stored", True)
    assert (right.acquired_at, right.deadline) == (at or 1.0, deadline)
    assert right.next_beat == pytest.approx(next_beat)


@pytest.mark.parametrize("answer", [Busy(None, 1.0, "other"), Done(Note(ENDED), 1.0)])
def test_another_answer_says_that_we_are_given_nothing(answer) -> None:
    right = Heard()
    right.asked = True

    assert right.accept(answer) is answer

    assert (right.fence, right.asked, right.is_kept_alive) == (0, False, False)


def test_an_answer_that_comes_when_the_right_would_have_ended_is_not_relied_on() -> None:
    right = Heard()
    right.asked = True

    assert right.accept(Acquired("stored", 7, sent_at=1.0), 11.0) is None

    assert (right.fence, right.asked, right.is_kept_alive) == (0, True, False)


# -- how long it lasts --------------------------------------------------------------------------

#: A reply to an extension that was sent at 3, and when it came; then what is told, when the right
#: ends, and when the lock is extended next.
REPLIES = [
    (Extended(EXTENDED, 7), 3.5, [KEPT], 13.0, 6.0),
    (Extended(RETAKEN, 7), 3.5, [TAKEN_AGAIN], 13.0, 6.0),
    (Extended(EXTENDED, 7, NEWER), 3.5, [KEPT, REPLACED], 13.0, 6.0),
    (Extended(NOT_OURS, 7), 3.5, [LOST], 10.0, 3.0),
    (NO_REPLY, 3.5, [SILENT], 10.0, 3.6),
    (NO_REPLY, 9.95, [SILENT], 10.0, 10.0),
    (NO_REPLY, 10.0, [LOST], 10.0, 3.0),
]


@pytest.mark.parametrize(("reply", "at", "told", "deadline", "next_beat"), REPLIES)
def test_what_the_heartbeat_hears(right, reply, at, told, deadline, next_beat) -> None:
    if isinstance(reply, LockUnavailable):
        right.not_extended(reply.reason, at)
    else:
        right.extended(reply, 3.0)

    assert right.kinds == told
    assert (right.deadline, right.next_beat) == pytest.approx((deadline, next_beat))
    assert right.is_lost is (LOST in told)
    assert right.replaced_by is (NEWER if REPLACED in told else None)


def test_that_the_server_is_silent_is_told_once_and_so_is_that_it_answers_again(right) -> None:
    right.not_extended("no reply", 3.0)
    right.not_extended("no reply", 3.1)
    right.extended(Extended(EXTENDED, 7), 4.0)
    right.extended(Extended(EXTENDED, 7), 7.5)

    assert right.kinds == [SILENT, ANSWERED, KEPT]
    assert [news.late for news in right.told] == [None, 1.0, pytest.approx(0.5)]


@pytest.mark.parametrize(
    ("now", "may", "told", "next_beat"),
    [(3.0, True, [], 3.0), (5.0, False, [TOO_LONG], 10.0), (10.0, False, [LOST], 10.0)],
)
def test_after_max_hold_it_is_not_extended_and_lost_in_the_end(now, may, told, next_beat) -> None:
    right = Heard(max_hold=5.0)
    right.accept(Acquired("stored", 7, sent_at=0.0))

    assert right.may_extend(now) is may
    assert right.may_extend(now) is may, "and it is told once"

    assert right.kinds == told
    assert right.next_beat == next_beat


@pytest.mark.parametrize(("now", "retake", "retakes"), [(9, True, 1), (9, False, 0), (10, True, 0)])
def test_a_lock_that_vanished_is_taken_again_only_while_the_right_lasts(
    right, now, retake, retakes
) -> None:
    assert right.extension_at(now, retake).retake == retakes


#: When somebody asks for an extension at once, when and what the server answers; then whether the
#: lock is still ours, what is told, and how many extensions may still arrive.
AT_ONCE = [
    (3.0, 3.1, Extended(EXTENDED, 7), True, [KEPT], 0),
    (10.0, 10.1, Extended(EXTENDED, 7), True, [KEPT], 0),
    (3.0, 3.1, Extended(NOT_OURS, 7, broken_by="me"), False, [LOST], 0),
    (3.0, 3.1, NO_REPLY, "raises", [], 1),
    (3.0, 10.0, NO_REPLY, False, [LOST], 1),
]


@pytest.mark.parametrize(("sent", "came", "answer", "ours", "told", "unanswered"), AT_ONCE)
def test_an_extension_at_once(right, time, sent, came, answer, ours, told, unanswered) -> None:
    time.now = sent
    steps = right.extending()
    step = next(steps)
    time.now = came

    try:
        said = steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
    except StopIteration as end:
        said = end.value
    except LockUnavailable:
        said = "raises"

    assert (step.call.script, step.once) == ("extend", True)
    assert (said, right.kinds, right.unanswered) == (ours, told, unanswered)


def test_an_extension_says_what_the_server_is_to_find_and_to_store(right) -> None:
    right.extended(Extended(EXTENDED, 9), 3.0)
    assert right.extension_at(4.0) == Extension(right.claim, "stored", 7, True, 9)


@pytest.mark.parametrize(("ttl", "listens", "seconds"), [
    (30.0, False, 9.0), (30.0, True, 1.0), (2.0, True, 0.6),
])  # fmt: skip
def test_it_is_extended_thrice_in_a_ttl_and_each_second_where_it_may_be_replaced(
    ttl, listens, seconds
) -> None:
    assert module.beat_every(ttl, listens) == pytest.approx(seconds)
    right = Heard(listens=listens)
    right.accept(Acquired("stored", 7, sent_at=0.0))
    right.extended(Extended(EXTENDED, 7), 1.0)
    assert right.next_beat - 1.0 == pytest.approx(module.beat_every(TTL, listens))


# -- how it ends --------------------------------------------------------------------------------

#: What comes, and what is told of it: its news, and why the lock was lost.
TOLD: dict[str, tuple[Callable[[Heard], object], News, str]] = {
    "too long": (
        lambda right: right.may_extend(6.0), News(TOO_LONG, "5 s"), "",
    ),
    "too long, and over": (
        lambda right: right.may_extend(10.0),
        News(LOST, "held for longer than 5 s", ends=True), "held for longer than 5 s",
    ),
    "silent": (lambda right: right.not_extended("gone", 3.0), News(SILENT, "gone"), ""),
    "silent, for long": (
        lambda right: right.not_extended("gone", 10.0), News(LOST, "gone", ends=True), "gone",
    ),
    "taken again": (
        lambda right: right.extended(Extended(RETAKEN, 7), 3.0),
        News(TAKEN_AGAIN, "retaken", late=0.0), "",
    ),
    "kept": (
        lambda right: right.extended(Extended(EXTENDED, 7), 3.0), News(KEPT, late=0.0), "",
    ),
    "broken": (
        lambda right: right.extended(Extended(NOT_OURS, 7, broken_by="me"), 3.0),
        News(LOST, f"{BROKEN}: me", ends=True), f"{BROKEN}: me",
    ),
    "replaced": (
        lambda right: right.be_replaced(NEWER), News(REPLACED, by=NEWER, ends=True),
        "newer replaces it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_what_is_told_says_why_and_by_whom(name) -> None:
    comes, news, why = TOLD[name]
    right = Heard(max_hold=5.0)
    right.accept(Acquired('{"token":"token","task":"t","task_id":"this"}', 7, sent_at=0.0))

    comes(right)

    assert right.told == [news]
    error = right.lost_error()
    assert (right.lost_because, error.reason) == (why, why)
    assert (error.key, error.holder.task_id) == (right.key, "this")


BEFORE: dict[str, Callable[[Heard], object]] = {
    "nothing": lambda right: None,
    "lost": lambda right: right.lose("why"),
    "replaced": lambda right: right.be_replaced(NEWER),
    "given back": lambda right: setattr(right, "is_over", True),
    "being given back": lambda right: setattr(right, "is_released", True),
}
#: What was so before, what comes then, and what of it is told. The run hears once that it ends.
ENDS = [
    ("nothing", "lost", [(LOST, True)]),
    ("lost", "lost", []),
    ("replaced", "lost", [(LOST, False)]),
    ("given back", "lost", []),
    ("being given back", "lost", []),
    ("nothing", "replaced", [(REPLACED, True)]),
    ("replaced", "replaced", []),
    ("lost", "replaced", []),
    ("given back", "replaced", []),
]


@pytest.mark.parametrize(("before", "then", "told"), ENDS)
def test_what_is_told_of_an_end(right, before, then, told) -> None:
    BEFORE[before](right)
    right.told.clear()

    BEFORE[then](right)

    assert [(news.kind, news.ends) for news in right.told] == told


def test_of_threads_that_find_out_at_a_time_one_tells(right) -> None:
    for _ in range(200):
        right = Heard()
        right.accept(Acquired("stored", 7, sent_at=0.0))
        ready = threading.Barrier(4)

        def find_out(right: Heard = right, ready: threading.Barrier = ready) -> None:
            ready.wait()
            right.lose("why")
            right.be_replaced(NEWER)

        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(find_out)

        assert right.kinds == [LOST]


#: The answer to the question why a release did not find the lock, and what it comes to.
WHY = [
    (Extended(NOT_OURS, 7), GONE),
    (Extended(NOT_OURS, 7, broken_by=""), BROKEN),
    (Extended(NOT_OURS, 7, broken_by="me"), f"{BROKEN}: me"),
    (NO_REPLY, GONE),
]


@pytest.mark.parametrize(("answer", "why"), WHY)
def test_a_release_that_finds_nothing_asks_why_and_tells_of_the_loss(right, answer, why) -> None:
    right.is_over = True

    asked, _ = answered(right.asking_why(settle(right.claim)), answer)

    assert [(each.call.script, each.call.args[2]) for each in asked] == [("extend", 0)]
    assert right.told == [News(LOST, why, ends=True)]
    assert right.lost_error().key == right.key


def test_who_is_interrupted_while_it_asks_why_is_told_all_the_same(right) -> None:
    steps = right.asking_why(settle(right.claim))
    next(steps)

    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())

    assert right.told == [News(LOST, GONE, ends=True)]


@pytest.mark.parametrize("known", ["lost", "replaced", "not acquired", "in doubt", "undone"])
def test_no_question_is_asked_where_the_loss_is_known_or_not_proved(right, known) -> None:
    call = settle(right.claim)
    call.in_doubt = known == "in doubt"
    if known == "not acquired":
        right.fence = 0
    elif known == "undone":
        right.is_undone = True
    elif known != "in doubt":
        BEFORE[known](right)
    right.told.clear()

    assert answered(right.asking_why(call)) == ([], None)
    assert right.told == []
