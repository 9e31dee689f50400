"""Runs the Python of one page: `python -m tests.support.run_page PAGE URL`.

In a process of its own. The blocks are one module, and go from top to bottom. What a page takes
for granted is in `given`. The URLs on a page become the test's server. A line that ends in a
comment that is a Python value, as in `sync.delay(5).id == first.id  # True`, has that value. A test
on a page is called.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import django.conf
from celery import Celery

from celery_redislock import testing
from tests.support.pages import ROOT, Block, blocks

URL = re.compile(r"redis://[\w.-]+(:\d+)?(/\d+)?")
VALUE = re.compile(r"#\s*(True|False|None|-?\d+|'[^']*'|\"[^\"]*\"|\('[^()]*\))(:|$)")


class App(Celery):
    """An app to which a page may give many tasks of the same name."""

    _numbers = count(1)

    def task(self, *args: Any, **options: Any) -> Any:
        options = {"name": f"page.task{next(self._numbers)}", "shared": False, **options}
        return super().task(*args, **options)


class Duplicates(Counter[tuple[str, str]]):
    """Stands for a counter of a metrics library."""

    def labels(self, *labels: str) -> Any:
        return types.SimpleNamespace(inc=lambda: self.update([labels]))


def given(url: str) -> dict[str, Any]:
    """What a reader has whose project is not on the page."""
    django.conf.settings.configure(CELERY_REDISLOCK_URL=url)
    app = App("page", broker=url, backend=url)
    app.conf.redislock_url = url
    app.finalize()  # so that each task's options are checked where it stands
    return {
        "app": app,
        "url": url,
        "account_id": 5,
        "balance": 10,
        "save": lambda *args, **kwargs: None,
        "rows": lambda path: [],
        "DUPLICATES": Duplicates(),
    }


def run(block: Block, module: types.ModuleType, url: str) -> None:
    """Run a block, and look at the values that it says its lines have."""
    text = URL.sub(url, block.text)
    lines = text.splitlines()
    tree = ast.parse(text, block.page)
    ast.increment_lineno(tree, block.line)
    for statement in tree.body:
        end = statement.end_lineno or statement.lineno
        said = VALUE.search(lines[end - block.line - 1])
        if isinstance(statement, ast.Expr) and said:
            value = eval(compile(ast.Expression(statement.value), block.page, "eval"), vars(module))
            told = ast.literal_eval(said[1])
            assert value == told, f"{block.page}:{end}: it is {value!r}"
        else:
            exec(compile(ast.Module([statement], []), block.page, "exec"), vars(module))
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_"):
            run_test(vars(module)[statement.name])


def run_test(test: Callable[..., None]) -> None:
    """Call a test of the page, with the fixtures of the library that it asks for."""
    with testing.memory_locks() as locks, contextlib.ExitStack() as held:

        def held_lock(*what: Any, **kwargs: Any) -> testing.HeldLock:
            return held.enter_context(testing.hold_lock(*what, **kwargs))

        fixtures = {"redislock_memory": locks, "held_lock": held_lock}
        test(**{name: fixtures[name] for name in inspect.signature(test).parameters})


@contextlib.contextmanager
def worker(block: Block, folder: Path) -> Iterator[None]:
    """The worker that a shell block starts, if its app is a module of the page."""
    found = re.search(r"celery -A (\w+) worker.*", block.text)
    if not found or not (folder / f"{found[1]}.py").exists():
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", *shlex.split(found[0], comments=True)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=sys.stderr,
        stderr=subprocess.STDOUT,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def main(page: Path, url: str) -> None:
    module = types.ModuleType("page")
    vars(module).update(given(url))
    sys.modules["page"] = module
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as started:
        sys.path.insert(0, folder)
        for block in blocks(page):
            started.enter_context(worker(block, Path(folder)))
            if not block.runs_here:
                continue
            if block.kind == "file":
                Path(folder, block.note).write_text(URL.sub(url, block.text), encoding="utf-8")
                __import__(block.note.removesuffix(".py"))
            else:
                run(block, module, url)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
