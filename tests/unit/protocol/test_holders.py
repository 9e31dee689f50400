"""A lock's value: who holds it, and what an older or newer release wrote."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from celery_redislock import Holder, LockConflict, RedisLock
from celery_redislock.protocol import calls, holders


@pytest.mark.parametrize(
    ("holder", "text"),
    [
        (Holder(task="pkg.task", task_id="0c1e"), "pkg.task[0c1e]"),
        (Holder(task="pkg.task"), "pkg.task"),
        (Holder(task_id="0c1e"), "RedisLock[0c1e]"),
        (Holder(pid=1, node="web"), "RedisLock on web pid 1"),
        (Holder(pid=1, node="web", label="api: adjust"), "RedisLock (api: adjust) on web"),
        (Holder(ttl=5.0), "a foreign value"),
    ],
)
def test_a_holder_is_named_by_what_is_known_of_it(holder, text) -> None:
    assert str(holder) == text


FOREIGN = [
    b'{"token":"x","pid":1,"acquired_at":"abc"}',
    b'{"token":"x","pid":1,"acquired_at":1e30}',
    b'{"token":"x","pid":1,"acquired_at":NaN}',
    b'{"token":"x","pid":1,"acquired_at":-1}',
    b'{"token":"x","pid":"one"}',
    b'{"token":"x","task":["a"],"task_id":"b"}',
    b'{"token":"x","task_id":{}}',
    b'{"token":"x","task_id":"a","label":["b"]}',
    b'{"token":"x","attempt":null}',
    b'{"token":"x","fence":"1"}',
    b'{"token":1,"pid":1}',
    b"[]",
    b"\xff",
]


@pytest.mark.parametrize("value", FOREIGN, ids=repr)
def test_a_value_with_fields_of_other_types_is_a_holder_that_nobody_knows(value) -> None:
    holder = holders.parse(value, 5.0)
    assert holder == Holder(ttl=5.0)
    assert "a foreign value" in str(LockConflict("a key", holder))


def test_a_value_of_ours_gives_its_holder() -> None:
    value = holders.encode("token", ttl_ms=5000, task="pkg.task", task_id="0c1e", node="w1@host")
    holder = holders.parse(value.encode(), 5.0)
    assert holder == Holder(
        task="pkg.task", task_id="0c1e", node="w1@host", pid=os.getpid(), ttl=5.0
    )
    assert holders.parse(holders.encode("token", ttl_ms=5000).encode(), None).pid == os.getpid()


def test_a_value_has_a_label_only_if_its_task_gives_one() -> None:
    plain = holders.encode("token", ttl_ms=5000, task="pkg.task", task_id="0c1e")
    assert "label" not in plain
    value = holders.encode("token", ttl_ms=5000, task="pkg.task", task_id="0c1e", label="örder 5")
    assert value == plain[:-1] + ',"label":"\\u00f6rder 5"}'
    holder = holders.parse(value.encode(), None)
    assert holder.label == "örder 5"
    assert str(holder).startswith("pkg.task[0c1e] (örder 5) on ")
    assert Holder.from_dict(holder.to_dict()) == holder
    assert holders.parse(holders.held_for_retry(value).encode(), None).label == "örder 5"
    kept = {"task": "pkg.task", "attempt": 1, "nesting": 0}
    other = holders.kept_in_queue(value, "next", **kept, label="order 6")
    assert holders.parse(other.encode(), None).label == "order 6"
    assert "label" not in holders.kept_in_queue(value, "next", **kept)


def test_an_older_release_ignores_a_field_that_it_does_not_know() -> None:
    """As this one does, whose parser is theirs: what it takes are the fields that it knows."""
    holder = holders.parse(b'{"token":"x","task_id":"a","later":{"any":"thing"}}', 5.0)
    assert holder == Holder(task_id="a", ttl=5.0)


def test_a_value_says_its_version_behind_its_token() -> None:
    value = holders.encode("token", ttl_ms=5000, task="pkg.task", task_id="0c1e")
    assert value.startswith('{"token":"token","v":2,')
    for kept in (
        holders.held_for_retry(value),
        holders.kept_in_queue(value, "next", task="pkg.task", attempt=1, nesting=0),
    ):
        assert kept.startswith('{"token":"')
        assert json.loads(kept)["v"] == 2


def of_version(version: str, **more: Any) -> bytes:
    """A lock's value with this version, and all that a holder records."""
    record = {
        "task": "pkg.task",
        "task_id": "0c1e",
        "attempt": 2,
        "nesting": 0,
        "node": "w1@host",
        "pid": 4711,
        "fence": 17,
        "acquired_at": 1700000000.25,
        "held": True,
        "redelivered": True,
        **more,
    }
    return f'{{"token":"x","v":{version},{json.dumps(record)[1:]}'.encode()


@pytest.mark.parametrize(
    "version", ["2", "1", "0", "-1", "1.5", "true", "null", '"3"', "[3]", "NaN"]
)
def test_a_value_of_no_newer_version_is_read(version, caplog) -> None:
    holder = holders.parse(of_version(version), 5.0)
    assert (holder.task_id, holder.pid, holder.fence) == ("0c1e", 4711, 17)
    assert holder.held_for_retry
    assert holders.decode(of_version(version))["redelivered"] is True
    assert not caplog.records


