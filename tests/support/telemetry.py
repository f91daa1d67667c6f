"""The spans and metrics of this process, kept in memory. A process has one provider of each, so the first test that
wants them sets them up for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@dataclass(frozen=True)
class Telemetry:
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def spans(self, kind: trace.SpanKind | None = None) -> list[ReadableSpan]:
        """The spans that have ended since `clear`, in the order in which they ended."""
        spans = self.exporter.get_finished_spans()
        return [span for span in spans if kind is None or span.kind is kind]

    def clear(self) -> None:
        """Forget the spans so far."""
        self.exporter.clear()

    def metrics(self) -> dict[str, Any]:
        """Every metric that was recorded in this process, by name."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for one in data.resource_metrics for scope in one.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def points(self, name: str, **attributes: Any) -> list[Any]:
        """The points of a metric with these attributes; `__` stands for a dot in their names."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        metric = self.metrics().get(name)
        points = [] if metric is None else metric.data.data_points
        return [point for point in points if wanted.items() <= dict(point.attributes).items()]


@cache
def telemetry() -> Telemetry:
    made = Telemetry()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(made.exporter))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider([made.reader]))
    return made
