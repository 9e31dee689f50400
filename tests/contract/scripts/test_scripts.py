"""What every Lua script keeps to."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from redis.connection import Encoder, PythonRespSerializer

import celery_redislock
from celery_redislock import LockUnavailable
from celery_redislock.protocol import calls
from celery_redislock.protocol.claims import Claim
from celery_redislock.protocol.exchange import Call
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.servers import connections, scripts
from tests.contract.changed_scripts import rewritten

FOLDER = Path(celery_redislock.__file__).parent / "scripts"
#: Parts of others: they have no keys and arguments of their own.
PARTS = {
    part
    for path in FOLDER.glob("*.lua")
    for part in re.findall(r"^ *-- include (\w+)\.lua$", path.read_text(), re.M)
}
SCRIPTS = sorted({path.stem for path in FOLDER.glob("*.lua")} - PARTS)


def paragraphs(name: str) -> tuple[str, str, str]:
    """A script's contract, the paragraph that names what it is given, and the rest."""
    contract, head, rest = (FOLDER / f"{name}.lua").read_text().split("\n\n", 2)
    return contract, head, rest


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_names_its_keys_and_arguments_first_and_uses_the_names(name) -> None:
    contract, head, rest = paragraphs(name)
    assert all(line.startswith("--") for line in contract.splitlines())
    assert {"KEYS", "ARGV"} <= {*re.findall(r"^-- (\w+)  ", contract, re.M)}
    assert "KEYS" in head
    assert "ARGV" in head
    assert "KEYS" not in rest
    assert "ARGV" not in rest


@pytest.mark.parametrize("name", sorted(PARTS))
def test_a_part_of_other_scripts_uses_their_names(name) -> None:
    text = (FOLDER / f"{name}.lua").read_text()
    assert "KEYS" not in text
    assert "ARGV" not in text


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_a_name_for_what_its_contract_counts_and_uses_each(name) -> None:
    contract, head, _ = paragraphs(name)
    whole = re.sub(r"--.*", "", scripts.text_of(name))
    for given, until in (("KEYS", "ARGV"), ("ARGV", "Reply")):
        told = re.search(rf"^-- {given}(  .*?)^-- {until}", contract, re.M | re.S)
        assert told is not None
        numbers = [int(number) for number in re.findall(r"  (\d+) (?=\S)", told[1])]
        named = re.findall(rf"^local (.*) = (?:unpack\({given}[ ,\d]*\)|{given}\[1\])$", head, re.M)
        names = ", ".join(named).split(", ")
        assert numbers == [*range(1, len(names) + 1)]
        unused = {each for each in names if len(re.findall(rf"\b{each}\b", whole)) < 2}
        assert unused == set()


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_call_whose_head_is_kept_is_packed_as_redis_py_packs_it(monkeypatch, is_fast) -> None:
    packer = PythonRespSerializer(10**6, Encoder("utf-8", "strict", False).encode)

    def pack_command(command: tuple[Any, ...]) -> bytes:
        # redis-py takes apart a first word that has spaces; hiredis does not.
        packed = b"".join(packer.pack("PING", *command))
        return b"*%d\r\n%b" % (len(command), packed.partition(b"PING\r\n")[2])

    monkeypatch.setattr(connections, "pack_command", pack_command if is_fast else None)
    scripts._packed_head.cache_clear()
    keys = ("a", "größe {1}")
    for arguments in (("x\r\n", 7, ""), ("ä", 8, "y"), ()):
        command = ("EVALSHA", scripts.sha_of("extend"), 2, *keys, *arguments)
        for recurs in (True, False):
            call = Call("extend", keys, arguments, lambda reply, sent_at: reply, 1.0, recurs=recurs)
            assert scripts.packed(call) == pack_command(command)
    assert scripts._packed_head.cache_info().misses == 1


@pytest.mark.parametrize("is_fast", [True, False])
def test_half_a_surrogate_pair_is_packed_too(monkeypatch, is_fast) -> None:
    def pack_command(command: tuple[Any, ...]) -> bytes:  # hiredis encodes, and escapes nothing
        parts = [each if isinstance(each, bytes) else str(each).encode() for each in command]
        packed = b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in parts)
        return b"*%d\r\n%b" % (len(parts), packed)

    monkeypatch.setattr(connections, "pack_command", pack_command if is_fast else None)
    expected = pack_command(("SET", "\\ud800:ä", 5))
    assert connections.pack(("SET", "\ud800:ä", 5)) == expected
    assert connections.pack(("SET", "\ud800:ä", 5), head=False) == expected.partition(b"\r\n")[2]


def test_packing_makes_no_call_for_each_argument(monkeypatch) -> None:
    monkeypatch.setattr(connections, "pack_command", None)
    calls = []
    sys.setprofile(lambda frame, event, arg: calls.append(frame) if event == "call" else None)
    try:
        connections.pack(("EVALSHA", "sha", 40, *range(40)))
    finally:
        sys.setprofile(None)
    assert len(calls) <= 2


def test_a_key_that_was_not_declared_is_named(store, label) -> None:
    """What watches the tests of this folder."""
    of = lock_keys("redislock", label)
    for where in ("redis.call('GET', lock .. ':x')", "redis.pcall('DEL', lock, lock .. ':x')"):
        with (
            rewritten("turn_away", "local time = redis.call('TIME')", f"{where} local time = 0"),
            pytest.raises(LockUnavailable, match=re.escape(f"{of.lock}:x")),
        ):
            store.run(calls.turn_away(Claim(of, "0", 6.0, ""), None))
