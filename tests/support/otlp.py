"""A collector of OpenTelemetry: it keeps what processes send as OTLP over HTTP (protobuf)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from roundgate_aws.machine import reserved_port
from tests.support.server import Server, end, start

OFTEN = {
    "OTEL_METRIC_EXPORT_INTERVAL": "300",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "OTEL_BLRP_SCHEDULE_DELAY": "100",
}
_REQUESTS: Mapping[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class Collector:
    """The telemetry received so far, and the environment that sends it here."""

    def __init__(self, port: int) -> None:
        self.received: list[tuple[str, Any]] = []
        self.environment = {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_SERVICE_NAME": "shop",
        }

    def _of(self, path: str) -> list[Any]:
        return [request for at, request in list(self.received) if at == path]

    def spans(self) -> list[Any]:
        """Every span."""
        return [
            span
            for request in self._of("/v1/traces")
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> set[str]:
        """The name of every metric."""
        return {
            metric.name
            for request in self._of("/v1/metrics")
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def logs(self) -> list[Any]:
        """Every record of the log."""
        return [
            record
            for request in self._of("/v1/logs")
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def services(self) -> set[str]:
        """The names of the services that have sent spans."""
        return {
            attribute.value.string_value
            for request in self._of("/v1/traces")
            for resource in request.resource_spans
            for attribute in resource.resource.attributes
            if attribute.key == "service.name"
        }


@contextmanager
def collecting() -> Iterator[Collector]:
    """Collect within the block, on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind = _REQUESTS[self.path]
            collector.received.append((self.path, kind.FromString(body)))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_port)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def instrumented(folder: Path, environment: dict[str, str], *arguments: str) -> Iterator[Server]:
    """Run a documented command in a folder, on a free port if it serves."""
    scripts = Path(sys.executable).parent
    with reserved_port() as port:
        command = [str(scripts / "opentelemetry-instrument"), "roundgate", *arguments]
        command += [str(folder / "gateway.yaml")]
        if arguments[0] == "serve":
            command += ["--port", str(port)]
        path = {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
        log = folder / f"{arguments[0]}-{port}.log"
        server = Server(start(command, log, OFTEN | environment | path), port, log)
        try:
            yield server
        finally:
            end(server.process)


def wait_for(what: Callable[[], bool], missing: Callable[[], object] = str) -> None:
    """Wait until something is so; then a failure says what is `missing`."""
    until = time.monotonic() + 60
    while not what():
        assert time.monotonic() < until, missing()
        time.sleep(0.1)
