"""Set up OpenTelemetry's SDK in a process of the test, as `opentelemetry-instrument` would, and append
every span that ends to the file SPANS as a line of JSON."""

import os

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

if "SPANS" in os.environ:
    provider = TracerProvider(resource=Resource.create())  # OTEL_SERVICE_NAME
    exporter = ConsoleSpanExporter(
        out=open(os.environ["SPANS"], "a", encoding="utf-8"),  # noqa: SIM115 - as long as the process
        formatter=lambda span: span.to_json(indent=None) + "\n",
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
