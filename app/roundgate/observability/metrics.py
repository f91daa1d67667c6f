"""Metrics, recorded if the process has loaded the metrics of an OpenTelemetry SDK.

    roundgate.tasks.turns        counter, by tool and outcome         turns of workers
    roundgate.tasks.turn_time    histogram in ms, by the same         duration of a turn
    roundgate.tasks.open         gauge, by status                     open tasks
    roundgate.tasks.oldest       gauge in s, by status                age of the oldest open task
    roundgate.tasks.overdue      gauge in s                           delay of the most overdue task
    roundgate.backends.missing   gauge                                back ends that are not served
    roundgate.backends.circuit   gauge, by back end and host          1 while open, else 0

Otherwise nothing is imported. The log lines "task" and "tasks" have the same facts about tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Census:
    """The open tasks at one moment."""

    open: Mapping[str, int]
    """The number of open tasks, by status."""
    oldest_s: Mapping[str, float]
    """The age of the oldest open task in seconds, by status."""
    overdue_s: float
    """The delay of the most overdue working task, in seconds; 0 if none is overdue."""
    is_capped: bool = False
    """Whether there may be more open tasks than were counted."""

    def fields(self) -> dict[str, float]:
        """Return the counts as members of a log line, with `at_least` if they are capped."""
        ages = {f"oldest_{status}_s": age for status, age in self.oldest_s.items()}
        capped = {"at_least": True} if self.is_capped else {}
        return {**self.open, **ages, "overdue_s": self.overdue_s, **capped}


class Metrics:
    """The metrics of a process without an SDK, which record nothing."""

    def turn(self, tool: str, outcome: str, took_ms: float) -> None:
        """Record a worker's turn at a task, and its duration in milliseconds."""

    def census(self, census: Census) -> None:
        """Record the open tasks."""

    def missing(self, count: int) -> None:
        """Record how many back ends are not served."""

    def circuit(self, backend: str, host: str, *, is_open: bool) -> None:
        """Record that a host's circuit has opened or closed."""


class OpenTelemetryMetrics(Metrics):
    """Metrics that are recorded with instruments of the process's meter provider."""

    def __init__(self) -> None:
        from opentelemetry import metrics

        meter = metrics.get_meter("roundgate")
        self._turns = meter.create_counter(
            "roundgate.tasks.turns", description="Turns of workers at tasks"
        )
        self._time = meter.create_histogram(
            "roundgate.tasks.turn_time", "ms", "How long a worker's turn took"
        )
        self._open = meter.create_gauge("roundgate.tasks.open", description="Open tasks")
        self._oldest = meter.create_gauge(
            "roundgate.tasks.oldest", "s", "Age of the oldest open task"
        )
        self._overdue = meter.create_gauge(
            "roundgate.tasks.overdue", "s", "How late the latest working task is"
        )

        self._missing = meter.create_gauge(
            "roundgate.backends.missing", description="Back ends that are not served"
        )
        self._circuit = meter.create_gauge(
            "roundgate.backends.circuit", description="1 while a host is left alone, else 0"
        )

    def turn(self, tool: str, outcome: str, took_ms: float) -> None:
        facts = {"gen_ai.tool.name": tool, "outcome": outcome}
        self._turns.add(1, facts)
        self._time.record(took_ms, facts)

    def census(self, census: Census) -> None:
        for status, count in census.open.items():
            self._open.set(count, {"status": status})
        for status, age in census.oldest_s.items():
            self._oldest.set(age, {"status": status})
        self._overdue.set(census.overdue_s)

    def missing(self, count: int) -> None:
        self._missing.set(count)

    def circuit(self, backend: str, host: str, *, is_open: bool) -> None:
        self._circuit.set(int(is_open), {"backend": backend, "host": host})


def set_up() -> Metrics:
    """Return metrics that record if the process has loaded an SDK's metrics; otherwise nothing is
    imported."""
    return OpenTelemetryMetrics() if "opentelemetry.sdk.metrics" in sys.modules else Metrics()
