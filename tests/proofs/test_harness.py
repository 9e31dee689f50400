"""The runner of all proofs: its figures, what it says of what is wrong, and the command."""

from __future__ import annotations

import dataclasses

from tests.proofs import harness
from tests.proofs.__main__ import main
from tests.proofs.faults.cases import SHORT
from tests.proofs.harness import Proof, Table
from tests.proofs.history import History, read


@dataclasses.dataclass
class Figures:
    length: int


class Words(Proof):
    """Measures words; a short one is wrong, and one breaks."""

    name = "words"
    jobs = 2

    def trials(self, options):
        return ["long", "no", "none"]

    def run(self, trial, seed, options, history, shared):
        if trial == "none":
            raise ValueError(trial)
        History(history).write("word", word=trial, seed=seed)
        return Figures(len(trial)), [f"{trial} is short"] if len(trial) < 3 else []

    def tables(self, results):
        rows = [(each.trial, each.figures.length) for each in results]
        return [Table("page.md#words", ["word", "n"], rows)]


def test_figures_are_shown_and_what_is_wrong_with_how_to_run_it_again(tmp_path, capsys):
    assert harness.main(Words(), ["--keep", str(tmp_path)]) == 1

    said = capsys.readouterr().out
    assert "no is short\npython -m tests.proofs words --only 'no' --seed 1" in said
    assert "ValueError: none" in said
    assert "long  4" in said
    assert [event.word for event in read(tmp_path / "no-1.jsonl")] == ["no"]


def test_the_command_lists_the_trials_of_each_proof(capsys):
    assert main(["--help"]) == 0
    assert main(["faults", "--short", "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[-len(SHORT) :] == [case.id for case in SHORT]
    for name in ("soak", "hosts", "failovers"):
        assert main([name, "--list"]) == 0
    assert main(["nothing"]) == 1
