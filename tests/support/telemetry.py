"""The spans and metrics of this process, kept in memory while a test wants them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.test.globals_test import reset_metrics_globals, reset_trace_globals


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
        """Every metric that was recorded, by name."""
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


@contextmanager
def recorded() -> Iterator[Telemetry]:
    """Record within the block. Afterwards the process has no SDK again, as most tests expect."""
    made, tracers = Telemetry(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(made.exporter))
    meters = MeterProvider([made.reader])
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    try:
        yield made
    finally:
        tracers.shutdown()
        meters.shutdown()
        reset_trace_globals()
        reset_metrics_globals()
