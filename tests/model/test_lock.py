"""The scripts and the lease beside their specification, whatever happens in which order."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_redislock import _lock
from celery_redislock._lock import Lease
from tests.support.servers import RedisServer

from .lock_machine import SCENES, LockMachine, wander
from .virtual_time import script


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server of its own, which the machine empties."""
    with RedisServer() as server:
        yield server


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Locks are lost all the time here."""
    caplog.set_level(logging.CRITICAL, logger="celery_redislock")


def test_a_lock_answers_what_the_model_says_whatever_happens_in_which_order(server) -> None:
    class Machine(LockMachine):
        pass

    Machine.server = server
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=100,
            stateful_step_count=50,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("scene", SCENES)
def test_a_lock_answers_what_the_model_says_on_long_ways(server, scene: str) -> None:
    for seed in range(8):
        wander(server, scene, seed, steps=200)


# -- a machine that cannot fail is worth nothing ----------------------------------------------


def is_found_out(server: RedisServer, scene: str) -> bool:
    """Whether something is noticed. It would be in any scene, but later."""
    for seed in range(100):
        try:
            wander(server, scene, seed, steps=20)
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
    Mutant("a release frees whatever stands there", "_RELEASE",
           "sub(current, 1, #ARGV[1]) == ARGV[1]", "sub(current, 1, 8) == '{\"token\"'"),
    Mutant("a release forgets who waits", "_RELEASE",
           "if ours and someone_waits() then", "if false then", "waited for"),
    Mutant("a release believes in waiters for ever", "_RELEASE",
           "redis.call('ZREMRANGEBYSCORE', ", "redis.call('ZCOUNT', ", "waited for in vain"),
    Mutant("a release always leaves its mark", "_RELEASE",
           "if ARGV[3] == '1' or", "if true or"),
    Mutant("a release leaves no mark if its lock is gone", "_RELEASE",
           "or not ours or", "or ours and"),
    Mutant("an extension is for whoever has it", "_EXTEND",
           "if type(current) == 'string' and string.sub(current, 1, #opening) == opening",
           "if type(current) == 'string'"),
    Mutant("an extension takes what is missing, whoever asks", "_EXTEND",
           "if ARGV[4] ~= '1' or", "if"),
    Mutant("an extension takes again what an operator broke", "_EXTEND",
           "string.find(redis.call('GET', KEYS[3]) or '', opening, 1, true)", "false", "broken"),
    Mutant("an extension takes again what another may have had", "_EXTEND",
           "tonumber(counter) > tonumber(ARGV[7])", "false"),
    Mutant("an extension does not bring the counter up", "_EXTEND",
           "redis.call('SET', KEYS[2], ARGV[5])", ""),
    Mutant("the parent extends for longer than a lock may be held", "_EXTEND",
           "if since and", "if false and"),
    Mutant("the fence does not go by the counter", "_ACQUIRE",
           "math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 1, micros)", "micros"),
    Mutant("the fence does not go by the clock", "_ACQUIRE",
           "+ 1, micros)", "+ 1, 1)"),
    Mutant("a lock has no expiry", "_ACQUIRE",
           "stored, 'PX', ttl)", "stored)"),
    Mutant("to ask again is to ask anew", "_ACQUIRE",
           "string.sub(current, 1, #opening) == opening then", "false then"),
    Mutant("to ask again does not extend", "_ACQUIRE",
           "redis.call('PEXPIRE', KEYS[1], ttl)", ""),
    Mutant("nobody looks whether an attempt has run", "_ACQUIRE",
           "if task_id ~= '' and not again then", "if false then", "copied"),
    Mutant("what is kept for a waiter is taken from under it", "_ACQUIRE",
           "if how ~= 'wait' then", "if true then", "handed over"),
    Mutant("a retry takes its earlier attempt's lock at once", "_ACQUIRE",
           "if holder.held or", "if true or", "retried"),
    Mutant("a retry cannot take what is kept for it", "_ACQUIRE",
           "if holder.held or", "if", "kept"),
    Mutant("a copy is a duplicate like any other", "_ACQUIRE",
           "relation = 'own'", "relation = 'other'", "copied"),
    Mutant("that a copy was seen is not noted", "_ACQUIRE",
           "redis.call('SET', KEYS[1], current, 'KEEPTTL')", "", "copied"),
    Mutant("to note that a copy was seen takes the expiry away", "_ACQUIRE",
           "current, 'KEEPTTL')", "current)", "copied"),
    Mutant("who waits is not written down", "_ACQUIRE",
           "redis.call('ZADD',", "redis.call('ZSCORE',", "waited for"),
    Mutant("who gives up a wait stays written down", "_ACQUIRE",
           "elseif how == 'last' then", "elseif false then", "waited for"),
    Mutant("who leaves a lock to a retry need not have it", "_HOLD",
           "string.sub(current, 1, #ARGV[1]) ~= ARGV[1]", "false"),
    Mutant("what is left to a retry has no expiry", "_HOLD",
           "ARGV[2], 'PX', ARGV[3])", "ARGV[2])"),
    Mutant("what was broken leaves no mark", "_BREAK",
           "marks .. '{\"token\":\"' .. holder.token .. '\"'", "marks"),
    Mutant("a break wakes nobody", "_BREAK",
           "redis.call('LPUSH', KEYS[4], '1')", "", "waited for"),
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_script_with_one_thing_wrong_is_found_out(server, mutant: Mutant) -> None:
    with script(mutant.script, mutant.old, mutant.new):
        assert is_found_out(server, mutant.scene)


def test_a_right_that_counts_from_the_answer_is_found_out(server, monkeypatch) -> None:
    def renewed(self: Lease, sent_at: float) -> None:
        self.deadline = _lock.clock() + self.ttl

    monkeypatch.setattr(Lease, "_renewed", renewed)
    assert is_found_out(server, "held")


def test_an_extension_that_retakes_past_its_right_is_found_out(server, monkeypatch) -> None:
    real = Lease.extension

    def always(self: Lease, now: float) -> Any:
        return real(self, now)._replace(retake=True)

    monkeypatch.setattr(Lease, "extension", always)
    assert is_found_out(server, "held")
