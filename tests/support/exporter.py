"""`celery redislock export` in a process of its own: enter it at once, as each `Process`."""

from __future__ import annotations

import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import eventually
from tests.support.workers import Process


class Exporter(Process):
    """A `celery redislock export`, serving when it is made."""

    def __init__(self, *arguments: str, conf: dict[str, Any]) -> None:
        super().__init__("redislock", "export", "--port", "0", *arguments, conf=conf)

        def url() -> str | None:
            assert self.popen.poll() is None, self.log()
            _, found, after = self.log().partition("Metrics: http://")
            return f"http://{after.split()[0]}" if found and "\n" in after else None

        try:
            self.url = eventually(url, "it serves", 60)
        except BaseException:
            self.close()
            raise

    def text(self) -> str:
        with urllib.request.urlopen(self.url, timeout=20) as response:
            return response.read().decode()

    def scrape(self) -> dict[tuple[str, ...], float]:
        """The samples: by their name and the values of their labels."""
        return {
            (sample.name.removeprefix("redislock_"), *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }
