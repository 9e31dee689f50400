"""Tasks whose bodies start programs, of which one starts another. With the code of the page."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from celery_redislock import SingletonTask
from tests.support.pages import ROOT, blocks

from .bodies import CONF, new_app

#: `run_tied` as docs/guarantees.md has it.
PAGE: dict[str, Any] = {}
(BLOCK,) = (each for each in blocks(ROOT / "docs/guarantees.md") if "def run_tied" in each.text)
exec(BLOCK.text, PAGE)

TREE = ("sh", "-c", "sleep 1000 & sleep 1001; true")
app = new_app("programs", CONF)


@app.task(name="plain", base=SingletonTask, lock_key=["label"])
def plain(label: str) -> None:
    subprocess.run(TREE, env={**os.environ, "TEST_LABEL": label}, check=True)


@app.task(name="tied", base=SingletonTask, lock_key=["label"])
def tied(label: str) -> None:
    PAGE["run_tied"]("env", f"TEST_LABEL={label}", *TREE)
