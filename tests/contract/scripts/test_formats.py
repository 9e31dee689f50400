"""What stands in Redis is written and read alike in Lua and in Python.

`values.lua`, `runs.lua` and `records.lua` are beside `holders`, `notes.lua` beside `notes`,
`entries.lua` beside `entries`, and `suspended.lua` beside `suspensions`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redislock.protocol import entries, holders, notes, past
from celery_redislock.protocol.holders import Holder
from celery_redislock.protocol.keys import lock_keys
from tests.contract.scripts.test_scripts import FOLDER

Lua = Callable[..., Any]

#: The parts that own what stands in Redis.
OWNERS = ("values", "notes", "runs", "records", "entries", "history", "suspended")
TOKEN = "0123456789abcdef"
KEYS = lock_keys("redislock", "formats")
#: Ids of tasks may be any text.
TASK_IDS = ("6f0e", "", "a:", "x:1.2", "1.2:3.4", "näme|with@all#of:it", "%d")
SUCCESSOR = holders.successor_text('pkg."report', "näxt]1")


@pytest.fixture
def run_lua(client: redis.Redis, label: str) -> Iterator[Lua]:
    """What a Lua expression is that knows these parts, and the arguments as `a`."""
    key = f"{label}:entries"
    parts = "\n".join((FOLDER / f"{part}.lua").read_text() for part in OWNERS)

    def run(expression: str, *arguments: Any) -> Any:
        text = f"local entries, a = KEYS[1], ARGV\n{parts}\nreturn {expression}"
        return client.eval(text, 1, key, *arguments)

    yield run
    client.delete(key)


def value(**options: Any) -> str:
    options = {"ttl_ms": 30000, "task": "pkg.täsk", "task_id": "6f0e", "node": "w@h", **options}
    return holders.encode(TOKEN, **options)


def parsed(text: str) -> Holder:
    holder = holders.parse(text.encode(), None)
    assert holder is not None
    return holder


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.lua")), ids=lambda path: path.stem)
def test_nobody_else_takes_apart_what_these_parts_own(path: Path) -> None:
    if path.stem in OWNERS:
        return
    text = re.sub(r"--.*", "", path.read_text())
    assert re.findall(r"""[{,]"[a-z_]+":?|"[a-z_]+":\(|'\^?%d|cjson""", text) == []


# -- a lock's value -----------------------------------------------------------------------------


def test_a_value_is_known_by_its_token(run_lua: Lua) -> None:
    text, opening = value(), holders.opening_of(TOKEN)
    assert run_lua("opening_of(a[1])", text) == opening
    assert run_lua("is_under(a[1], a[2])", text, opening) == 1
    assert run_lua("is_under(a[1], a[2])", text, holders.opening_of(TOKEN[:-1] + "0")) is None
    assert run_lua("is_under(false, a[1])", opening) is None
    for kept in (
        holders.held_for_retry(text),
        holders.kept_in_queue(text, TOKEN, task="other", attempt=1, nesting=0),
    ):
        token = json.loads(kept)["token"]
        assert run_lua("opening_of(a[1])", kept) == holders.opening_of(token)


def test_who_acquired_knows_the_stored_value_by_its_fence(run_lua: Lua) -> None:
    stored = run_lua("acquired(a[1], a[2] .. a[3], a[2], a[3])", value(), 1700, "000042")
    assert holders.acquired(value(), 1700_000042) == stored


def test_a_value_says_when_it_was_acquired(run_lua: Lua) -> None:
    taken = run_lua("acquired(a[1], '7', a[2], a[3])", value(), 1700, "000042")
    assert run_lua("fence_of(a[1])", taken) == "7"
    assert run_lua("fence_of(a[1])", value()) == "0"
    holder = parsed(taken)
    assert (holder.fence, holder.acquired_at) == (7, 1700.000042)
    assert (holder.task, holder.task_id, holder.node) == ("pkg.täsk", "6f0e", "w@h")
    assert float(run_lua("tostring(acquired_at(a[1]) * 1000)", taken)) == pytest.approx(1700000.042)


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_the_record_is_the_same_to_both(run_lua: Lua, task_id: str) -> None:
    text = value(task_id=task_id, attempt=3, nesting=2, age=1.5)
    names = ("task", "task_id", "attempt", "nesting", "ttl_ms", "age_ms", "token")
    found = [run_lua(f"record_of(a[1]).{name}", text) for name in names]
    assert found == ["pkg.täsk", task_id, 3, 2, 30000, 1500, TOKEN]
    arrived = value(arrived=1700.25, queued=True)
    assert run_lua("{record_of(a[1]).arrived_ms, record_of(a[1]).queued}", arrived) == [1700250, 1]
    assert run_lua("record_of(a[1]).held", holders.held_for_retry(text)) == 1


@pytest.mark.parametrize(
    "label",
    [
        *('","queued":true', ',"replaced":5,"by":["a","b"]', '","fence":1,"acquired_at":1.5'),
        *("\\", '\\"', "näme %d", "]}", ',"redelivered":true', "\u0000"),
    ],
)
def test_a_label_says_nothing_but_itself(run_lua: Lua, label: str) -> None:
    taken = run_lua("acquired(a[1], '7', a[2], a[3])", value(label=label), 1700, "000042")
    assert run_lua("record_of(a[1]).label", taken) == label
    assert run_lua("replaced_at(a[1])", taken) is None
    assert run_lua("string.find(a[1], REDELIVERED, 1, true)", taken) is None
    once = run_lua("to_be_replaced(a[1], 1700000000123, a[2])", taken, SUCCESSOR)
    cooling = run_lua("cooling_down(a[1], a[2], 5)", once, note := "0'\"]")
    assert run_lua("record_of(a[1]).done", cooling) == [note, 5]
    for text in (taken, once, cooling):
        holder = parsed(text)
        assert (holder.label, holder.fence, holder.acquired_at) == (label, 7, 1700.000042)
        assert run_lua("fence_of(a[1])", text) == "7"


@pytest.mark.parametrize("text", ["", "thief", "[]", "{}", '{"token":1}', "7"])
def test_what_is_no_lock_of_ours_is_none_to_both(run_lua: Lua, text: str) -> None:
    assert run_lua("record_of(a[1])", text) is None
    assert holders.decode(text.encode()) is None
    assert parsed(text) == Holder()


def test_what_is_kept_for_a_waiter_is_held_by_nobody(run_lua: Lua) -> None:
    assert holders.parse(run_lua("RESERVED").encode(), None) is None


def test_a_value_that_cools_down_is_nobodys(run_lua: Lua) -> None:
    cooling = run_lua("cooling_down(a[1])", value())
    assert parsed(cooling).cooling_down
    assert json.loads(cooling)["token"] == ""


def test_a_value_says_who_replaces_its_holder(run_lua: Lua) -> None:
    text = value()
    assert run_lua("replaced_at(a[1])", text) is None
    earlier = holders.successor_text("pkg.report", "first")
    once = run_lua("to_be_replaced(a[1], 1700000000123, a[2])", text, earlier)
    twice = run_lua("to_be_replaced(a[1], 1700000000124, a[2])", once, SUCCESSOR)
    assert parsed(once).replaced_by == "first"
    assert holders.successor_of(twice.encode()) == Holder(task='pkg."report', task_id="näxt]1")
    assert twice.count("replaced") == 1
    assert run_lua("tostring(replaced_at(a[1]) - 1700000000000)", twice) == "124"
    redelivered = run_lua("with(a[1], REDELIVERED)", twice)
    assert parsed(redelivered) == parsed(twice)


@pytest.mark.parametrize("by", ["anna@host", 'a "b" \\ \n', "näme", ""])
def test_a_mark_says_who_broke_it(run_lua: Lua, by: str) -> None:
    opening, text = holders.opening_of(TOKEN), holders.breaker_text(by)
    mine, others = (holders.encode(each, ttl_ms=1) for each in (TOKEN, "other"))
    marks = run_lua("broken_text(a[1], '') .. broken_text(a[2], a[3])", others, mine, text)
    assert opening in marks
    found = run_lua("broken_by(a[1], a[2])", marks, opening)
    assert holders.breaker_of(found.encode()) == holders.one_line(by)
    unknown = run_lua("broken_by(a[1], a[2])", marks, holders.opening_of("other"))
    assert (unknown, holders.breaker_of(unknown.encode())) == ("", "")
    assert run_lua("broken_by(a[1], a[2])", marks, holders.opening_of("nobody")) is None
    assert run_lua("broken_by(false, a[1])", opening) is None


@pytest.mark.parametrize("by", [0, 1, 12])
def test_a_value_counts_the_duplicates_that_it_turned_away(run_lua: Lua, by: int) -> None:
    text = run_lua("acquired(a[1], '7', '1700', '000042')", value())
    for _ in range(by):
        text = run_lua("with_one_more_turned_away(a[1])", text)
    assert run_lua("{with_one_more_turned_away(a[1])}", text)[1] == by + 1
    assert json.loads(text).get("turned_away", 0) == by
    assert parsed(text).fence == 7
    assert run_lua("is_run(a[1])", text) == 1
    assert run_lua("is_run(a[1])", value()) is None
    cooling = run_lua("cooling_down(a[1])", text)
    assert run_lua("{is_cooling(a[1]), is_cooling(a[2])}", cooling, text) == [1, None]
    assert json.loads(cooling).get("turned_away", 0) == by


# -- the history ----------------------------------------------------------------------------------


def test_the_end_of_a_run_says_the_same_to_both(run_lua: Lua) -> None:
    text = run_lua("acquired(a[1], '7', '1700', '500000')", value())
    ended = run_lua("ended_now(a[1], 'died', {'1702', '750000'})", text)
    assert ended == past.end_text(7, 2.25, past.DIED)
    counted = run_lua("with_one_more_turned_away(a[1])", text)
    (run,) = past.runs_in([text.encode(), b"1|name", noted(run_lua, ended, counted)])
    assert (run.lock_id, run.fence, run.took) == ("1|name", 7, 2.25)
    assert (run.how, run.turned_away) == (past.DIED, 1)
    replaced = run_lua("to_be_replaced(a[1], 1700000000123, a[2])", text, SUCCESSOR)
    assert noted(run_lua, ended, replaced) == b"7|2250|died"
    terminated = past.end_text(7, 2.25, past.TERMINATED)
    assert noted(run_lua, terminated, replaced) == b"7|2250|replaced"
    assert noted(run_lua, terminated, None) == b"7|2250|lost"


def noted(run_lua: Lua, ended: str, text: str | None) -> bytes:
    """What is written down of an end."""
    given = "a[2]" if text is not None else "nil"
    note = f"note_end(entries .. ':runs', a[1], {given}) or redis.call('RPOP', entries .. ':runs')"
    found: str = run_lua(note, ended, text or "")
    return found.encode()


# -- a done note --------------------------------------------------------------------------------


def test_a_done_note_says_the_same_to_both(run_lua: Lua) -> None:
    others = (notes.ENDED, notes.EXPECTS_RESULT, notes.PUBLISHING)
    assert run_lua("REPLACED_NOTE") == notes.REPLACED not in others
    assert notes.decode(run_lua("ENDED_NOTE").encode()).kind == notes.ENDED
    by = holders.successor_of(SUCCESSOR.encode())
    replaced = run_lua("replaced_note(a[1])", SUCCESSOR)
    assert replaced == notes.encode_replaced(SUCCESSOR)
    assert notes.decode(replaced.encode()) == notes.Note(notes.REPLACED, replaced_by=by)
    for kind in others:
        replaced = run_lua("replaced_note(a[1], a[2])", SUCCESSOR, kind)
        assert notes.decode(replaced.encode()) == notes.Note(kind, replaced_by=by)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("", "1", "1"), ("", "+0", "0"), ("1", "+cid", "c"), ("c", "0", "0"),
        ("0", "1", "0"), ("", "r", "r"), ("1", "r", "1"),
    ],
)  # fmt: skip
def test_what_was_replaced_is_noted_as_replaced_whatever_is_noted_after_that(
    run_lua: Lua, first: str, second: str, kind: str
) -> None:
    later = second.replace("r", notes.encode_replaced(SUCCESSOR.replace("task", "other")))
    first_note = run_lua("replaced_note(a[1], a[2])", SUCCESSOR, first)
    run_lua("redis.call('SET', entries .. ':note', a[1])", first_note)
    run_lua("note_over(entries .. ':note', a[1], 9999)", later)
    note = notes.decode(run_lua("redis.call('GET', entries .. ':note')").encode())
    by = holders.successor_of(SUCCESSOR.encode())
    assert note == notes.Note(kind, replaced_by=by)


