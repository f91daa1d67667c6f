"""What is counted of tasks reaches the meter that a process has, and nothing is
imported where it has none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from roundgate.observability import metrics
from roundgate.observability.metrics import Census, Metrics, OpenTelemetryMetrics

CENSUS = Census({"working": 3, "input_required": 1}, {"working": 7.5, "input_required": 0.0}, 2.5)


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


def test_turns_and_the_census_are_measured() -> None:
    reader = InMemoryMetricReader()
    api.set_meter_provider(MeterProvider([reader]))
    using = metrics.set_up()
    assert isinstance(using, OpenTelemetryMetrics)
    using.turn("report", "finished", 12.5)
    using.turn("report", "finished", 7.5)
    using.census(CENSUS)
    using.circuit("api", "h:80", is_open=True)
    found = measured(reader)
    assert found["roundgate.backends.circuit"] == [({"backend": "api", "host": "h:80"}, 1)]
    assert found["turns"] == [({"gen_ai.tool.name": "report", "outcome": "finished"}, 2)]
    assert ({"status": "working"}, 3) in found["open"]
    assert ({"status": "working"}, 7.5) in found["oldest"]
    assert found["overdue"] == [({}, 2.5)]
    assert "turn_time" in found


def test_the_census_is_flat_in_a_log_line() -> None:
    assert CENSUS.fields() == {
        "working": 3,
        "input_required": 1,
        "oldest_working_s": 7.5,
        "oldest_input_required_s": 0.0,
        "overdue_s": 2.5,
    }


def test_a_census_that_is_capped_says_so_in_a_log_line() -> None:
    assert "at_least" not in CENSUS.fields()
    assert replace(CENSUS, is_capped=True).fields() == {**CENSUS.fields(), "at_least": True}


def test_without_an_sdk_nothing_is_imported_or_measured() -> None:
    Metrics().turn("report", "finished", 1)
    Metrics().census(CENSUS)
    Metrics().circuit("api", "h:80", is_open=True)
    code = (
        "import sys; from roundgate.observability import metrics; "
        "print(type(metrics.set_up()).__name__, 'opentelemetry' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["Metrics", "False"]
