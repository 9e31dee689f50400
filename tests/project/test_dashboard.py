"""The dashboard and the alert rules of examples/: they ask for what is exported, and are sound."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project.test_pages import anchors
from tests.support.promtool import promtool
from tests.support.workers import ROOT

DASHBOARD = ROOT / "examples/grafana/redislock-dashboard.json"
RULES = ROOT / "examples/prometheus/redislock-alerts.yml"
RULES_TEST = ROOT / "examples/prometheus/redislock-alerts-test.yml"
OPERATIONS = ROOT / "docs/operations.md"
MONITORING = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
OPTIONS = (ROOT / "docs/options.md").read_text(encoding="utf-8")
#: What Prometheus adds to a series that it scrapes.
OF_PROMETHEUS = {"job", "instance"}
#: The values that a label may have, where they are known.
VALUES = {
    "outcome": {
        *re.findall(r'`"([\w ]+)"`', re.findall(r"^`outcome` is (.*?)\. ", OPTIONS, re.M | re.S)[0])
    },
    "how": {"retaken", "freed"},
    "state": {
        *("held", "silent", "without its lock", "kept", "queued", "waits for quiet", "not taken"),
        *("free", "foreign"),
    },
    "job": {"redislock"},
}

dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
rules: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]
]
panels: list[dict[str, Any]] = dashboard["panels"]


def exported(text: str = MONITORING) -> dict[str, set[str]]:
    """The labels of each series that the exporter or a worker exports, by its name: as the page has
    them. Another test compares the page with what is exported.
    """
    found = {"up": set(OF_PROMETHEUS)}
    for name, labels, means in re.findall(
        r"^\| `(redislock_\w+)` \| (.*?) ?\| (.*) \|$", text, re.M
    ):
        known = {*re.findall(r"`(\w+)`", labels), *OF_PROMETHEUS}
        if means.startswith("histogram"):
            found |= {f"{name}_count": known, f"{name}_sum": known}
            found[f"{name}_bucket"] = known | {"le"}
        else:
            found[name] = known
    return found


def expressions() -> Iterator[str]:
    for rule in rules:
        yield rule["expr"]
    for panel in panels:
        for target in panel.get("targets", ()):
            yield target["expr"]


def filled_in(expression: str) -> str:
    """With values for Grafana's variables."""
    return re.sub(r"\$__(rate_interval|range)", "5m", expression).replace("$task", ".*")


def test_every_metric_and_label_that_they_name_is_exported():
    known, asked = exported(), set()
    for expression in expressions():
        found = re.findall(r"\b(redislock_\w+|up)\b(?:\{(.*?)\})?", expression)
        assert found, expression
        named = set(re.findall(r"\b(\w+)(?==~?\")", expression))
        for by in re.findall(r"\bby \((.*?)\)", expression):
            named |= set(re.split(r",\s*", by))
        assert named <= set.union(*(known[name] for name, _ in found)), expression
        for name, selector in found:
            asked.add(name)
            for label, pattern in re.findall(r'(\w+)=~?"(.*?)"', selector):
                assert label in known[name], expression
                fits = [each for each in VALUES.get(label, ()) if re.fullmatch(pattern, each)]
                assert fits or label == "task", f"{label}={pattern!r} is never so"
    of_exporter = exported(MONITORING.partition("## The backlog")[2].partition("\n## ")[0])
    assert of_exporter.keys() <= asked, "each gauge of the exporter is shown"
    assert {"redislock_conflicts_total", "redislock_lost_total"} <= asked


def test_every_task_of_the_variable_can_be_chosen():
    datasource, task = dashboard["templating"]["list"]
    assert (datasource["type"], datasource["query"]) == ("datasource", "prometheus")
    asked = re.fullmatch(r'label_values\(\{__name__=~"(.+)"\}, task\)', task["query"]["query"])
    assert set(asked[1].split("|")) <= set(exported())
    for panel in panels:
        for each in (panel, *panel.get("targets", ())):
            assert panel["type"] == "row" or each["datasource"]["uid"] == "${datasource}"


def test_the_panels_have_units_and_descriptions_and_do_not_overlap():
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = set(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
        )
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["description"]


def test_grafanas_own_models_know_every_field_of_the_dashboard():
    pytest.importorskip("grafana_foundation_sdk", reason="it needs Python 3.11")
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))

    def kept(ours: Any, theirs: Any, path: str) -> None:
        if isinstance(ours, dict):
            for name, value in ours.items():
                assert name in theirs, f"{path}/{name} is no field of Grafana's"
                kept(value, theirs[name], f"{path}/{name}")
        elif isinstance(ours, list):
            for number, pair in enumerate(zip(ours, theirs, strict=True)):
                kept(*pair, f"{path}/{number}")
        else:
            assert ours == theirs, path

    kept(dashboard, read, "")


def test_each_runbook_is_there():
    headings = re.findall(r"^## (.+)$", OPERATIONS.read_text("utf-8"), re.M)
    for rule in rules:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/operations.md"
        assert anchor in anchors(OPERATIONS), rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("warning", "critical")
    named = re.findall(r"docs/operations\.md, (.+?)\"", DASHBOARD.read_text("utf-8"))
    assert len(named) > 3
    assert set(named) <= set(headings)


def test_prometheus_accepts_the_rules_and_every_query(tmp_path: Path):
    assert f"{len(rules)} rules found" in promtool("check", "rules", RULES)
    queries = [
        {"record": f"query:number{number}", "expr": filled_in(expression)}
        for number, expression in enumerate(expressions())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": queries}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", path)


def test_each_alert_goes_off_when_it_should():
    assert "SUCCESS" in promtool("test", "rules", RULES_TEST)
    cases = [
        case
        for test in yaml.safe_load(RULES_TEST.read_text("utf-8"))["tests"]
        for case in test["alert_rule_test"]
    ]
    names = {rule["alert"] for rule in rules}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names
