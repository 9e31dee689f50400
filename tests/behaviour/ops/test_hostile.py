"""Whatever anybody has put under our keys, every command answers, as text and as JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest
import redis
from celery import Celery
from prometheus_client import CollectorRegistry, generate_latest

from celery_redislock.prometheus import Collector
from tests.support.looking import Lock, lock_named, make_app, run
from tests.support.servers import RedisServer
from tests.support.site import Site, messages

#: What is no value of any field of ours, as JSON.
FIELDS = (
    *('""', "null", "true", "-1", "0.5", "[]", '{"token":"t"}', '"\\ud800"', '"\\u0000\\u202e\\n"'),
    *("NaN", "Infinity", "1e308", "9" * 5000, "99999999999999999999", f'"{"x" * 5000}"'),
)
#: The fields of our records.
NAMES = (
    *("v", "task", "task_id", "attempt", "node", "pid", "fence", "acquired_at", "label", "by"),
    *("turn", "held", "cooling", "queued", "reserved", "turned_away", "broker", "body"),
)
#: What is no text of ours.
TEXTS = (
    *("", " ", "|", ":", ";", "||", "0|", "|@|", "{", "}", "[]", "{}", "null", "5", "%s%d", "#"),
    *("\ud800".encode("utf-8", "surrogatepass"), b"\xff\x00", "\x1b[2J\u202e\n", "é" * 300),
    *("9" * 5000, "[" * 100_000, "a:0.0", ":9.9", "x:99999999999999999999.1", "1|x", "-1|x"),
    *("9" * 5000 + ":1;", "99999999999999:5;490000:" + "9" * 5000 + ";", "1:2", "¹:²;"),
    *("9" * 5000 + "|1|x", "1|" + "9" * 5000 + "|x", "1|2|x|" + "9" * 5000, "²|²|x|²"),
    *('["a"]', '{"token":1}', '{"token":"t","v":99}', "|sync@" + "9" * 5000 + "|{}"),
)


def records() -> Iterator[str]:
    """Records of ours, each with one field of another kind."""
    whole = {
        "token": '"t"',
        "v": "2",
        "task": '"sync"',
        "task_id": '"id"',
        "fence": "7",
        "acquired_at": "1795187532.5",
    }
    for name in NAMES:
        for value in FIELDS if name in whole else FIELDS[2:6]:
            yield as_json({**whole, name: value})


def entries() -> Iterator[str]:
    """Entries of a room, with one field of another kind."""
    whole = {
        "task": '"sync"',
        "task_id": '"id"',
        "content_type": '"application/json"',
        "encoding": '"utf-8"',
        "body": '"[[],{},{}]"',
    }
    for name in whole:
        for value in FIELDS:
            yield f"|sync@0|{as_json({**whole, name: value})}"
    for body in ("[[],{},{}", "[5,5,5]", '[[],{},{"headers":5}]', '[[],{},{"headers":[]}]', "{}"):
        yield f"|sync@0|{as_json({**whole, 'body': json.dumps(body)})}"


def as_json(fields: Mapping[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


Plant = Callable[[redis.Redis, Lock, "str | bytes"], object]


def _plant_room(client: redis.Redis, lock: Lock, text: str | bytes) -> None:
    client.rpush(lock["room"], "a:0.0", text)
    client.hset(lock["entries"], mapping={b"a:0.0": text, text: text, b"#a:0.0": text})
    client.zadd(f"{lock.bucket}:rooms", {text: 1, f"2|{lock.name}": 1})
    client.zadd(lock["deadlines"], {text: 1})
    client.hset(lock["ended"], text, text)


def _plant_past(client: redis.Redis, lock: Lock, text: str | bytes) -> None:
    run_of_mark = '{"token":"t","task":"sync","fence":8,"acquired_at":1795187532.5}'
    history = f"{lock.bucket}:history"
    client.zadd(history, {text: 1, "sync": 1})
    for task in (text, b"sync"):
        task = task if isinstance(task, bytes) else task.encode("utf-8", "surrogatepass")
        client.rpush(f"{history}:".encode() + task, text, text, run_of_mark, text)
    client.hset(f"{lock.bucket}:turned", mapping={text: text, "sync": text})


#: Where a text is planted. Those of a bucket are shared by its locks.
PLANTS: dict[str, Plant] = {
    "lock": lambda client, lock, text: client.set(lock.key, text),
    "slot": lambda client, lock, text: client.set(lock["lock2"], text),
    "broken": lambda client, lock, text: client.set(lock["broken"], text),
    "waiters": lambda client, lock, text: client.zadd(lock["waiters"], {text: 1}),
    "wake": lambda client, lock, text: client.rpush(lock["wake"], text),
    "fence": lambda client, lock, text: client.set(f"{lock.bucket}:fence", text),
    "sent": lambda client, lock, text: client.zadd(lock["sent"], {b"a:0.0": 1, text: 1}),
    "room": _plant_room,
    "past": _plant_past,
}
#: The keys of a lock, and those that its bucket's locks share.
OWN = (
    *("lock", "lock2", "waiters", "wake", "broken", "done", "room", "entries", "ended"),
    *("deadlines", "sent", "lost"),
)
SHARED = ("fence", "rooms", "history", "turned")
TYPES: tuple[Callable[[redis.Redis, str], object], ...] = (
    lambda client, key: client.set(key, "x"),
    lambda client, key: client.rpush(key, "x"),
    lambda client, key: client.hset(key, "x", "x"),
    lambda client, key: client.zadd(key, {"x": 1}),
    lambda client, key: client.xadd(key, {"x": "x"}),
)
TEXTS_OF = {
    **dict.fromkeys(PLANTS, TEXTS),
    **dict.fromkeys(("lock", "past"), (*TEXTS, *records())),
    "room": (*TEXTS, *entries()),
}


@pytest.fixture(scope="module")
def app(redis_server: RedisServer) -> Celery:
    """An app whose keys hold all this."""
    app = make_app(redis_server.url, f"hostile-{uuid.uuid4().hex[:8]}")
    with redis_server.client() as client, client.pipeline(transaction=False) as pipe:
        for kind, plant in PLANTS.items():
            for number, text in enumerate(TEXTS_OF[kind]):
                plant(pipe, _lock(app, f"{kind}-{number}"), text)
        for number, make in enumerate(TYPES):
            lock = _lock(app, f"type-{number}")
            for key in (*map(lock.__getitem__, OWN), *(f"{lock.bucket}:{each}" for each in SHARED)):
                make(pipe, key)
        pipe.execute()
    return app


def _lock(app: Celery, name: str) -> Lock:
    return lock_named(app.conf.redislock_prefix, name)


def answer(app: Celery, *command: str, codes: tuple[int, ...] = (0,)) -> str:
    """What the command prints: it ends as commands do, and its JSON is JSON."""
    result = run(app, *command, columns=80)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(command) from result.exception
    assert result.exit_code in codes, (command, result.output)
    if "--json" in command and result.exit_code == 0:
        json.loads(result.stdout, parse_constant=pytest.fail)
    return str(result.output)


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    "command",
    [
        *("list", "list --all --sort lives", "list --wide --all --sort waiting", "list --older 1"),
        *("list --sort task", "list --node *", "list --task s*"),
        *("list --by-task --all", "list --queues"),
        *("explain sync 5", "explain several 5", "doctor"),
        *("history --limit 100000", "history --wide --limit 100000", "history sync --since 1h"),
        *("history s*", "history no-such-task", "history sync 5", "history --skips"),
        *("history --skips sync",),
    ],
)
def test_every_command_answers(app: Celery, command: str, as_json: tuple[str, ...]) -> None:
    output = answer(app, *command.split(), *as_json, codes=(0, 1) if command == "doctor" else (0,))
    assert all(line.isprintable() for line in output.splitlines())


def test_the_live_table_the_page_and_the_exporter_answer(app: Celery) -> None:
    answer(app, "watch", "--times", "1")
    with Site(app) as site:
        told = messages(site)
        assert next(told)["trouble"] == ""
        told.close()
    registry = CollectorRegistry()
    registry.register(Collector(app))
    assert registry.get_sample_value("redislock_up") == 1
    assert generate_latest(registry)


@pytest.mark.parametrize("kind", [*PLANTS, "type"])
def test_each_lock_is_shown_and_may_be_ordered_away(app: Celery, kind: str) -> None:
    # `list` has read them all; a name without a lock or a room is looked for everywhere.
    step = {"lock": 30, "room": 30, "type": 2}.get(kind, 40)
    for number in range(0, len(TEXTS_OF.get(kind, TYPES)), step):
        name, as_json = f"{kind}-{number}", ("--json",) * (number % 2)
        answer(app, "show", name, *as_json, codes=(0, 1))
    answer(app, "history", f"{kind}-0", "--json")
    for order in ("drop-waiting", "break"):
        answer(app, order, f"{kind}-0", "--force", codes=(0, 1))
