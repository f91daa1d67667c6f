"""Trace context is continued, and every round links to the first, through
the sealed state alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from roundgate import Context, tool
from roundgate.observability import tracing
from roundgate.observability.tracing import Correlation, Tracing, context_of
from roundgate.protocol.tasks import EXTENSION
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import Client, client, gateway, stoppable
from tests.support.rounds import CAPABILITIES, accept, retry
from tests.support.telemetry import recorded

PARENT = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"


class Name(BaseModel):
    name: str


@tool
async def ask(ctx: Context) -> str:
    """Asks for a name."""
    return (await ctx.elicit("who", "Who?", Name)).name


@tool(task="required")
async def greet_later(ctx: Context) -> str:
    """Asks in a round, and goes on as a task."""
    who = await ctx.elicit("who", "Who?", Name)
    await ctx.continue_as_task()
    return who.name


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Spans end up here."""
    with recorded() as seen:
        yield seen.exporter


@pytest.fixture
async def mcp(exporter: InMemorySpanExporter) -> AsyncIterator[Client]:
    exporter.clear()
    async with client(gateway(ask)) as mcp:
        yield mcp


def spans(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [
        span
        for span in exporter.get_finished_spans()
        if span.attributes and "mcp.method.name" in span.attributes
    ]


async def test_a_request_continues_the_trace_that_it_names(
    mcp: Client, exporter: InMemorySpanExporter
) -> None:
    asked = wire.message("tools/list")
    asked["params"]["_meta"]["traceparent"] = PARENT
    await mcp.http.post("/mcp", json=asked, headers=wire.headers(asked))
    (span,) = spans(exporter)
    assert span.name == "tools/list"
    assert (span.attributes or {})["mcp.protocol.version"] == "2026-07-28"
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" in PARENT


async def test_a_later_round_links_to_the_first(
    mcp: Client, exporter: InMemorySpanExporter
) -> None:
    params: dict[str, Any] = {"name": "ask", "arguments": {}}
    asked = (await mcp.post("tools/call", params, clientCapabilities=CAPABILITIES)).json()["result"]
    await mcp.post(
        "tools/call", retry(params, asked, who=accept(name="Ada")), clientCapabilities=CAPABILITIES
    )
    first, second = spans(exporter)
    assert [(link.context.trace_id, link.context.span_id) for link in second.links] == [
        (first.context.trace_id, first.context.span_id)
    ]
    assert not first.links


async def test_the_turns_of_a_task_link_to_the_first_round_of_its_call(
    exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    exporter.clear()
    app = gateway(greet_later, using=Settings(store=f"sqlite:///{tmp_path / 'gateway.sqlite3'}"))
    params: dict[str, Any] = {"name": "greet_later", "arguments": {}}
    can = CAPABILITIES | {"extensions": {EXTENSION: {}}}
    async with stoppable(app), client(app) as mcp:
        asked = (await mcp.post("tools/call", params, clientCapabilities=can)).json()["result"]
        task = (
            await mcp.post(
                "tools/call", retry(params, asked, who=accept(name="Ada")), clientCapabilities=can
            )
        ).json()
        async with asyncio.timeout(60):
            await ended(mcp, task["result"]["taskId"], can)
    first = spans(exporter)[0]
    (turn,) = [span for span in exporter.get_finished_spans() if span.name == "task greet_later"]
    assert [link.context.span_id for link in turn.links] == [first.context.span_id]


async def ended(mcp: Client, task_id: str, capabilities: dict[str, Any]) -> None:
    status = "working"
    while status == "working":
        await asyncio.sleep(0.02)
        response = await mcp.post("tasks/get", {"taskId": task_id}, clientCapabilities=capabilities)
        status = response.json()["result"]["status"]


def test_spans_are_made_where_an_sdk_is_set_up(exporter: InMemorySpanExporter) -> None:
    assert tracing.set_up().tracer is not None


def test_without_an_sdk_the_context_is_passed_on() -> None:
    with Tracing().turn({"traceparent": PARENT}, Correlation("greet"), 1) as span:
        span.link({"traceparent": PARENT})
        span.end("ok")
        assert span.carrier() == {"traceparent": PARENT}


@pytest.mark.parametrize(
    "value", [7, None, ["x"], "x" * 513], ids=["number", "null", "list", "long"]
)
def test_context_that_is_no_text_of_a_sane_length_is_left_out(value: Any) -> None:
    assert context_of({"traceparent": value, "baggage": "a=b"}) == {"baggage": "a=b"}
