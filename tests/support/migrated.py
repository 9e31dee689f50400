"""The examples of the pages on migrating, made from the pages themselves: for workers and senders.

The page's `work` writes down its start, waits until the test opens the gate, and writes down its
end; what it works on is a test's label.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import redis
from celery import Celery, current_task
from celery.utils.dispatch import Signal

from tests.support.journal import Journal
from tests.support.unshared import App
from tests.support.waiting import eventually

PAGES = [Path(__file__).parents[2] / "docs/migrating.md"]
PAGES += [Path(__file__).parents[2] / "docs/migrating-others.md"]
#: Where the page says that the locks are.
URL = "redis://localhost:6379/0"
#: How the names of the examples begin that only change an import.
IMPORT = "import-"


def examples() -> dict[str, str]:
    """The "after" of each library, as the pages say it. After a changed import this is the code
    that is "before" in its section.
    """
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = dict(re.findall(r"<!-- after: (\S+) -->\n```python\n(.*?)```", text, re.S))
    for name in found:
        if name.startswith(IMPORT):
            section = text.partition(f"<!-- after: {name} -->")[2]
            before = re.search(r"<!-- not run: .*?```python\n(.*?)```", section, re.S)
            assert before
            found[name] += before[1]
    return found


def gate(label: str) -> str:
    """The key whose presence lets all work on this label end."""
    return f"gate:{label.partition('-')[0]}"


def define(app: Celery, conf: dict[str, Any]) -> dict[str, SimpleNamespace]:
    """Run each example, as a module of its own, with this app."""
    client = redis.Redis.from_url(conf["test_journal"], decode_responses=True)
    journal = Journal(client)

    def work(label: str) -> None:
        journal.write("start", label, current_task.request)
        eventually(lambda: client.exists(gate(label)), "the gate is open", 60)
        journal.write("end", label, current_task.request)

    defined = {}
    for name, text in examples().items():
        module = {"__name__": f"from_{name.replace('-', '_')}", "app": app, "work": work}
        module["worker_ready"] = Signal()  # never sent: workers may not list the locks here
        exec(compile(text.replace(URL, conf["redislock_url"]), f"migrating:{name}", "exec"), module)
        defined[name] = SimpleNamespace(**module)
    return defined


if "TEST_CONF" in os.environ:
    CONF = json.loads(os.environ["TEST_CONF"])
    app = App("tests.support.migrated")
    app.conf.update({k: v for k, v in CONF.items() if not k.startswith("test_")})
    define(app, CONF)
