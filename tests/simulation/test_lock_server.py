"""The simulated lock server answers as fakeredis does, whose way to a command it cuts short."""

from __future__ import annotations

import itertools
import queue
import time
from typing import Any

import pytest
from fakeredis import FakeRedis
from fakeredis._socket import FakeSocket

from .lock_server import ABSENT, READS, LockServer

#: What each command is given after its key.
ARGUMENTS = {
    "pexpire": [b"1000"], "hget": [b"field"], "hexists": [b"field"], "hdel": [b"field"],
    "lrange": [b"0", b"-1"], "lrem": [b"1", b"element"],
    "zrangebyscore": [b"-inf", b"+inf"], "zrevrange": [b"0", b"-1"], "zscore": [b"member"],
    "zcount": [b"-inf", b"+inf"], "zrem": [b"member"], "zremrangebyscore": [b"-inf", b"+inf"],
}  # fmt: skip
#: How what is at the key is made.
MADE = [
    [],
    [b"SET", b"key", b"text"],
    [b"HSET", b"key", b"field", b"value"],
    [b"HSET", b"key", b"another", b"value"],
    [b"RPUSH", b"key", b"element"],
    [b"ZADD", b"key", b"1.5", b"member"],
]
#: In how many seconds it expires.
EXPIRES = [None, -60.0, 60.0]


SERVER = LockServer()
FAKE = FakeSocket(SERVER.memory, 0, client_class=FakeRedis)


def ours(command: list[bytes]) -> Any:
    with SERVER.memory.lock:
        return SERVER._socket.answer(command)


def fakeredis_own(command: list[bytes]) -> Any:
    FAKE.responses = queue.Queue()
    FAKE._process_command(command)
    return FAKE.responses.get_nowait()


@pytest.mark.parametrize("name", sorted({*ABSENT, *READS}))
def test_a_command_is_answered_as_by_fakeredis(name, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1e9)  # else PTTL may tell another millisecond
    command = [name.upper().encode(), b"key", *ARGUMENTS.get(name, [])]
    for made, expires in itertools.product(MADE, EXPIRES):
        told = []
        for answer in (ours, fakeredis_own):
            ours([b"DEL", b"key"])
            if made:
                ours(made)
                SERVER.memory.dbs[0][b"key"].expireat = expires and time.time() + expires
            told.append((repr(answer(command)), list(SERVER.memory.dbs[0])))

        assert told[0] == told[1], (command, made, expires)
