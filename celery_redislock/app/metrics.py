"""Makes metrics from our signals, labelled by task and outcome, never by keys without limit."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from .. import signals
from ..protocol import past


class Metric(NamedTuple):
    """One metric."""

    #: "counter"; "histogram"; "gauge", which goes up and down; or "level", a gauge that is set. If
    #: several processes set a level, the highest value is right.
    kind: str
    name: str  # without the prefix, and without the unit
    unit: str  # "seconds" or ""
    text: str  # what the metric means
    labels: tuple[str, ...] = ("task",)  # their names
    buckets: tuple[float, ...] = ()  # the upper bounds of a histogram


_SHORT: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
_LONG: Final = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)
_LATE: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

ACQUIRE: Final = Metric(
    "histogram", "acquire", "seconds",
    "How long a task spent on acquiring the lock, in its pool slot", buckets=_SHORT,
)  # fmt: skip
WAITED: Final = Metric(
    "histogram", "waited", "seconds",
    "Time from a task's first conflict until it acquired the lock; only of tasks that had one",
    buckets=_LONG,
)  # fmt: skip
HELD_FOR: Final = Metric("histogram", "held", "seconds", "How long a lock was held", buckets=_LONG)
LATE: Final = Metric(
    "histogram", "heartbeat_late", "seconds", "How late an extension was sent", buckets=_LATE
)
CONFLICTS: Final = Metric(
    "counter",
    "conflicts",
    "",
    "Tasks that met a held lock, by how that ended, and by what held it",
    ("task", "outcome", "because"),
)
UNLOCKED: Final = Metric(
    "counter", "unlocked", "", "Runs without a lock, by the reason", ("task", "because")
)
LOST: Final = Metric("counter", "lost", "", "Locks lost while their body ran")
RECOVERED: Final = Metric(
    "counter", "recovered", "",
    "Locks retaken after they had vanished, or freed after their pool process died",
    ("task", "how"),
)  # fmt: skip
HOLDING: Final = Metric("gauge", "holding", "", "Tasks that hold their lock now")
WAITING: Final = Metric("gauge", "waiting", "", "Tasks that wait in their pool slot now")
LAST_SUCCESS: Final = Metric(
    "level", "last_success_timestamp", "seconds", "Unix time of the task's last run that succeeded"
)
METRICS: Final = (
    *(ACQUIRE, WAITED, HELD_FOR, LATE),
    *(CONFLICTS, UNLOCKED, LOST, RECOVERED, HOLDING, WAITING, LAST_SUCCESS),
)


#: What the task's `lock_ttl` comes to, not a measurement.
WARN_AFTER: Final = Metric(
    "level", "lock_warn_after", "seconds",
    "Ten times the task's lock_ttl: a duplicate that an older holder turns away is a WARNING",
)  # fmt: skip


class Recorder(Protocol):
    """Takes the measurements. Any thread calls it, also the heartbeat's: it must not wait."""

    def record(self, metric: Metric, value: float, **labels: str) -> None:
        """Observe in a histogram, add to a counter or gauge, or set a level."""


#: For each signal, what its details add to which metrics: values and further labels.
_MEASURED: Final[dict[Any, Callable[[Any], list[tuple[Metric, float, dict[str, str]]]]]] = {
    signals.lock_acquired: lambda details: [
        (ACQUIRE, details.latency, {}),
        (HOLDING, 1, {}),
        *([(WAITED, details.waited, {})] if details.waited else []),
    ],
    signals.lock_released: lambda details: [
        (HELD_FOR, details.held, {}),
        (HOLDING, -1, {}),
        *([(LAST_SUCCESS, time.time(), {})] if details.how == past.SUCCEEDED else []),
    ],
    signals.lock_conflict: lambda details: [
        (CONFLICTS, 1, {"outcome": details.outcome, "because": details.because})
    ],
    signals.lock_omitted: lambda details: [(UNLOCKED, 1, {"because": details.because})],
    signals.lock_lost: lambda details: [] if details.replaced else [(LOST, 1, {})],
    signals.lock_recovered: lambda details: [(RECOVERED, 1, {"how": details.how})],
    signals.lock_extended: lambda details: [(LATE, details.late, {})],
    signals.lock_waiting: lambda details: [(WAITING, 1 if details.waits else -1, {})],
}


def measure(app: Any, recorder: Recorder) -> None:
    """Record what the signals of this app's tasks say."""
    of_app = weakref.ref(app)

    def listen(signal: Any, measured: Callable[[Any], Any]) -> None:
        def receive(sender: Any, details: Any, **kwargs: Any) -> None:
            if sender.app is of_app():
                for metric, value, labels in measured(details):
                    recorder.record(metric, value, task=sender.name, **labels)

        signal.connect(receive, weak=False)

    for signal, measured in _MEASURED.items():
        listen(signal, measured)
