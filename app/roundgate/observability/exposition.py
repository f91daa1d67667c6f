"""Metrics for Prometheus: the instruments of the process in the text format of `/metrics`.

The parts are OpenTelemetry's exporter and Prometheus' client (extra `prometheus`), which also
reports processor time, memory and open files of the process.
"""

from __future__ import annotations

import os
from typing import Any, Final

from roundgate.errors import Problem

EXTRA_MISSING: Final = Problem(
    "gateway.yaml",
    "http.metrics",
    "needs the extra prometheus, which is not installed",
    "pip install 'roundgate[prometheus]'",
)

_exposed: tuple[Any, Any] | None = None
"""The meter provider whose instruments `render` returns, and the registry that collects them: one
of its own, because the exporter of `OTEL_METRICS_EXPORTER=prometheus` may use the default one."""


def problem() -> Problem | None:
    """Return the problem that prevents `set_up`, or `None`."""
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: F401
    except ModuleNotFoundError:
        return EXTRA_MISSING
    return None


def set_up(service: str) -> None:
    """Collect the metrics of this process for `render`, also if `opentelemetry-instrument` sends
    them elsewhere. `service` is the name of the service, unless the environment has one."""
    global _exposed
    from opentelemetry import metrics
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

    provider = metrics.get_meter_provider()
    if _exposed is not None and provider is _exposed[0]:
        return
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
    if isinstance(provider, MeterProvider):
        provider.add_metric_reader(reader)
    else:
        name = os.environ.get("OTEL_SERVICE_NAME") or service
        provider = MeterProvider([reader], Resource.create({SERVICE_NAME: name}))
        metrics.set_meter_provider(provider)
    _exposed = provider, registry


def render(accept: str) -> tuple[bytes, str]:
    """Return the current metrics and their media type, in a format that `accept` allows."""
    from prometheus_client.exposition import choose_encoder

    assert _exposed is not None, "set_up was called"
    encode, media_type = choose_encoder(accept)
    return encode(_exposed[1]), media_type
