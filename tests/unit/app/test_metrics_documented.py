"""docs/monitoring.md names each metric, event and log field that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_redislock.app.metrics import METRICS
from celery_redislock.app.outcomes import Outcome
from celery_redislock.protocol.log import FIELDS

DOCUMENT = (Path(__file__).parents[3] / "docs/monitoring.md").read_text(encoding="utf-8")


def test_every_metric_is_documented():
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry

    from celery_redislock import prometheus

    registry = CollectorRegistry()
    prometheus._Recorder(registry)
    made = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in (*registry.collect(), *prometheus.Collector(None).describe())
    }
    assert made == set(re.findall(r"^\| `(redislock_\w+)` \| (?:`task`|\| )", DOCUMENT, re.M))


def test_the_metrics_of_a_worker_but_the_last_are_those_of_opentelemetry():
    table = DOCUMENT.partition("| metric | labels | measures |")[2].partition("\n\n")[0]
    names = re.findall(r"^\| `redislock_(\w+?)(?:_seconds|_total)?` \|", table, re.M)
    assert names == [*(metric.name for metric in METRICS), "lock_warn_after"]


def test_every_event_and_field_is_documented():
    kinds = {each.event for each in Outcome if each.event}
    assert kinds == set(re.findall(r"^\* `task-lock-(\w+)`:", DOCUMENT, re.M))
    assert all(f"`{name}`" in DOCUMENT for name in FIELDS)
