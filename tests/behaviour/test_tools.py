"""What Sentry's and OpenTelemetry's own instrumentation of Celery tell of locked tasks."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.looking import starts
from tests.support.waiting import eventually

WORKERS = [
    ("prefork", ["sentry", "opentelemetry", "late"]),
    ("threads", ["sentry", "opentelemetry"]),
]


class Tools:
    """A worker with tools, and what they told of its tasks."""

    def __init__(self, worker: Any, send: Any, file: Path, tools: list[str]) -> None:
        self.worker, self.send, self.tools, self._file = worker, send, tools, file

    def told(self, task_id: str, *kinds: str) -> list[dict[str, Any]]:
        """What was told of a task, in its order."""
        whole, _, _ = self._file.read_text(encoding="utf-8").rpartition("\n")
        rows = map(json.loads, whole.splitlines())
        return [row for row in rows if row["of"] == task_id and (not kinds or row["kind"] in kinds)]

    def ends(self, task_id: str, runs: int = 1, deliveries: int | None = None) -> None:
        """Wait until each tool has told of these runs, and OpenTelemetry of the deliveries too."""
        if "sentry" in self.tools:
            eventually(
                lambda: len(self.told(task_id, "transaction")) == runs,
                f"Sentry tells of {task_id}",
            )
        if "opentelemetry" in self.tools:
            expected = runs if deliveries is None else deliveries
            eventually(
                lambda: len(self.told(task_id, "run")) >= expected,
                f"OpenTelemetry tells of {task_id}",
            )


@pytest.fixture(scope="module", params=WORKERS, ids=lambda param: "-".join([param[0], *param[1]]))
def tools(
    request: Any, start_module_worker: Any, sender: Any, tmp_path_factory: pytest.TempPathFactory
) -> Tools:
    pool, tools = request.param
    file = tmp_path_factory.mktemp("told") / "told"
    file.touch()
    # Here, not above: each process of pytest's collects this module, and one of them runs it.
    pytest.importorskip("sentry_sdk")
    pytest.importorskip("opentelemetry.instrumentation.celery")
    queue = f"tools{uuid.uuid4().hex}"
    worker = start_module_worker(
        app="tests.behaviour.apps.traced", pool=pool, queues=queue,
        conf={"test_tools": tools, "test_told": str(file)},
    )  # fmt: skip

    def send(
        name: str, label: str, how: str | float = 0.0, trace: str | None = None, **headers: Any
    ) -> Any:
        if trace is not None:
            span = trace[:16]
            within = {"sentry-trace": f"{trace}-{span}-1"}
            headers = {"traceparent": f"00-{trace}-{span}-01", **within, "headers": within}
        return sender.send_task(name, [label, how], queue=queue, headers=headers)

    return Tools(worker, send, file, tools)


@pytest.mark.parametrize(("how", "runs"), [(0.0, 1), ("fails", 1), ("retry", 2)])
def test_a_run_looks_like_that_of_a_plain_task(tools, label, how, runs):
    def told(name):
        result = tools.send(name, f"{label}{name}", how, uuid.uuid4().hex)
        result.get(timeout=20, propagate=False)
        tools.ends(result.id, runs)
        return [(row["kind"], row["how"]) for row in tools.told(result.id)]

    assert sorted(map(str, told("skips"))) == sorted(map(str, told("plain")))


def test_an_error_has_the_frames_of_a_plain_tasks(tools, label):
    """Sentry groups errors by these."""
    told = {}
    for name in ("plain", "skips"):
        result = tools.send(name, f"{label}{name}", "fails")
        result.get(timeout=20, propagate=False)
        tools.ends(result.id)
        told[name] = {row["kind"]: row for row in tools.told(result.id, "error", "traceback")}
    ours = [
        is_hidden for module, is_hidden in told["skips"]["traceback"]["frames"]
        if module.startswith("celery_redislock")
    ]  # fmt: skip
    assert ours
    assert all(ours)
    if "sentry" in tools.tools:
        frames = {name: each["error"]["frames"] for name, each in told.items()}
        in_app = {name: [f for f in each if f[2]] for name, each in frames.items()}
        assert in_app["skips"] == in_app["plain"]
        assert in_app["skips"][0] == ["tests.behaviour.apps.traced", "job", True]
        assert not [f for f in frames["skips"] if f[0].startswith("celery_redislock")]


def test_a_duplicate_leaves_nothing_behind(tools, journal, label):
    holder = tools.send("skips", label, "stand")
    eventually(lambda: starts(journal, label, holder.id), "it holds")
    ended = {
        name: tools.send(name, label)
        for name in ("skips", "skips_with_result", "raises", "queues", "defers")
    }
    for name in ("skips", "skips_with_result", "raises"):
        ended[name].get(timeout=20, propagate=False)
    tools.ends(ended["skips"].id, 0, 1)
    tools.ends(ended["skips_with_result"].id)
    tools.ends(ended["raises"].id)
    # What comes next in the same processes knows nothing of them.
    for _ in range(3):
        plain = tools.send("plain", label)
        plain.get(timeout=20)
        tools.ends(plain.id)
        for row in tools.told(plain.id):
            assert not row.get("noted")
            assert not row.get("parent")
    journal.let_go(holder.id)
    for name in ("queues", "defers"):
        ended[name].get(timeout=20)
        tools.ends(ended[name].id, 1, 2)

    errors = {name: tools.told(result.id, "error") for name, result in ended.items()}
    if "sentry" in tools.tools:
        assert [error["how"] for error in errors.pop("raises")] == ["LockConflict"]
    assert not any(errors.values())
    assert tools.told(None) == []
    if "opentelemetry" in tools.tools:
        first = {name: tools.told(result.id, "run")[0] for name, result in ended.items()}
        assert {name: [row["how"][0], row["outcome"]] for name, row in first.items()} == {
            "skips": ["IGNORED", "skipped"],
            "skips_with_result": ["SUCCESS", "skipped with a result"],
            "raises": ["FAILURE", "raised"],
            "queues": ["IGNORED", "queued"],
            "defers": ["IGNORED", "deferred"],
        }
    assert "Failed to detach" not in tools.worker.log()
    assert "no existing span" not in tools.worker.log()


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        *(("queues", "queued"), ("coalesces", "coalesced"), ("replaces", "replacing")),
        ("defers", "deferred"),
    ],
)
def test_what_waits_stays_in_its_senders_trace(tools, journal, label, name, outcome):
    traces = [uuid.uuid4().hex for _ in range(2)]
    holder = tools.send("skips", label, "stand", traces[0])
    eventually(lambda: starts(journal, label, holder.id), "it holds")
    result = tools.send(name, label, 0.0, traces[1])
    eventually(lambda: f"{name}[{result.id}] {outcome}" in tools.worker.log(), "it met the lock")
    journal.let_go(holder.id)
    result.get(timeout=20)
    tools.ends(result.id)
    tools.ends(holder.id)
    assert {row["trace"] for row in tools.told(result.id, "run", "transaction")} == {traces[1]}
    assert {row["trace"] for row in tools.told(holder.id, "run", "transaction")} == {traces[0]}


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("skips", []),
        ("skips_with_result", ["ok"]),
        ("raises", ["error"]),
        ("coalesces", []),
        ("coalesces_with_result", ["ok"]),
        ("defers", ["ok"]),
    ],
)
def test_a_check_in_of_a_tick_is_closed_if_it_ends_with_a_result_or_an_error(
    tools, journal, label, name, ends
):
    if "sentry" not in tools.tools:
        pytest.skip("Sentry alone has check-ins")

    def tick(*how):
        """Send the task as Sentry's part in beat does."""
        id_ = uuid.uuid4().hex
        check_in = {"slug": "tick", "config": {}, "check-in-id": id_}
        headers = {f"sentry-monitor-{key}": value for key, value in check_in.items()}
        return id_, tools.send(name, label, *how, **headers)

    def closed(id_):
        return [row["how"] for row in tools.told(id_, "check-in")]

    opened, holder = tick("stand")
    eventually(lambda: starts(journal, label, holder.id), "it holds")
    duplicate, result = tick()
    eventually(lambda: f"redislock: {name}[{result.id}] " in tools.worker.log(), "it met the lock")
    if name.startswith("coalesces"):
        tick()
        eventually(result.ready, "the next one has replaced it")
    journal.let_go(holder.id)
    eventually(result.ready, "it has ended")
    eventually(lambda: closed(opened) == ["ok"], "the run's is closed")
    eventually(lambda: closed(duplicate) == ends, f"the duplicate's is {ends}")
