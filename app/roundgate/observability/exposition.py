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


def set_up() -> Problem | None:
    """Collect the metrics of this process for `render`. Return the problem that prevents it."""
    global _is_set_up
    if _is_set_up:
        return None
    try:
        from opentelemetry import metrics
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
    except ModuleNotFoundError:
        return EXTRA_MISSING
    if isinstance(metrics.get_meter_provider(), MeterProvider):
        return PROVIDER_SET
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    _is_set_up = True
    return None


def render(accept: str) -> tuple[bytes, str]:
    """Return the current metrics and their media type, in a format that `accept` allows."""
    from prometheus_client import REGISTRY
    from prometheus_client.exposition import choose_encoder

    encode, media_type = choose_encoder(accept)
    return encode(REGISTRY), media_type
