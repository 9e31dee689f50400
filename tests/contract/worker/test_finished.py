"""Which done notes are forgotten, and when."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.app.delivery import hand_on_done_key
from celery_redislock.protocol import calls, notes
from celery_redislock.protocol.claims import Claim, to_ms
from celery_redislock.protocol.exchange import UNKNOWN_TTL
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.notes import DONE_TTL
from celery_redislock.worker import finished
from celery_redislock.worker import request as requests
from celery_redislock.worker.finished import REMEMBERED, FinishedNote, FinishedNotes
from tests.contract.clocks import clock


def claim_of(label: str, task_id: str) -> Claim:
    return Claim(lock_keys(label, task_id), "0" * 32, 6.0, "", task_id)


@pytest.fixture
def left(raw: Any, label: str) -> Any:
    """The tasks whose notes are left."""
    return lambda: {key.split(b":")[-2].decode() for key in raw.scan_iter(f"{label}:*:done:*")}


@pytest.fixture
def leave(store: Any, label: str) -> Any:
    """Leaves a note, and gives its key."""

    def leave(task_id: str, kind: str = notes.ENDED, done_ttl: float = DONE_TTL) -> str:
        claim = dataclasses.replace(claim_of(label, task_id), done_ttl=done_ttl)
        store.run(calls.mark_done(claim, kind), once=True)
        return claim.done_key

    return leave


# -- in the server ------------------------------------------------------------------------------


def test_only_notes_are_forgotten_that_are_old_enough_and_do_not_last(
    store, leave, left, raw, label
):
    keys = [leave(f"t{number}", "01c"[number % 3]) for number in range(20)]
    kept = [leave("lasting", notes.lasting(notes.ENDED)), leave("later", done_ttl=DONE_TTL + 2)]
    replaced = claim_of(label, "replaced")
    store.run(calls.note_replaced(replaced, 0, '["pkg.task","x"]', 0.0), once=True)
    never_left = claim_of(label, "never").done_key
    assert len(left()) == 23
    forgets = calls.forget([*keys, *kept, replaced.done_key, never_left], DONE_TTL + 1)
    store.run_all(forgets, ttl=UNKNOWN_TTL)
    assert left() == {"lasting", "later", "replaced"}


@pytest.mark.parametrize("always", [True, False])
def test_a_note_lasts_if_the_lock_is_gone_or_a_copy_was_seen(store, raw, label, always):
    gone, seen = claim_of(label, "gone"), claim_of(label, "seen")
    store.run(calls.settle(gone, calls.Release(note=notes.ENDED, always=always)))
    assert raw.get(gone.done_key) == notes.lasting(notes.ENDED).encode()
    assert notes.decode(raw.get(gone.done_key)).kind == notes.ENDED
    opening = seen.opening
    raw.set(seen.keys.lock, f'{opening},"redelivered":true}}', px=to_ms(seen.ttl))
    store.run(calls.settle(seen, calls.Release(note=notes.EXPECTS_RESULT, always=always)))
    assert raw.get(seen.done_key) == notes.lasting(notes.EXPECTS_RESULT).encode()


# -- in the worker ------------------------------------------------------------------------------


class Some(SimpleNamespace):
    """An object with these attributes that is equal to itself only."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@pytest.fixture
def now(monkeypatch):
    """The time, which is set by hand."""
    time = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(finished, "clock", lambda: time.now)
    return time


@pytest.fixture
def consumer():
    return Some(restart_count=0, connection=SimpleNamespace(connected=True))


class Ended:
    """A request whose task has ended."""

    def __init__(self, note: FinishedNote | None, acknowledged: bool = True) -> None:
        self.message = SimpleNamespace(acknowledged=acknowledged)
        self._note = note

    def finished_note(self) -> FinishedNote | None:
        return self._note


@pytest.fixture
def forgets(store, leave, consumer, now):
    """Those whose thread is the test: `look` is one look."""
    own = FinishedNotes()
    own._chore.begin = lambda after: None
    locks: Any = Some(server=store, done_ttl=DONE_TTL + REMEMBERED)

    def look(seconds: float = 0.0) -> None:
        now.now += seconds
        own._take_acknowledged(now.now)
        own._forget_those_due(now.now)

    def end(task_id: str, **options: Any) -> Ended:
        ended = Ended(FinishedNote(locks, consumer, 0, leave(task_id)), **options)
        own.add(ended)
        return ended

    return SimpleNamespace(look=look, end=end, notes=own)


def test_a_note_is_forgotten_when_the_connection_has_lived_on_for_long_enough(forgets, left):
    forgets.end("a")
    forgets.look()
    forgets.look(REMEMBERED - 1)
    forgets.end("b")
    forgets.look()
    assert left() == {"a", "b"}
    forgets.look(1)
    assert left() == {"b"}
    forgets.look(REMEMBERED - 1)
    assert left() == set()