def test_a_value_without_a_version_is_the_first_and_is_read(caplog) -> None:
    holder = holders.parse(b'{"token":"x","task":"pkg.task","task_id":"0c1e","pid":4711}', 5.0)
    assert holder == Holder(task="pkg.task", task_id="0c1e", pid=4711, ttl=5.0)
    assert not caplog.records


@pytest.fixture
def newer_versions_unseen(monkeypatch) -> None:
    monkeypatch.setattr(holders, "_newer_was_told", False)


@pytest.mark.usefixtures("newer_versions_unseen")
@pytest.mark.parametrize("version", ["3", "2.5", "1e999", "9" * 40])
@pytest.mark.parametrize("more", [{}, {"reserved": True}, {"pid": "another type"}], ids=str)
def test_a_value_of_a_newer_version_is_held_by_whom_it_names_and_no_more(version, more) -> None:
    value = of_version(version, **more)
    holder = holders.parse(value, 5.0)
    assert holder == Holder(task="pkg.task", task_id="0c1e", ttl=5.0)
    assert str(holder) == "pkg.task[0c1e]"
    assert set(holders.decode(value)) == {"token", "v"}, "nothing else is believed"


@pytest.mark.usefixtures("newer_versions_unseen")
@pytest.mark.parametrize(
    ("names", "holder"),
    [
        ({"task": ["pkg.task"], "task_id": "0c1e"}, Holder(task_id="0c1e", ttl=5.0)),
        ({"task": "pkg.task", "task_id": 5}, Holder(task="pkg.task", ttl=5.0)),
        ({"task": None, "task_id": None}, Holder(ttl=5.0)),
    ],
    ids=str,
)
def test_names_of_a_newer_version_that_are_no_text_are_left_out(names, holder) -> None:
    assert holders.parse(of_version("3", **names), 5.0) == holder


@pytest.mark.usefixtures("newer_versions_unseen")
def test_a_newer_version_is_told_once(caplog) -> None:
    for version in ("3", "3", "4"):
        holders.parse(of_version(version, task="pkg\ntask"), 5.0)
        holders.decode(of_version(version))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("celery_redislock", "WARNING")
    said = record.getMessage()
    assert "a newer celery-redislock holds the lock of pkg\\ntask[0c1e]" in said
    assert "version 3" in said
    assert "up to version 2" in said


@pytest.mark.usefixtures("newer_versions_unseen")
def test_a_lock_of_a_newer_version_is_held_and_can_be_broken(redislock_memory) -> None:
    url, client = "redis://127.0.0.1:1/0", redislock_memory.client
    lock = RedisLock(url, "newer", ttl=5)
    client.set(lock.key, of_version("3"), px=60_000)
    assert lock.acquire(timeout=0) is False
    assert lock.holder().task_id == "0c1e"
    with pytest.raises(LockConflict, match=r"held by pkg\.task\[0c1e\]\)"):
        RedisLock(url, "newer", ttl=5, timeout=0).__enter__()
    lock._server.run(calls.break_lock(lock._keys, 5))
    assert lock.holder() is None


def test_what_others_wrote_is_cut_before_it_is_logged_or_listed() -> None:
    long = "x" * 1_000_000
    fields = {"token": "t", "task": long, "task_id": long, "node": long, "label": long, "pid": 1}
    value = json.dumps({**fields, "by": [long, long]}).encode()
    for record in (value, json.dumps({**fields, "v": 99}).encode()):
        holder = holders.parse(record, 5.0)
        assert holder is not None
        assert len(holder.task or "") == len(holder.label or "") == holders.LONGEST
        assert len(str(holder)) <= holders.LONGEST
        assert str(holder).endswith("...")
    found = holders.successor_of(json.dumps([long, long]).encode())
    assert found is not None
    assert len(found.task_id or "") == holders.LONGEST
    assert len(holders.one_line(long)) == holders.LONGEST
    assert holders.one_line("x" * holders.LONGEST) == "x" * holders.LONGEST


@pytest.mark.parametrize("text", ["order 4711", "x" * 500, "\n" * 500, "\ud800" * 500, ""])
def test_a_label_is_one_line_of_bounded_length(text) -> None:
    label = holders.label_text(text)
    assert len(label) <= holders.LONGEST_LABEL
    assert label.isprintable()
    assert holders.label_text(label) == label


@pytest.mark.parametrize("flag", ["held", "cooling", "queued"])
def test_what_a_run_said_of_itself_is_not_said_of_a_lock_that_no_run_has(flag) -> None:
    said = '"task_id":"a","description":"page 3 of 40"'
    assert holders.parse(f'{{"token":"",{said}}}'.encode(), None).description == "page 3 of 40"
    assert holders.parse(f'{{"token":"","{flag}":true,{said}}}'.encode(), None).description is None


@pytest.mark.parametrize("by", ['"a"', "[1, 2]", '["task", 5]', '["task"]', "5"])
def test_a_successor_whose_name_or_id_is_no_text_is_none(by):
    assert holders.successor_of(by.encode()) is None
    assert holders.successor_of(b'{"token":"t","by":%b}' % by.encode()) is None


def test_a_value_of_any_release_tells_of_which_task_it_is():
    for version in (2, 99):
        value = json.dumps({"token": "t", "v": version, "task_id": "a"}).encode()
        assert holders.is_of_task(value, ["b", "a"])
        assert not holders.is_of_task(value, ["b"])
    assert not holders.is_of_task(b"somebody", ["a"])
    assert not holders.is_of_task(b'{"token":"t","task_id":null}', [None])
