"""A Prometheus that scrapes: Debian's package."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.support.servers import free_port
from tests.support.waiting import eventually


class Prometheus:
    """Scrapes these addresses each second, under the jobs' names. Without Debian's package the test
    is skipped; in CI it fails.
    """

    def __init__(self, **jobs: Sequence[str]) -> None:
        binary = shutil.which("prometheus")
        if binary is None:
            if os.environ.get("CI"):
                pytest.fail("prometheus is missing, and in CI it must be there")
            pytest.skip("no prometheus on this machine: it is a package of Debian")
        self._folder = tempfile.TemporaryDirectory(prefix="redislock-prometheus-")
        folder = Path(self._folder.name)
        scrapes = [
            {"job_name": name, "static_configs": [{"targets": list(targets)}]}
            for name, targets in jobs.items()
        ]
        every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"global": every, "scrape_configs": scrapes}))
        self._address = f"127.0.0.1:{free_port()}"
        self._process = subprocess.Popen(
            [
                *(binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
                *(f"--web.listen-address={self._address}", "--log.level=warn"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query finds now, each with its `metric` and `value`.

        Raises:
            OSError: it does not answer, or refuses the query.
        """
        asked = urllib.parse.urlencode({"query": query})
        url = f"http://{self._address}/api/v1/query?{asked}"
        with urllib.request.urlopen(url, timeout=10) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def number(self, query: str) -> float | None:
        """The value of a query that finds one series; None if it finds none."""
        try:
            found = self.ask(query)
        except OSError:
            return None  # it is about to start
        return float(found[0]["value"][1]) if found else None

    def finds(self, query: str, value: float) -> None:
        """Wait until the query has this value."""
        eventually(lambda: self.number(query) == value, f"{query} is {value}", 60)
