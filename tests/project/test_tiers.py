"""Who may import the inside of the package: `tests/unit` and `tests/contract`, and nobody else.

import-linter sees the imports (`make lint`). Here it is what `monkeypatch`, `importlib` or a
program in a string would import. And what only one module of the tests may import.
"""

from __future__ import annotations

import ast
import re

from tests.support.workers import ROOT

SOURCE = ROOT / "celery_redislock"
#: What users may import, and so may all tests.
PUBLIC = {
    *("compat", "django", "errors", "operations", "otel", "policies", "prometheus", "signals"),
    *("testing", "verbs", "web"),
}
INSIDE = ("tests/unit", "tests/contract", "tests/simulation")


def test_no_text_in_tests_of_promises_names_a_module_of_the_inside():
    there = {path.stem for path in SOURCE.iterdir() if path.suffix in ("", ".py")}
    internal = {name for name in there if name[0] not in "._"} - PUBLIC
    assert len(internal) > 3
    assert there > PUBLIC

    dotted = re.compile(rf"celery_redislock\.(?:{'|'.join(sorted(internal))})\b")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {match[0]}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not path.relative_to(ROOT).as_posix().startswith(INSIDE)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (match := dotted.search(node.value))
    ]

    assert found == [], "\n".join(found)


def test_tests_take_the_clock_of_the_package_from_where_it_may_be_ahead():
    """Any other would be behind in a process in which a test of the kit let time pass."""
    taken = re.compile(r"^ *from celery_redislock\.protocol\.clock import", re.MULTILINE)
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    assert "protocol import clock" in texts[ROOT / "tests/contract/clocks.py"]
    assert [path for path, text in texts.items() if taken.search(text)] == []
