"""Metrics, recorded if the process has loaded the metrics of an OpenTelemetry SDK.

    roundgate.tasks.created      counter, by tool                     new tasks
    roundgate.tasks.claimed      counter, by tool                     claims of workers
    roundgate.tasks.ended        counter, by tool and outcome         tasks that have ended
    roundgate.tasks.turns        counter, by tool and outcome         turns of workers
    roundgate.tasks.turn_time    histogram in ms, by the same         duration of a turn
    roundgate.tasks.overdue      gauge in s                           delay of the most overdue task
    roundgate.calls.refused      counter, by row of `rate`            calls beyond a limit
    roundgate.backends.missing   gauge                                back ends that are not served
    roundgate.backends.circuit   gauge, by back end and host          1 while open, else 0

Otherwise nothing is imported. Tasks are counted when they are created, claimed and ended, because
counting open tasks would read all of them. The log lines "task" and "tasks" have the same facts. On
AWS Lambda, lines in the embedded metric format make CloudWatch's metrics.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from roundgate.clock import Clock

NAMESPACE: Final = "roundgate"
"""The namespace of CloudWatch's metrics."""
FLOW: Final = ("created", "claimed", "ended")

log = logging.getLogger("roundgate.metrics")
# at any log level: CloudWatch makes its metrics of these lines
log.setLevel("INFO")


class Metrics:
    """The metrics of a process without an SDK, which are lines of the log."""

    def __init__(self, function: str = "", clock: Clock | None = None) -> None:
        """Make the metrics. `function` is the name of the process's function of AWS Lambda."""
        self._function = function
        self._clock = clock or Clock()
        self._flow: Counter[str] = Counter()

    def created(self, tool: str) -> None:
        """Record a new task."""
        self._flow["created"] += 1
        self.embed("task created", {"created": 1})

    def claimed(self, tool: str) -> None:
        """Record that a worker has claimed a task."""
        self._flow["claimed"] += 1
        self.embed("task claimed", {"claimed": 1})

    def ended(self, tool: str, outcome: str) -> None:
        """Record the end of a task. `outcome` is a value of `storage.Ending`."""
        self._flow["ended"] += 1
        failed = {"failed_steps": 1} if outcome == "step_failed" else {}
        self.embed("task ended", {"ended": 1, **failed})

    def take_flow(self) -> dict[str, int]:
        """Return the numbers of tasks that this process has created, claimed and ended since the
        last call."""
        taken, self._flow = self._flow, Counter()
        return {name: taken[name] for name in FLOW}

    def embed(self, message: str, fields: Mapping[str, float]) -> None:
        """Log fields as metrics of CloudWatch, if the process is a function of AWS Lambda."""
        if self._function:
            cloudwatch_members = embedded(fields, self._function, self._clock.now_ms())
            log.info(message, extra={"fields": {**fields, **cloudwatch_members}})

    def turn(self, tool: str, outcome: str, took_ms: float) -> None:
        """Record a worker's turn at a task, and its duration in milliseconds."""

    def overdue(self, seconds: float) -> None:
        """Record the delay of the most overdue task; 0 if none is overdue."""

    def refused(self, row: str) -> None:
        """Record that a call was beyond a limit. `row` names the row of `rate`."""
        self.embed("call refused", {"refused": 1})

    def missing(self, count: int) -> None:
        """Record the number of back ends that are not served."""

    def circuit(self, backend: str, host: str, *, is_open: bool) -> None:
        """Record that a host's circuit has opened or closed."""


class OpenTelemetryMetrics(Metrics):
    """Metrics that are recorded with instruments of the process's meter provider."""

    def __init__(self, function: str = "", clock: Clock | None = None) -> None:
        from opentelemetry import metrics

        super().__init__(function, clock)
        meter = metrics.get_meter("roundgate")
        self._created = meter.create_counter("roundgate.tasks.created", description="New tasks")
        self._claimed = meter.create_counter(
            "roundgate.tasks.claimed", description="Claims of workers"
        )
        self._ended = meter.create_counter(
            "roundgate.tasks.ended", description="Tasks that have ended"
        )
        self._turns = meter.create_counter(
            "roundgate.tasks.turns", description="Turns of workers at tasks"
        )
        self._time = meter.create_histogram(
            "roundgate.tasks.turn_time", "ms", "Duration of a worker's turn"
        )
        self._overdue = meter.create_gauge(
            "roundgate.tasks.overdue", "s", "Delay of the most overdue task"
        )
        self._refused = meter.create_counter(
            "roundgate.calls.refused", description="Calls beyond a limit"
        )
        self._missing = meter.create_gauge(
            "roundgate.backends.missing", description="Back ends that are not served"
        )
        self._circuit = meter.create_gauge(
            "roundgate.backends.circuit",
            description="1 while requests to a host are paused, else 0",
        )

    def created(self, tool: str) -> None:
        super().created(tool)
        self._created.add(1, {"gen_ai.tool.name": tool})

    def claimed(self, tool: str) -> None:
        super().claimed(tool)
        self._claimed.add(1, {"gen_ai.tool.name": tool})

    def ended(self, tool: str, outcome: str) -> None:
        super().ended(tool, outcome)
        self._ended.add(1, {"gen_ai.tool.name": tool, "outcome": outcome})

    def turn(self, tool: str, outcome: str, took_ms: float) -> None:
        facts = {"gen_ai.tool.name": tool, "outcome": outcome}
        self._turns.add(1, facts)
        self._time.record(took_ms, facts)

    def overdue(self, seconds: float) -> None:
        self._overdue.set(seconds)

    def refused(self, row: str) -> None:
        super().refused(row)
        self._refused.add(1, {"limit": row})

    def missing(self, count: int) -> None:
        self._missing.set(count)

    def circuit(self, backend: str, host: str, *, is_open: bool) -> None:
        self._circuit.set(int(is_open), {"backend": backend, "host": host})


def set_up(function: str = "", clock: Clock | None = None) -> Metrics:
    """Return metrics that record if the process has loaded an SDK's metrics; otherwise import
    nothing."""
    has_sdk = "opentelemetry.sdk.metrics" in sys.modules
    return (OpenTelemetryMetrics if has_sdk else Metrics)(function, clock)


def embedded(fields: Mapping[str, float], function: str, now_ms: int) -> dict[str, Any]:
    """Return the members that make CloudWatch read a log line as metrics (embedded metric format),
    by function."""
    metrics = [
        {"Name": name, "Unit": "Seconds" if name.endswith("_s") else "Count"} for name in fields
    ]
    directive = {"Namespace": NAMESPACE, "Dimensions": [["function"]], "Metrics": metrics}
    return {"function": function, "_aws": {"Timestamp": now_ms, "CloudWatchMetrics": [directive]}}
