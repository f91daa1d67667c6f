"""Metrics for Prometheus: the instruments of the process in the text format of `/metrics`.

The parts are OpenTelemetry's exporter and Prometheus' client (extra `prometheus`), which also
reports processor time, memory and open files of the process.
"""

from __future__ import annotations

from typing import Final

from roundgate.errors import Problem

EXTRA_MISSING: Final = Problem(
    "gateway.yaml",
    "http.metrics",
    "needs the extra prometheus, which is not installed",
    "pip install 'roundgate[prometheus]'",
)
PROVIDER_SET: Final = Problem(
    "gateway.yaml",
    "http.metrics",
    "is on, but this process already sends its metrics elsewhere (opentelemetry-instrument)",
    "turn it off, and set OTEL_METRICS_EXPORTER=prometheus,otlp; or start the gateway without "
    "opentelemetry-instrument",
)


_is_set_up = False


def problem() -> Problem | None:
    """Return the problem that prevents `set_up`, or `None`."""
    try:
        from opentelemetry import metrics
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: F401
        from opentelemetry.sdk.metrics import MeterProvider
    except ModuleNotFoundError:
        return EXTRA_MISSING
    is_taken = not _is_set_up and isinstance(metrics.get_meter_provider(), MeterProvider)
    return PROVIDER_SET if is_taken else None


def set_up() -> None:
    """Collect the metrics of this process for `render`, unless `problem` returns one."""
    global _is_set_up
    if _is_set_up:
        return
    from opentelemetry import metrics
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider

    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    _is_set_up = True


def render(accept: str) -> tuple[bytes, str]:
    """Return the current metrics and their media type, in a format that `accept` allows."""
    from prometheus_client import REGISTRY
    from prometheus_client.exposition import choose_encoder

    encode, media_type = choose_encoder(accept)
    return encode(REGISTRY), media_type
