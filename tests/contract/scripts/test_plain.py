"""The plain case at the head of `acquire.lua` and `settle.lua` does what the rest of these scripts
does: in hundreds of random states of a server the replies with and without the head are equal, and
so is the server then.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import redis

from celery_redislock.protocol import calls, holders, past
from celery_redislock.protocol.claims import Claim, to_ms
from celery_redislock.protocol.exchange import Call
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.notes import ENDED, EXPECTS_RESULT
from celery_redislock.servers import scripts
from tests.contract.changed_scripts import rewritten
from tests.support.servers import RedisServer

HOUR, DAY = 3_600_000, 86_400_000
#: All times to live are about a multiple of this: the test may take half of it.
SPAN = 600_000
TTL = SPAN * 3 / 1000
#: What time it is on the server.
NOW = 1_800_000_000_000_042
STATES = 1000
#: Before a script: the time stands still. Keys have whole spans to live, and get one more than the
#: script says: none expires before it is looked at.
STILL = f"""
local redis = (function(real)
  local function still(does)
    return function(command, ...)
      if command == 'TIME' then
        return {{'{NOW // 1_000_000}', '{NOW % 1_000_000}'}}
      end
      local args = {{...}}
      for i, each in ipairs(args) do
        if command == 'PEXPIRE' and i == 2 or command == 'SET' and args[i - 1] == 'PX' then
          args[i] = each + {SPAN}
        end
      end
      local reply = does(command, unpack(args))
      return command == 'PTTL' and reply > 0 and math.floor(reply / {SPAN} + 0.5) * {SPAN} or reply
    end
  end
  return setmetatable({{call = still(real.call), pcall = still(real.pcall)}}, {{__index = real}})
end)(redis)
"""
#: What is in these keys, and for how many spans yet.
READ = f"""
local found = {{}}
for i, key in ipairs(KEYS) do
  local kind, left = redis.call('TYPE', key).ok, redis.call('PTTL', key)
  local read = ({{
    string = {{'GET', key}}, list = {{'LRANGE', key, 0, -1}}, hash = {{'HGETALL', key}},
    zset = {{'ZRANGE', key, 0, -1, 'WITHSCORES'}},
  }})[kind]
  if read then
    found[string.match(key, '}}:(.*)$')] =
      {{kind, redis.call(unpack(read)), left > 0 and math.floor(left / {SPAN} + 0.5) or left}}
  end
