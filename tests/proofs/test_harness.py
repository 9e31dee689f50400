"""What all proofs share: the history, what is said on the wire, the runner and its tables."""

from __future__ import annotations

import dataclasses
import json

from tests.proofs import harness
from tests.proofs.__main__ import main
from tests.proofs.faults.cases import SHORT
from tests.proofs.harness import Proof, Table
from tests.proofs.history import History, read

# -- the history ------------------------------------------------------------------------------


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


def test_the_command_lists_the_trials_of_each_proof(capsys):
    assert main(["--help"]) == 0
    assert main(["faults", "--short", "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[-len(SHORT) :] == [case.id for case in SHORT]
    for name in ("soak", "hosts", "failovers"):
        assert main([name, "--list"]) == 0
    assert main(["nothing"]) == 1
