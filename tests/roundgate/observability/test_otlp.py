"""Telemetry as docs/observability.md starts it, with the real command: a collector gets traces,
metrics and logs of gateways and workers, and Prometheus still finds their metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from roundgate.client import Client
from roundgate_aws.machine import reserved_port
from tests.support.documents import ROOT
from tests.support.otlp import Collector, collecting, instrumented, wait_for
from tests.support.server import Server, wait_until_it_answers

PAGE = (ROOT / "docs" / "observability.md").read_text()
TOOLS = '''
from roundgate import Context, tool


@tool
async def greet(name: str) -> str:
    """Greets."""
    return f"Hello {name}"


@tool(task="required")
async def later(ctx: Context) -> str:
    """A task."""
    await ctx.continue_as_task()
    return "done"
'''
CONFIG = """
http: {metrics: %s}
tasks: {poll_interval_ms: 100}
backends: [{kind: python, name: own, prefix: "", path: tools.py}]
"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def files(folder: Path, *, metrics: bool = False) -> dict[str, str]:
    """Write what a process serves; return the environment of its store."""
    (folder / "tools.py").write_text(TOOLS)
    (folder / "gateway.yaml").write_text(CONFIG % str(metrics).lower())
    return {"GATEWAY_STORE": f"sqlite:///{folder / 'store.sqlite3'}"}


def call(server: Server, *tools: str) -> None:
    async def calls() -> None:
        async with Client(f"{server.url}/mcp") as client:
            for tool in tools:
                await (client.call(tool, name="secret") if tool == "greet" else client.call(tool))

    asyncio.run(calls())


def test_the_page_names_the_commands_that_are_run_here() -> None:
    assert "pip install 'roundgate[otel]'" in PAGE
    assert re.search(r"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", PAGE)
    assert "opentelemetry-instrument roundgate serve gateway.yaml" in PAGE
    assert "opentelemetry-instrument roundgate worker gateway.yaml" in PAGE


def test_a_gateway_sends_all_three_signals_beside_its_metrics_for_prometheus(
    tmp_path: Path, collector: Collector
) -> None:
    environment = files(tmp_path, metrics=True) | collector.environment
    with instrumented(tmp_path, environment, "serve") as server:
        wait_until_it_answers(server)
        call(server, "greet", "later")
        wait_for(lambda: "tools/call greet" in {span.name for span in collector.spans()})
        wait_for(lambda: "task later" in {span.name for span in collector.spans()})
        wait_for(lambda: {"roundgate.tools.calls", "roundgate.tasks.ended"} <= collector.metrics())
        wait_for(lambda: "request" in {line.body.string_value for line in collector.logs()})
        assert collector.services() == {"shop"}
        response = httpx.get(f"{server.url}/metrics", timeout=60)
    assert 'roundgate_tools_calls_total{backend="own",gen_ai_tool_name="greet"' in response.text
    assert "otel_scope" not in response.text
    assert 'service_name="shop"' in response.text
    assert "secret" not in str(collector.received)
    requests = [line for line in collector.logs() if line.body.string_value == "request"]
    told = set(re.findall(r"00-(\w{32})-(\w{16})-", str(requests)))
    spans = [span for span in collector.spans() if span.name.startswith("tools/call")]
    assert {(span.trace_id.hex(), span.span_id.hex()) for span in spans} <= told
    assert "Traceback" not in server.log.read_text()


def test_a_worker_sends_its_turns_and_shows_its_metrics_to_prometheus(
    tmp_path: Path, collector: Collector
) -> None:
    store = files(tmp_path)
    with reserved_port() as port:
        prometheus = {
            "OTEL_METRICS_EXPORTER": "prometheus,otlp",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(port),
        }
        of_worker = store | collector.environment | prometheus
        alone = store | collector.environment | {"GATEWAY_WORKER": "off"}
        with (
            instrumented(tmp_path, of_worker, "worker"),
            instrumented(tmp_path, alone, "serve") as server,
        ):
            wait_until_it_answers(server)
            call(server, "later")
            wait_for(lambda: "task later" in {span.name for span in collector.spans()})
            wait_for(lambda: "task" in {line.body.string_value for line in collector.logs()})
            wait_for(lambda: "roundgate.tasks.turn.duration" in collector.metrics())
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    assert "roundgate_tasks_turn_duration_seconds_count{" in text


def test_each_of_several_processes_on_one_port_sends_its_telemetry(
    tmp_path: Path, collector: Collector
) -> None:
    environment = files(tmp_path) | collector.environment
    with instrumented(tmp_path, environment, "serve", "--workers", "2") as server:
        wait_until_it_answers(server)
        call(server, "greet")
        wait_for(lambda: "tools/call greet" in {span.name for span in collector.spans()})
        wait_for(lambda: "roundgate.tools.calls" in collector.metrics())
