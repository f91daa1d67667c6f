"""What is counted of tasks reaches the meter that a process has, and nothing is
imported where it has none."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from roundgate.observability import metrics
from roundgate.observability.metrics import Metrics, OpenTelemetryMetrics
from tests.support.clocks import FixedClock


def measured(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    data = reader.get_metrics_data()
    assert data is not None
    found = data.resource_metrics[0].scope_metrics[0].metrics
    return {
        metric.name.removeprefix("roundgate.tasks."): [
            (dict(point.attributes or {}), getattr(point, "value", None))
            for point in metric.data.data_points
        ]
        for metric in found
    }


def test_tasks_turns_and_delays_are_measured() -> None:
    reader = InMemoryMetricReader()
    api.set_meter_provider(MeterProvider([reader]))
    using = metrics.set_up()
    assert isinstance(using, OpenTelemetryMetrics)
    using.turn("report", "finished", 12.5)
    using.turn("report", "finished", 7.5)
    using.created("report")
    using.claimed("report")
    using.ended("report", "tool_error")
    using.overdue(2.5)
    using.circuit("api", "h:80", is_open=True)
    found = measured(reader)
    assert found["roundgate.backends.circuit"] == [({"backend": "api", "host": "h:80"}, 1)]
    assert found["turns"] == [({"gen_ai.tool.name": "report", "outcome": "finished"}, 2)]
    tool = {"gen_ai.tool.name": "report"}
    assert found["created"] == found["claimed"] == [(tool, 1)]
    assert found["ended"] == [({**tool, "outcome": "tool_error"}, 1)]
    assert found["overdue"] == [({}, 2.5)]
    assert "turn_time" in found


def test_the_flow_is_what_happened_since_it_was_last_taken() -> None:
    using = Metrics()
    for _ in range(3):
        using.created("report")
    using.claimed("report")
    using.ended("report", "ok")
    assert using.take_flow() == {"created": 3, "claimed": 1, "ended": 1}
    assert using.take_flow() == {"created": 0, "claimed": 0, "ended": 0}


def test_only_a_function_of_aws_lambda_writes_metrics_into_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for function in ("", "worker"):
        Metrics(function, FixedClock()).ended("report", "step_failed")
    (record,) = caplog.records
    fields = record.__dict__["fields"]
    assert (fields["ended"], fields["failed_steps"], fields["function"]) == (1, 1, "worker")
    (directive,) = fields["_aws"]["CloudWatchMetrics"]
    assert [one["Name"] for one in directive["Metrics"]] == ["ended", "failed_steps"]


def test_without_an_sdk_nothing_is_imported_or_measured() -> None:
    Metrics().turn("report", "finished", 1)
    Metrics().overdue(1.0)
    Metrics().circuit("api", "h:80", is_open=True)
    code = (
        "import sys; from roundgate.observability import metrics; "
        "print(type(metrics.set_up()).__name__, 'opentelemetry' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["Metrics", "False"]
