"""The scripts and the lease beside their specification, whatever happens in which order."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_redislock.lock import right
from celery_redislock.lock.right import Right
from celery_redislock.protocol import calls
from celery_redislock.protocol.claims import Acquired, Extended, Extension, to_ms
from celery_redislock.protocol.waiting import Answer
from celery_redislock.testing import MemoryServer
from tests.contract.changed_scripts import rewritten
from tests.support.servers import RedisServer

from .lock_machine import KEYS, NONE, SCENES, Client, LockMachine, Trouble, machine_of, way
from .lock_model import TTL
from .virtual_time import TICK, Way

#: It computes, and a busy machine has little time for it.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.usefixtures("declared_keys")]


Connect = Callable[[], redis.Redis]


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    """To a server of its own, which the machine empties."""
    with RedisServer() as server:
        yield server.client


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Locks are lost all the time here."""
    caplog.set_level(logging.CRITICAL, logger="celery_redislock")


def test_a_lock_answers_what_the_model_says_whatever_happens_in_which_order(connect) -> None:
    run_state_machine_as_test(
        lambda: machine_of(connect),
        settings=settings(
            max_examples=settings.default.max_examples // 5,
            stateful_step_count=40,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def machine(connect: Connect) -> Iterator[LockMachine]:
    machine = machine_of(connect)
    yield machine
    machine.teardown()


def test_who_is_woken_has_the_lock_though_the_server_forgot_the_script(machine) -> None:
    machine.begin("handed over")
    machine.meanwhile("scripts", 0, 0, NONE)
    machine.be_woken(0)
    assert len(machine.holders) == 1
    machine.check()


def test_who_is_woken_beside_one_that_waits_no_more_has_the_lock(machine) -> None:
    machine.begin("waited for in vain")
    machine.meanwhile("break", 0, 0, NONE)
    machine.be_woken(0)
    machine.check()
    assert len(machine.holders) == 2, "one of them does not know yet that its lock was broken"


def holder_told_after_a_copy_came(machine: LockMachine) -> Client:
    holder = machine.deliver(0, "task", 0)
    machine._ask(holder, trouble=Trouble(lost="for good"))
    machine._ask(machine.deliver(1, "copy", 0))
    machine._ask(holder)
    return holder


def test_a_holder_that_is_told_late_takes_it_again_with_the_copy_that_came_before(machine) -> None:
    holder = holder_told_after_a_copy_came(machine)
    machine._restart()
    machine._beat(holder, NONE)
    machine.check()
    assert machine.model.lock.copy_seen


def test_a_holder_that_is_told_late_keeps_it_with_the_copy_that_came_before(machine) -> None:
    holder = holder_told_after_a_copy_came(machine)
    machine._hold(holder, 1, NONE)
    machine.check()
    assert machine.model.lock.copy_seen


def test_on_long_ways_a_lock_gives_every_answer_of_every_script_and_the_models(connect) -> None:
    ways = [way(connect, scene, seed, steps=100) for scene in SCENES for seed in range(2)]
    assert set().union(*ways) == {
        "acquire: Acquired True",
        "acquire: Acquired False",
        "acquire: Busy other",
        "acquire: Busy own",
        "acquire: Busy earlier",
        "acquire: Busy reserved",
        "acquire: Done 0",
        "acquire: Done 1",
        "extend: extended",
        "extend: retaken",
        "extend: not ours",
        "settle: True",
        "settle: False",
        "keep: True",
        "keep: False",
        "break_lock: True",
        "break_lock: False",
    }


@pytest.mark.parametrize("scene", SCENES)
def test_so_does_a_lock_in_memory(scene: str) -> None:
    way(MemoryServer().new_client, scene, seed=1, steps=100)


def test_a_retry_takes_over_from_an_attempt_that_missed_its_heartbeats(machine) -> None:
    machine.begin("retried")
    machine.pass_time(TTL - 1)
    _, retry = machine.all
    machine._ask(retry)
    machine.check()
    assert retry in machine.holders, "the other one does not know yet"


# -- a machine that cannot fail is worth nothing ----------------------------------------------


def is_found_out(connect: Connect, scene: str) -> bool:
    """Whether something is noticed. It would be in any scene, but later."""
    for seed in range(100):
        try:
            way(connect, scene, seed, steps=20)
        except AssertionError:
            return True
    return False


class Mutant(NamedTuple):
    """A script with one thing changed, and the scene in which that comes out soon."""

    name: str
    script: str
    old: str
    new: str
    scene: str = "held"


MUTANTS = (
    Mutant("a release frees whatever stands there", "settle",
           "if is_under(current, opening) then", "if is_under(current, '{\"token\"') then"),
    Mutant("a release forgets who waits", "settle",
           "and not offered and someone_waits() and may_go('') then", "and false then",
           "waited for"),
    Mutant("a release believes in waiters for ever", "settle",
           "redis.call('ZREMRANGEBYSCORE', ", "redis.call('ZCOUNT', ", "waited for in vain"),
    Mutant("a release always leaves its mark", "settle",
           "(always == '1' or", "(true or"),
    Mutant("a release leaves no mark if its lock is gone", "settle",
           "was_copied = not slot or", "was_copied = slot and"),
    Mutant("a note does not last though a copy was seen", "settle",
           "if leaves_note and was_copied then", "if false then", "copied"),
    Mutant("an extension is for whoever has it", "extend",
           "elseif is_under(current, opening) then", "elseif type(current) == 'string' then"),
    Mutant("an extension takes what is missing, whoever asks", "extend",
           "or retakes ~= '1'", ""),
    Mutant("an extension takes again what an operator broke", "extend",
           "broken_by(redis.call('GET', broken), opening)", "nil", "broken"),
    Mutant("an extension takes again what another may have had", "extend",
           "tonumber(counter) > tonumber(last_counter)", "false"),
    Mutant("an extension does not bring the counter up", "extend",
           "redis.call('SET', fence_counter, fence)", "", "ahead of the clock"),
    Mutant("the parent extends for longer than a lock may be held", "extend",
           "return since and", "return false and"),
    Mutant("the fence does not go by the counter", "acquire",
           "is_ahead = least > number", "is_ahead = false"),
    Mutant("the fence does not go by the clock", "acquire",
           "is_ahead = least > number", "is_ahead = true"),
    Mutant("a lock is taken on no condition", "acquire",
           "if not current[i] then", "if true then"),
    Mutant("a lock has no expiry", "acquire",
           "stored, 'PX', ttl)", "stored)"),
    Mutant("to ask again is to ask anew", "acquire",
           "if is_under(current[i], opening) then", "if false then"),
    Mutant("to ask again does not extend", "acquire",
           "redis.call('PEXPIRE', slot, ttl)", ""),
    Mutant("nobody looks whether an attempt has run", "acquire",
           "if task_id ~= '' and not again and not kept then", "if false then", "copied"),
    Mutant("what is kept for a waiter is taken from under it", "acquire",
           "if how ~= 'wait' then", "if true then", "handed over"),
    Mutant("a retry takes its earlier attempt's lock at once", "acquire",
           "if holder.held or holder.queued", "if true", "retried"),
    Mutant("a retry cannot take what is kept for it", "acquire",
           "if holder.held or holder.queued", "if holder.queued", "kept"),
    Mutant("a copy is a duplicate like any other", "acquire",
           "return busy(i, 'own')", "return busy(i, 'other')", "copied"),
    Mutant("that a copy was seen is not noted", "acquire",
           "redis.call('SET', slot, current[i], 'KEEPTTL')", "", "copied"),
    Mutant("to note that a copy was seen takes the expiry away", "acquire",
           "current[i], 'KEEPTTL')", "current[i])", "copied"),
    Mutant("who waits is not written down", "acquire",
           "redis.call('ZADD', waiters,", "redis.call('ZSCORE', waiters,", "waited for"),
    Mutant("who gives up a wait stays written down", "acquire",
           "elseif how == 'last' then", "elseif false then", "waited for"),
    Mutant("a request takes the lock though it comes late", "acquire",
           "if is_retired(opening) then", "if false then", "given up in doubt"),
    Mutant("who gives up does not say that a request may come late", "settle",
           "if stray == '2' then", "if false then", "given up in doubt"),
    Mutant("who gives up twice may have the lock again", "settle",
           "  if not is_retired(opening) then\n", "  if true then\n", "given up in doubt"),
    Mutant("a task that replaced itself is a copy of what it was", "acquire",
           "return (tonumber(nestings) or 0) * 1000000 +", "return"),
    Mutant("a copy of an earlier attempt may run", "acquire",
           "return not again and {'done', ENDED_NOTE, -1} or nil", "return nil", "copied"),
    Mutant("who is to run again is told that it has run", "acquire",
           "if task_id ~= '' and not again and not kept then",
           "if task_id ~= '' and not kept then", "copied"),
    Mutant("an extension does not extend", "extend",
           "    redis.call('PEXPIRE', slot, ttl)\n", ""),
    Mutant("who leaves a lock to a retry leaves no mark", "settle",
           "  if note ~= '' then\n    note_over", "  if false then\n    note_over"),
    Mutant("a lock that is broken is still there", "break",
           "    redis.call('DEL', slot)\n", ""),
    Mutant("who gives a lock back need not have it", "settle",
           "    if is_under(current, opening) then", "    if type(current) == 'string' then"),
    Mutant("what is left to a retry has no expiry", "settle",
           "redis.call('SET', slot, value, 'PX', ttl)", "redis.call('SET', slot, value)"),
    Mutant("what was broken leaves no mark", "break",
           "earlier .. broken_text(holder.token, by)", "earlier"),
    Mutant("a break wakes nobody", "break",
           "redis.call('LPUSH', wake, '1')", "", "waited for"),
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_script_with_one_thing_wrong_is_found_out(connect, mutant: Mutant) -> None:
    with rewritten(mutant.script, mutant.old, mutant.new):
        assert is_found_out(connect, mutant.scene)


def test_a_right_that_counts_from_the_answer_is_found_out(connect, monkeypatch) -> None:
    take, extended = Right.take, Right.extended

    def late(self: Right, answer: Answer, at: float | None = None) -> Answer | None:
        if isinstance(answer, Acquired):
            answer = answer._replace(sent_at=right.clock())
        return take(self, answer, at)

    def late_extended(self: Right, reply: Extended, sent_at: float) -> bool:
        return extended(self, reply, right.clock())

    monkeypatch.setattr(Right, "take", late)
    monkeypatch.setattr(Right, "extended", late_extended)
    assert is_found_out(connect, "held")


def test_an_extension_that_retakes_past_its_right_is_found_out(connect, monkeypatch) -> None:
    def always(*arguments: Any, **more: Any) -> Extension:
        return Extension(*arguments, **more)._replace(retake=True)

    monkeypatch.setattr(right, "Extension", always)
    assert is_found_out(connect, "held")


# -- what it found ----------------------------------------------------------------------------


def two_deliveries(machine: LockMachine) -> tuple[Client, Client]:
    one, other = (machine.deliver(process, "task", 0) for process in (0, 1))
    for client in (one, other):
        client.process.store.way = Way()
    return one, other


def test_a_retake_that_arrives_past_its_right_does_not_hide_that_another_had_the_lock(
    machine,
) -> None:
    one, other = two_deliveries(machine)

    def meanwhile() -> int:
        machine.pass_time(1)
        other.lease.acquire()
        other.lease.release()
        return 1

    one.lease.acquire()
    machine.pass_time(TTL - 1)
    one.process.store.way.before = meanwhile
    one.lease.extend_now()  # sent within the right, served after it
    assert other.lease.fence > one.lease.fence
    assert one.lease.lost


def test_who_was_broken_does_not_take_it_again_though_another_with_a_shorter_ttl_was_broken_too(
    machine,
) -> None:
    one, other = two_deliveries(machine)
    value = other.claim.value.replace(f'"ttl_ms":{to_ms(one.claim.ttl)}', f'"ttl_ms":{to_ms(TICK)}')
    other.lease.claim = dataclasses.replace(other.claim, ttl=TICK, value=value)
    for client in (one, other):
        client.lease.acquire()
        assert client.process.store.run(calls.break_lock(KEYS, one.claim.ttl)) is not None
    machine.pass_time(1)
    assert not one.lease.extend_now(), "an operator's break is final"