# -- what is in a waiting room ------------------------------------------------------------------


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_an_id_has_the_same_parts_to_both(run_lua: Lua, task_id: str) -> None:
    entry_id = run_lua(
        "attempt_of({task_id = a[1], nesting = 12, attempt = 2, held = true})", task_id
    )
    assert entry_id == entries.id_of(task_id, 12, 3)
    assert entries.task_id_of(entry_id) == task_id
    parts = run_lua("{parts_of(a[1])}", entry_id)
    assert parts == [task_id, "12", "3"]


@pytest.mark.parametrize("gives_up_at", ["", "1700000000999"])
@pytest.mark.parametrize("text", ["{}", '{"task":"a|b@7|c"}', "no JSON", ""])
def test_an_entry_has_the_same_parts_to_both(run_lua: Lua, text: str, gives_up_at: str) -> None:
    stored = run_lua("entry_text(a[1], a[2], a[3])", gives_up_at, "1700000000123.456", text)
    assert entries.parked_of(stored) == text
    assert entries.arrived_at(stored) == 1700000000.123456
    assert run_lua("times_of(a[1]) == tonumber(a[2]) and 1", stored, gives_up_at) == 1
    assert run_lua("select(2, times_of(a[1])) == 1700000000123.456 and 1", stored) == 1
    ended = run_lua("ended_text(a[1], a[2], 1700000000456)", "next", stored)
    assert entries.ended_of(ended) == ("next", text)
    assert run_lua("{ended_of(a[1])}", ended)[:2] == ["next", stored]
    assert run_lua("select(3, ended_of(a[1])) == 1700000000456 and 1", ended) == 1
    assert run_lua("{ended_of(a[1])}", "no JSON") == []


@pytest.mark.parametrize("first_call", ["nil", "1700000000456"])
@pytest.mark.parametrize("task_id", TASK_IDS)
def test_the_state_of_a_member_is_read_as_it_was_saved(
    run_lua: Lua, task_id: str, first_call: str
) -> None:
    slot, entry_id = entries.slot_of("pkg.task"), entries.id_of(task_id, 1, 0)
    run_lua(
        f"save_state(a[1], {{due = 1700000000123, first_call = {first_call}, id = a[2],"
        " receipt = 'ab:12'})",
        *(slot, entry_id),
    )
    assert run_lua("state_of(a[1]).receipt", slot) == "ab:12"
    assert run_lua("state_of(a[1]).id", slot) == entry_id
    assert run_lua("tostring(state_of(a[1]).due - 1700000000000)", slot) == "123"
    assert run_lua(f"state_of(a[1]).first_call == {first_call} and 1", slot) == 1
    assert run_lua("{state_of(a[1]).due, state_of(a[1]).id}", entry_id) == [0, entry_id]
