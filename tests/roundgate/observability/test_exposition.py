"""GET /metrics of a running gateway, and the dashboard whose queries it answers."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from roundgate.client import Client
from roundgate.errors import ClientError
from tests.support.documents import ROOT
from tests.support.server import COMMAND, Server, running

DASHBOARD = json.loads((ROOT / "examples" / "monitoring" / "grafana.json").read_text())
TOOLS = '''
from roundgate import Context, ToolError, tool


@tool
async def greet(name: str) -> str:
    """Greets."""
    return f"Hello {name}"


@tool(task="required")
async def later(ctx: Context) -> str:
    """A task."""
    await ctx.continue_as_task()
    return await ctx.step("work", _work)


async def _work() -> str:
    return "done"


@tool
async def refuse() -> str:
    """Fails."""
    raise ToolError("no")
'''
CONFIG = """
http: {metrics: true}
tasks: {poll_interval_ms: 100}
backends:
  - {kind: python, name: own, prefix: "", path: tools.py}
  - {kind: mcp, name: up, url: "%(url)s/mcp"}
  - kind: http
    name: api
    base_url: "%(url)s"
    tools: [{name: health, path: /healthz, description: Health.}]
  - kind: http
    name: away
    base_url: "http://127.0.0.1:9"
    breaker: {failures: 1}
    tools: [{name: away, path: /, description: Never answers.}]
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway in front of another one, which serves the same tools."""
    folders = [tmp_path_factory.mktemp(name) for name in ("behind", "front")]
    for folder in folders:
        (folder / "tools.py").write_text(TOOLS)
    behind, front = (folder / "gateway.yaml" for folder in folders)
    behind.write_text("backends: [{kind: python, name: own, prefix: '', path: tools.py}]\n")
    with running(behind, store(folders[0])) as server:
        front.write_text(CONFIG % {"url": server.url})
        with running(front, store(folders[1])) as gateway:
            yield gateway


def store(folder: Path) -> dict[str, str]:
    return {"GATEWAY_STORE": f"sqlite:///{folder / 'store.sqlite3'}"}


@pytest.fixture(scope="module")
def families(gateway: Server) -> dict[str, Any]:
    """What it exposes after some calls."""
    asyncio.run(call_all(gateway))
    response = httpx.get(f"{gateway.url}/metrics", timeout=60)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert "secret" not in response.text
    return {family.name: family for family in text_string_to_metric_families(response.text)}


async def call_all(gateway: Server) -> None:
    async with Client(f"{gateway.url}/mcp") as client:
        await client.call("greet", name="secret")
        await client.call("refuse")
        await client.call("later")
        await client.call("up__greet", name="secret")
        await client.call("up__refuse")
        await client.call("api__health")
        await client.call("away__away")
        with pytest.raises(ClientError, match="secret-tool"):
            await client.request("tools/call", {"name": "secret-tool", "arguments": {}})


def test_the_durations_of_calls_are_exposed_by_tool(families: dict[str, Any]) -> None:
    samples = families["mcp_server_operation_duration_seconds"].samples
    counts = {
        (sample.labels["gen_ai_tool_name"], sample.labels["error_type"]): sample.value
        for sample in samples
        if sample.name.endswith("_count") and sample.labels["mcp_method_name"] == "tools/call"
    }
    assert counts["greet", ""] == 1
    assert counts["refuse", "tool_error"] == 1
    assert counts["", ""] == 1, "a tool that is not served has no label"


def test_calls_are_counted_by_back_end_with_their_outcome(families: dict[str, Any]) -> None:
    counts = {
        (sample.labels["backend"], sample.labels["gen_ai_tool_name"], sample.labels["outcome"]): (
            sample.value
        )
        for sample in families["roundgate_tools_calls"].samples
    }
    assert counts == {
        ("own", "greet", "ok"): 1,
        ("own", "refuse", "tool_error"): 1,
        ("own", "later", "ok"): 1,  # in a task
        ("up", "up__greet", "ok"): 1,
        ("up", "up__refuse", "tool_error"): 1,
        ("api", "api__health", "ok"): 1,
        ("away", "away__away", "unavailable"): 1,
    }


def queries() -> Iterator[tuple[str, str, str]]:
    """Each query of the dashboard, with the panel and the legend."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


QUERIES = list(queries())
BY = re.compile(r"by \(([^)]*)\)")


@pytest.mark.parametrize(
    ("panel", "query", "legend"), QUERIES, ids=[f"{one[0]}, {one[2]}" for one in QUERIES]
)
def test_each_query_of_the_dashboard_names_what_a_gateway_exposes(
    families: dict[str, Any], panel: str, query: str, legend: str
) -> None:
    samples: dict[str, set[str]] = {}
    for family in families.values():
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    words = re.sub(r'"[^"]*"', "", query)
    (name,) = re.findall(r"\b(?:mcp|http|roundgate|process)_\w+(?=[\[{)]|$)", BY.sub("", words))
    missing_at_rest = {
        *("roundgate_tasks_takeovers_total", "roundgate_queue_messages"),
        *("roundgate_tasks_overdue_seconds",),
    }
    if name in missing_at_rest:
        return  # the next test
    assert name in samples, panel
    used = set(BY.findall(words)) | set(re.findall(r"\{\{(\w+)\}\}", legend))
    labels = {label.strip() for one in used for label in one.split(",")}
    labels |= set(re.findall(r'(\w+)[!=~]+"', query))
    if name.startswith("roundgate_store"):
        labels -= {"error_type"}  # this store has not failed
    assert labels - {"instance"} <= samples[name], panel


def test_metrics_not_yet_recorded_have_the_names_that_the_dashboard_uses() -> None:
    """A takeover and the count of each minute take too long to wait for."""
    code = """
from roundgate.observability import exposition
from roundgate.observability.metrics import Metrics
exposition.set_up("shop"), exposition.set_up("shop")
Metrics().taken_over("t"); Metrics().overdue(1.0, 3)
print(exposition.render("")[0].decode())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in (
        'roundgate_tasks_takeovers_total{gen_ai_tool_name="t"} 1.0',
        "roundgate_queue_messages 3.0",
        "roundgate_tasks_overdue_seconds 1.0",
    ):
        assert name in ran.stdout


def test_each_metric_has_the_name_in_prometheus_that_the_documentation_tells() -> None:
    """Also if the process already sends its metrics elsewhere."""
    code = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
metrics.set_meter_provider(MeterProvider())
from roundgate.observability import exposition
from roundgate.observability.metrics import instruments
exposition.set_up("shop")
for instrument in vars(instruments()).values():
    for name in ("add", "record", "set"):
        if hasattr(instrument, name):
            getattr(instrument, name)(1)
print(exposition.render("")[0].decode())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exposed = re.findall(r"^# TYPE ((?:mcp|http|roundgate)_\w+)", ran.stdout, re.MULTILINE)
    page = (ROOT / "docs" / "observability.md").read_text()
    told = re.findall(
        r"^\| (?:counter|histogram|gauge)[^|]*\| `[^`]+` \| `(\w+)` \|", page, re.MULTILINE
    )
    assert sorted(told) == sorted(exposed)


def test_several_processes_on_one_port_have_no_metrics(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "http: {metrics: true}\nbackends: [{kind: python, name: own, path: tools.py}]\n"
    )
    ran = subprocess.run(
        [*COMMAND, "serve", str(config), "--workers", "2", "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode != 0
    assert "--workers 1" in ran.stderr
