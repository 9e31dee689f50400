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
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.support.servers import free_port
from tests.support.waiting import eventually


class Prometheus:
    """Scrapes and evaluates each second what its configuration says. Without Debian's package the
    test is skipped; in CI it fails.

    Args:
        config: the configuration, as `prometheus.yml` has it.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        each_second = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        self._config = {**config, "global": each_second}
        self._address = f"127.0.0.1:{free_port()}"

    def __enter__(self) -> Prometheus:
        binary = shutil.which("prometheus")
        if binary is None:
            if os.environ.get("CI"):
                pytest.fail("prometheus is missing, and in CI it must be there")
            pytest.skip("no prometheus on this machine: it is a package of Debian")
        self._folder = tempfile.TemporaryDirectory(prefix="redislock-prometheus-")
        folder = Path(self._folder.name)
        config = folder / "prometheus.yml"
        config.write_text(json.dumps(self._config))
        self._process = subprocess.Popen(
            [
                *(binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
                *(f"--web.listen-address={self._address}", "--log.level=warn"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
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
        found: list[dict[str, Any]] = self._get("query", query=query)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Its rules, each with its `health` and `lastError`."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **asked: str) -> dict[str, Any]:
        url = f"http://{self._address}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                data: dict[str, Any] = json.load(response)["data"]
                return data
        except urllib.error.HTTPError as exc:
            raise OSError(f"{asked} is refused: {exc.read().decode()}") from exc

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
