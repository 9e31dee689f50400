"""What all proofs share: the history, what is said on the wire, the runner and its tables."""

from __future__ import annotations

import argparse
import dataclasses
import json
import threading

import pytest

from tests.proofs import harness
from tests.proofs.__main__ import main
from tests.proofs.faults.broker import Recorder
from tests.proofs.faults.cases import SHORT, Case, Faults
from tests.proofs.faults.checker import Verdict, check
from tests.proofs.faults.short import FILES, chosen
from tests.proofs.faults.stories import story
from tests.proofs.harness import Proof, Result, Table
from tests.proofs.history import History, read
from tests.proofs.wire import call_in, commands_in, fence_in, lock_key, name_of, offer_in, packed
from tests.support.figures import MissingMarkers, write_section

# -- the history ------------------------------------------------------------------------------


def test_a_history_keeps_every_line_of_many_writers_whole_and_in_order(tmp_path):
    def write(writer):
        history = History(tmp_path / "history")
        for number in range(200):
            history.write("line", writer=writer, number=number, long="x" * 500)
        history.close()

    threads = [threading.Thread(target=write, args=(each,)) for each in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    events = list(read(tmp_path / "history"))
    assert len(events) == 8 * 200
    for writer in range(8):
        assert [e.number for e in events if e.writer == writer] == list(range(200))


def test_a_line_that_is_not_whole_yet_is_left_for_later(tmp_path):
    history = History(tmp_path / "history")
    assert history.newest() is None
    history.write("one")
    with history.path.open("ab") as file:
        file.write(b'{"kind": "two", "a')
    assert [event.kind for event in history.new()] == ["one"]
    assert history.newest().kind == "one"

    with history.path.open("ab") as file:
        file.write(b't": 5.0}\n')
    assert [event.kind for event in history.new()] == ["two"]
    assert [event.kind for event in history.events("two")] == ["two"]
    assert history.newest().at == 5.0
    history.close()


def test_the_recorder_writes_where_each_message_is(tmp_path, own_redis):
    def message(tag):
        return {"headers": {"id": f"task-{tag}"}, "properties": {"delivery_tag": tag}}

    history = History(tmp_path / "history")
    with own_redis.client() as broker:
        recorder = Recorder(history, broker, ["queue"])
        broker.rpush("queue", json.dumps(message("one")))
        recorder.look()
        broker.delete("queue")
        for tag in ("one", "two"):
            broker.hset("unacked", tag, json.dumps([message(tag), "", "queue"]))
        recorder.look()
        recorder.look()
        broker.delete("unacked")
        recorder.look()
    places = history.events("place")
    history.close()

    assert [(e.id, e.tag, e.where) for e in places[:1]] == [("task-one", "one", "queue")]
    assert sorted((e.tag, e.where) for e in places[1:]) == [
        (tag, where) for tag in ("one", "two") for where in ("nowhere", "unacked")
    ]
    assert all(e.since <= e.at for e in places)


# -- the wire ---------------------------------------------------------------------------------


def test_calls_are_read_as_far_as_they_are_whole():
    keys = [lock_key("k"), "redislock:{1}:fence", "redislock:{1}:waiters:k"]
    blocks = packed([b"BLPOP", b"wake", b"1"])
    acquire = packed(
        [b"EVALSHA", b"sha", b"3", *(k.encode() for k in keys), b'{"token":"t"}', b"9"]
    )

    first, second = commands_in(blocks + acquire + blocks[:-3])

    assert call_in(first) is None
    call = call_in(second)
    assert (call.script, call.token, call.arg(2), call.arg(3)) == ("acquire", "t", "9", "")
    assert name_of(call.keys[0]) == "k"
    assert (fence_in(7), fence_in([b"acquired", b"v", 8]), fence_in([b"done", b"0", 5])) == (
        7,
        8,
        0,
    )
    offered = [b"m", b"id:0.0", b"text", b"0", 1500]
    assert offer_in(call, [b"busy", b"", 1, b"other", 0, *offered]) == ("id:0.0", 1.5, False)
    assert offer_in(call, [b"busy", b"", 1, b"other", 0]) is None


# -- the runner -------------------------------------------------------------------------------


@dataclasses.dataclass
class Figures:
    length: int


class Words(Proof):
    """Measures words; a short one is wrong, and one breaks."""

    name = "words"
    jobs = 2

    def trials(self, options):
        return ["long", "longest", "no", "none"]

    def run(self, trial, seed, options, history, shared):
        if trial == "none":
            raise ValueError(trial)
        History(history).write("word", word=trial, seed=seed)
        return Figures(len(trial)), [f"{trial} is short"] if len(trial) < 3 else []

    def tables(self, results):
        return [
            Table("page.md#words", ["word", "n"], [(r.trial, r.figures.length) for r in results])
        ]


def page(folder):
    document = folder / "page.md"
    document.write_text("a\n<!-- figures:words:begin -->\nold\n<!-- figures:words:end -->\nb\n")
    return document


def test_trials_that_are_right_give_figures(tmp_path, capsys, monkeypatch):
    document, figures = page(tmp_path), tmp_path / "figures.json"
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    arguments = ["--only", "long*", "--seeds", "2", "--json", str(figures)]

    assert harness.main(Words(), arguments) == 0

    told = [
        (each["trial"], each["seed"], each["figures"]) for each in json.loads(figures.read_text())
    ]
    assert told == [(w, n, {"length": len(w)}) for w in ("long", "longest") for n in (1, 2)]
    assert "old" in document.read_text(), "only the whole is written"
    assert "4/4" in capsys.readouterr().out


def test_what_is_wrong_is_said_and_how_to_run_it_again(tmp_path, capsys):
    assert harness.main(Words(), ["--only", "no*", "--keep", str(tmp_path)]) == 1

    said = capsys.readouterr().out
    assert "no is short\npython -m tests.proofs words --only 'no' --seed 1" in said
    assert "ValueError: none" in said
    assert [event.word for event in read(tmp_path / "no-1.jsonl")] == ["no"]


def test_the_whole_is_written_into_the_documents(tmp_path, monkeypatch):
    document = page(tmp_path)
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(Words, "trials", lambda self, options: ["long", "longest"])

    assert harness.main(Words(), ["--write"]) == 0

    assert "| word | n |\n|---|--:|\n| long | 4 |\n| longest | 7 |" in document.read_text()
    assert "make proofs ARGS='words --write'" in document.read_text()


@pytest.mark.parametrize("section", ["faults", "soak", "storms", "torture", "torture-stops"])
def test_the_figures_have_a_place_for_each_proof(section):
    text = (harness.ROOT / "tests/proofs/FIGURES.md").read_text(encoding="utf-8")

    assert text.count(f"<!-- figures:{section}:begin -->") == 1


@pytest.mark.parametrize("text", ["nothing", "<!-- figures:words:end -->"])
def test_a_document_without_the_markers_stays_as_it_is(tmp_path, text):
    document = tmp_path / "page.md"
    document.write_text(text)

    with pytest.raises(MissingMarkers):
        write_section(document, "words", "new")

    assert document.read_text() == text


def test_the_command_lists_the_trials_of_each_proof(capsys):
    assert main(["--help"]) == 0
    assert main(["faults", "--short", "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[-len(SHORT) :] == [case.id for case in SHORT]
    for name in ("soak", "hosts", "torture", "storms", "failovers"):
        assert main([name, "--list"]) == 0
    assert main(["nothing"]) == 1


# -- the faults' table ------------------------------------------------------------------------


def test_the_table_sums_up_each_fault_and_all():
    bad = check(story("body 1 2; body 1.5 1.6"))
    killed = check(story("body 1 run=dead sample=1.1; dead 100 2; freed dead 2.1"))
    child, worker = "redis-prefork-early-kill_child", "redis-threads-late-kill_worker"
    results = [Result(child, 1, bad), Result(child, 2, killed), Result(worker, 1, Verdict())]

    (table,) = Faults().tables(results)

    cells = {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    assert (cells["kill_child"]["cases"], cells["kill_child"]["bodies"]) == ("2", "3")
    assert (cells["kill_child"]["child s"], cells["kill_worker"]["child s"]) == ("0.10 / 0.10", "-")
    assert [row["wrong"] for row in cells.values()] == ["1", "0", "1"]
    assert "| all | 3 |" in table.markdown()
    assert len({len(line) for line in table.text().splitlines()[:4]}) == 1


def test_the_short_forms_files_run_the_whole_selection():
    run = [case for words in FILES.values() for case in chosen(words)]
    assert sorted(run) == sorted(SHORT)
    assert Case(*SHORT[0]).id in Faults().trials(argparse.Namespace(short=False))