end
return cjson.encode(found)
"""

Command = tuple[Any, ...]


class State(NamedTuple):
    """A state of the server, and what it is asked then.

    Attributes:
        commands: they make the state.
        call: the call.
        keys: all keys that the call might touch.
    """

    commands: list[Command]
    call: Call[Any]
    keys: Sequence[str]


def make_claim(dice: random.Random, prefix: str, **more: Any) -> Claim:
    """Of a task, or of a `RedisLock`."""
    task_id = dice.choice(["mine", "mine", "", 'mi"ne', "mi:ne"])
    attempt, nesting = dice.choice([0, 1, 2]), dice.choice([0, 0, 1])
    token = f"{dice.getrandbits(128):032x}"
    task = "pkg.task" if task_id else ""
    value = holders.encode(
        token,
        ttl_ms=to_ms(TTL),
        task=task or None,
        task_id=task_id or None,
        attempt=attempt,
        nesting=nesting,
        node="w",
        label=dice.choice([None, ',"task_id":"other"', ',"v":2,"fence":1,']),
    )
    options = {"task_id": task_id, "attempt": attempt, "nesting": nesting, "task": task}
    keys = lock_keys(prefix, "x", dice.choice([1] * 9 + [2]))
    return Claim(keys, token, TTL, value, done_ttl=SPAN / 1000, **options, **more)


def run_value(task_id: str | None, attempt: int = 0, token: str = "0f" * 16, **more: Any) -> str:
    """The value of a lock that a run of this task has."""
    text = holders.encode(
        token, ttl_ms=to_ms(TTL), task="pkg.task", task_id=task_id, attempt=attempt, **more
    )
    return holders.acquired(text, 1_700_000_000_000_042)


def values(claim: Claim) -> list[str | None]:
    """What a lock may have, as this claim sees it."""
    mine, other = claim.task_id or None, run_value("other")
    younger, older = (run_value(mine, claim.attempt + by) for by in (-1, 1))
    own = holders.acquired(claim.value, 1_700_000_000_000_042)
    return [
        *[None] * 6,
        *[other, own, run_value(None), run_value("mi"), run_value("")] * 2,
        *(run_value(mine, claim.attempt), younger, older, run_value('o"ther')),
        *(run_value("other", label=',"task_id":"mine"'), run_value(None, label="a")),
        own[:-1] + ',"nesting":7}',
        own.replace(claim.token, ""),
        *(holders.held_for_retry(each) for each in (other, younger)),
        *(
            '{"token":"","cooling":true' + each[43:]
            for each in (other, other, own, run_value(None))
        ),
        holders.encode("1" * 32, ttl_ms=1, task="pkg.task", task_id="other", queued=True),
        holders.encode("1" * 32, ttl_ms=1, task="pkg.task", task_id=mine, queued=True),
        holders.opening_of_held("2" * 32) + other[43:],
        *(other.replace('"v":2', '"v":3'), other.replace('"v":2,', "")),
        *('{"token":"","reserved":true}', "thief", '{"a":1,"v":2,"task_id":"other"}', "{}"),
        '{"token":"x","fence":1,"task_id":7}',
        HOLD,
    ]


#: What an older release wrote for a lock that an operator kept from runs: not a value of ours now.
HOLD = '{"token":"","hold":"task x","node":"a@h","pid":5,"acquired_at":1700000000.000042,"v":2}'


#: What scripts may have added to a value.
ADDED = (
    *("", "", "", ',"redelivered":true', ',"turned_away":9', ',"replaced":5,"by":["a","b"]'),
    *(',"redelivered":true,"turned_away":12', ',"turned_away":3,"redelivered":true'),
    *(',"paused_until":9999999999999', ',"paused_until":9'),
)


def surroundings(
    dice: random.Random, claim: Claim, value: str | None, chance: float = 0.2
) -> list[Command]:
    """Commands that make what is there: this value, and what may be there by this chance each."""
    of, runs = claim.keys, claim.runs_key
    commands: list[Command] = []

    def sometimes(*each: Command) -> None:
        commands.extend(each if dice.random() < chance else ())

    if value is not None:
        lives = dice.choice([("PX", 3 * SPAN), ("PX", SPAN), ()])
        commands.append(("SET", of.lock, value, *lives))
    elif dice.random() < 0.05:
        commands.append(("RPUSH", of.lock, "no lock"))
    note = dice.choice(["1", "0sent", "+0", 'r["a","b"]', ""])
    sometimes(("SET", claim.done_key, note, "PX", SPAN))
    until, opening = dice.choice([NOW // 1000 + 90_000, 5]), '{"token":"waits"'
    opening, until = dice.choice([(claim.opening, until), (opening, until), (opening, -until)])
    sometimes(("ZADD", of.waiters, until, opening))
    entry = dice.choice(["first:0.0", claim.entry_id])
    sometimes(
        ("RPUSH", of.room, entry),
        ("HSET", of.entries, entry, f"|{NOW // 1000 - 9000}|{{}}"),
        ("ZADD", of.rooms, NOW // 1000, of.lock_id),
    )
    ends, task = NOW // 1000 + dice.choice([-5, 90_000]), dice.choice(["pkg.task", "other"])
    sometimes(("SET", of.suspended, json.dumps({f"task {task}": {"until": ends}})))
    ahead = dice.choice([7, NOW - 1, NOW, NOW + 10_000_000, NOW * 2])
    commands.append(("SET", of.fence, ahead) if dice.random() < 0.8 else ("DEL", of.fence))
    if dice.random() < 0.7:
        ended = dice.choice(["1700000000000042|5|succeeded", "1|5|failed"])
        records = [run_value("before"), of.lock_id, ended] * dice.choice([1, 15, 16, 17, 31])
        commands.append(("RPUSH", runs, *records[: dice.choice([46, 47, 48, 99])]))
        if dice.random() < 0.7:
            commands.append(("PEXPIRE", runs, dice.choice([70, 89]) * DAY))
        tasks = {"pkg.task": NOW // 1_000_000, "old": 5, "third": NOW // 1_000_000 - 9}
        names = dice.sample([*tasks], dice.choice([1, 2, 3]))
        commands += [("ZADD", of.history, tasks[name], name) for name in names]
    elif dice.random() < 0.2:
        commands.append(("SET", dice.choice([runs, of.history, of.turned]), "no history"))
    hour = NOW // 1000 // HOUR
    counts = dice.choice([f"{hour}:9;", f"{hour - 1}:2;{hour - 3}:1;", f"{hour - 1}:1;" * 99, "?"])
    if not any(of.turned in each for each in commands):
        sometimes(("HSET", of.turned, claim.task, counts))
    return commands


def to_take(seed: Any, prefix: str) -> State:
    """A state in which a lock is asked for."""
    dice = random.Random(seed)
    claim = make_claim(
        dice,
        prefix,
        history=dice.choice([0, 1, 50]),
        turned_away=dice.random() < 0.5,
        kept=dice.choice([""] * 20 + ["2" * 32]),
    )
    value = dice.choice(values(claim))
    if value is not None and value.endswith("}") and "fence" in value:
        value = value[:-1] + dice.choice(ADDED) + "}"
    note, waits = dice.choice([("", False), ("", False), (EXPECTS_RESULT, False), ("", True)])
    call = calls.acquire(claim, "wait" if waits else "try", note=note)
    return State(surroundings(dice, claim, value), call, (*call.keys, claim.keys.wake))


def to_give(seed: Any, prefix: str) -> State:
    """A state in which a lock is given back."""
    dice = random.Random(seed)
    claim = make_claim(dice, prefix, sent=dice.choice(["", "sent"]))
    own = holders.acquired(claim.value, NOW - 5)
    value: str | None = own[:-1] + dice.choice(ADDED) + "}"
    if dice.random() < 0.2:
        value = dice.choice(values(claim))
    note = dice.choice(["", ENDED, EXPECTS_RESULT])
    end = dice.choice(["", past.DIED, *[past.end_text(NOW - 5, 2.5, past.TERMINATED)] * 9])
    release = calls.Release(
        note,
        always=dice.random() < 0.5,
        min_hold=dice.choice([0.0] * 19 + [SPAN / 1000]),
        stray=dice.choice([0] * 57 + [1, 2, 3]),
        publishes=dice.random() < 0.5,
        run_end=end,
    )
    call = calls.settle(claim, release)
    keys = (*call.keys, claim.keys.history, claim.keys.turned)
    return State(surroundings(dice, claim, value, 0.1), call, keys)


def replies(client: redis.Redis, commands: Sequence[Command]) -> list[Any]:
    pipe = client.pipeline(transaction=False)
    for each in commands:
        pipe.execute_command(*each)
    return pipe.execute(raise_on_error=False)


#: Where a script looks whether the case is plain.
HEADS = {"acquire": "if #slots == 1 and", "settle": "if not stray and"}


def answers(client: redis.Redis, asked: Sequence[Call[Any]], has_head: bool = True) -> list[Any]:
    """What the server replies to these calls; an error as its text."""
    shas = {call.script: "" for call in asked}
    for name in shas:
        text = scripts.text_of(name)
        assert text.count(HEADS[name]) == 1
        if not has_head:
            text = text.replace(HEADS[name], f"{HEADS[name]} false and")
        shas[name] = client.script_load(STILL + text)
    found = replies(
        client, [("EVALSHA", shas[c.script], len(c.keys), *c.keys, *c.args) for c in asked]
    )
    # The text names the script and its line.
    return [
        f"error {str(each).partition(' script')[0]}" if isinstance(each, Exception) else each
        for each in found
    ]


def compared(
    client: redis.Redis, make: Callable[[Any, str], State], count: int
) -> list[tuple[Any, ...]]:
    """Where a script with its head and the same without differ: the commands that make the state,
    the call, and both replies and servers.
    """
    client.flushdb()
    short = [make(seed, f"s{seed:05d}") for seed in range(count)]
    whole = [make(seed, f"w{seed:05d}") for seed in range(count)]
    replies(client, [each for state in (*short, *whole) for each in state.commands])

    said = answers(client, [state.call for state in short])
    expected = answers(client, [state.call for state in whole], has_head=False)

    read = client.script_load(READ)
    left, right = (
        replies(client, [("EVALSHA", read, len(each.keys), *each.keys) for each in states])
        for states in (short, whole)
    )
    return [
        (state.commands, state.call, (said[i], expected[i]), (left[i], right[i]))
        for i, state in enumerate(short)
        if (said[i], json.loads(left[i])) != (expected[i], json.loads(right[i]))
    ]


@pytest.fixture(scope="module")
def empty() -> Iterator[redis.Redis]:
    with RedisServer() as server, server.client() as client:
        yield client


@pytest.mark.parametrize("make", [to_take, to_give])
def test_the_plain_case_is_what_the_rest_of_the_script_does(
    empty: redis.Redis, make: Callable[[Any, str], State]
) -> None:
    assert compared(empty, make, STATES)[:1] == []


@pytest.mark.parametrize(
    ("script", "old", "new"),
    [
        ("acquire", "done_note, waiters, room, suspended)", "done_note, waiters, suspended)"),
        ("acquire", " and redis.call('EXISTS', done_note, waiters) == 0 then", " then"),
        ("settle", "not string.find(current, PAUSED, 1, true)\n", "true\n"),
        ("settle", "'EXISTS', waiters, room, done_note)", "'EXISTS', waiters, room, sent)"),
    ],
)
def test_the_comparison_notices_a_plain_case_that_is_wrong(
    empty: redis.Redis, script: str, old: str, new: str
) -> None:
    with rewritten(script, old, new):
        differ = compared(empty, {"acquire": to_take, "settle": to_give}[script], 400)

    assert differ


@pytest.mark.parametrize("beside", ["nothing", "a waiter"])
def test_who_begins_to_wait_takes_a_free_lock_and_waits_no_more(
    empty: redis.Redis, beside: str
) -> None:
    claim = make_claim(random.Random(5), beside)
    of = claim.keys
    if beside == "a waiter":
        empty.zadd(of.waiters, {claim.opening: 9e15, '{"token":"waits"': 9e15})

    assert answers(empty, [calls.acquire(claim, "wait")])[0] > 0
    assert empty.zscore(of.waiters, claim.opening) is None