def lose_socket(consumer: Any) -> None:
    consumer.connection.connected = False


def lose_connection(consumer: Any) -> None:
    consumer.connection = None


def connect_again(consumer: Any) -> None:
    consumer.restart_count += 1


@pytest.mark.parametrize("happens", [lose_socket, lose_connection, connect_again])
def test_a_note_stays_if_the_connection_is_lost(forgets, left, consumer, happens):
    forgets.end("a")
    forgets.look()
    happens(consumer)
    forgets.look(REMEMBERED)
    forgets.look(REMEMBERED)
    assert left() == {"a"}
    assert not forgets.notes._batches


def test_the_time_counts_from_when_the_message_is_acknowledged(forgets, left):
    request = forgets.end("a", acknowledged=False)
    forgets.look(finished.ACKNOWLEDGED_WITHIN)
    request.message.acknowledged = True
    forgets.look()
    forgets.look(REMEMBERED - 1)
    assert left() == {"a"}
    forgets.look(1)
    assert left() == set()


def test_a_note_stays_if_its_message_is_never_acknowledged(forgets, left):
    forgets.end("a", acknowledged=False)
    forgets.look(finished.ACKNOWLEDGED_WITHIN + 1)
    assert not forgets.notes._requests
    forgets.look(REMEMBERED)
    assert left() == {"a"}


def test_a_note_is_looked_for_when_the_task_has_ended(forgets, left, monkeypatch):
    """A message that is acknowledged early: its task runs for long."""
    request = forgets.end("a")
    running = {request}
    monkeypatch.setattr(finished, "is_active", running.__contains__)
    forgets.look(2 * REMEMBERED)
    forgets.look(2 * REMEMBERED)
    running.clear()
    forgets.look(1)
    assert left() == {"a"}
    forgets.look(REMEMBERED)
    assert left() == set()


def test_notes_stay_if_the_lock_server_does_not_answer(forgets, left, store, monkeypatch):
    def unavailable(*args: Any, **options: Any) -> None:
        raise finished.LockUnavailable("", None, "away")

    forgets.end("a")
    forgets.look()
    with monkeypatch.context() as patched:
        patched.setattr(store, "run_all", unavailable)
        forgets.look(REMEMBERED)
    forgets.look(REMEMBERED)
    assert left() == {"a"}


def test_many_notes_are_forgotten_in_several_round_trips(forgets, left, store, monkeypatch):
    monkeypatch.setattr(finished, "AT_ONCE", 7)
    run_all, asked = store.run_all, []

    def counted(calls: Any, **options: Any) -> Any:
        asked.append(sum(len(call.keys) for call in calls))
        return run_all(calls, **options)

    monkeypatch.setattr(store, "run_all", counted)
    for number in range(20):
        forgets.end(f"t{number}")
    forgets.look()
    forgets.look(REMEMBERED)
    assert left() == set()
    assert asked == [7, 7, 6]


def test_there_is_a_bound_to_what_is_remembered_here(forgets, left, monkeypatch):
    monkeypatch.setattr(finished, "MOST", 3)
    for number in range(5):
        forgets.end(f"t{number}")
    forgets.look()
    forgets.look(REMEMBERED)
    assert left() == {"t3", "t4"}


# -- which requests -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connection", "visible", "held", "is_named"),
    [
        (0, None, 9999.0, True),
        (1, None, 0.0, False),
        (0, 100.0, 49.0, True),
        (0, 100.0, 51.0, False),
    ],
)
def test_a_note_is_needed_where_another_worker_may_have_the_message(
    consumer, monkeypatch, connection, visible, held, is_named
):
    monkeypatch.setattr(requests, "clock", lambda: 1000.0 + held)
    request: Any = object.__new__(requests.LockRequest)
    keys = lock_keys("p", "name")
    request._task = SimpleNamespace(
        worker_consumer=consumer,
        app_locks=SimpleNamespace(redelivery=SimpleNamespace(after=visible)),
        lock_keys_for=lambda *_: keys,
    )
    request._received, request._came_on = 1000.0, connection
    request._request_dict = {"id": "x", "retries": 2, "properties": {"redislock": {}}}
    request._args, request._kwargs = (), {}
    note = request.finished_note()
    assert (note is not None) is is_named
    if note is not None:
        assert note.key == keys.done_by("x:0.2")


def test_a_run_in_the_main_process_hands_on_the_key_of_its_note(consumer):
    request: Any = object.__new__(requests.LockRequest)
    redelivery = SimpleNamespace(after=None)
    request._task = SimpleNamespace(
        worker_consumer=consumer, app_locks=SimpleNamespace(redelivery=redelivery)
    )
    request._received, request._came_on = clock(), 0
    request._request_dict = {"id": "x", "properties": {"redislock": {}}}
    hand_on_done_key({**request._request_dict}, "the note")  # as Celery copies it
    assert request.finished_note().key == "the note"
