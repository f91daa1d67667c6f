"""Spans and metrics of a running gateway are those of OpenTelemetry's conventions, which
`conventions.yaml` has as a table."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import FastAPI
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from roundgate.backends.aws_lambda.invoking import Invoked
from roundgate.methods.extensions import ROUTES
from roundgate.observability import metrics
from roundgate.observability.outgoing import function_span
from roundgate.protocol.tasks import EXTENSION
from roundgate.protocol.v2026_07_28 import METHODS
from tests.support import wire
from tests.support.asgi import NO_FALLBACK, client
from tests.support.scripted import Asked, Scripted, error, result, scripted, text
from tests.support.services import answer, service
from tests.support.sessions import calling, opened, request
from tests.support.telemetry import Telemetry, recorded
from tests.support.upstreams import Upstream, app_of, process, until
from tests.support.upstreams import tool as entry

HERE = Path(__file__).parent
TABLE = yaml.safe_load((HERE / "conventions.yaml").read_text())
PARENT = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
AROUND = "00-1111111111111111111111111111aaaa-00f067aa0ba90222-01"
OWN = {
    "kind": "python",
    "name": "own",
    "prefix": "",
    "path": str(HERE / "telemetry_tools.py"),
}


@pytest.fixture
def seen() -> Iterator[Telemetry]:
    with recorded() as made:
        yield made


@dataclass(frozen=True)
class Expected:
    """A span: its name, and the conditions of the table that hold."""

    name: str
    conditions: frozenset[str]
    error: str | None = None
    """The value of `error.type`."""


def expected(name: str, *conditions: str, error: str | None = None) -> Expected:
    failed = {"failed"} if error is not None else set()
    return Expected(name, frozenset({"always", *conditions, *failed}), error)


def check(span: ReadableSpan, row: str, one: Expected) -> None:
    """Hold a span to a row of the table."""
    attributes = dict(span.attributes or {})
    table = TABLE["spans"][row]
    assert span.kind is SpanKind[table["kind"]]
    assert span.name == one.name
    levels = table["attributes"]
    due = {name for name, (_, when) in levels.items() if when in one.conditions}
    ours = {name for name in attributes if name.startswith("roundgate.")}
    assert attributes.keys() - ours == due, one
    assert attributes.get("error.type") == one.error
    is_error = span.status.status_code is StatusCode.ERROR
    assert is_error == (one.error is not None), one
    assert not span.events, "exceptions, whose texts may be secret, are not recorded"


def check_metrics(seen: Telemetry, *names: str) -> None:
    """Hold every point of these metrics to the table."""
    metrics = seen.metrics()
    for name in names:
        row, metric = TABLE["metrics"][name], metrics[name]
        required, allowed = set(row["attributes"]["required"]), set(row["attributes"]["allowed"])
        assert metric.unit == row["unit"]
        for point in metric.data.data_points:
            assert list(point.explicit_bounds) == row["buckets"]
            assert required <= point.attributes.keys() <= required | allowed


NAMED = ("request", "version")
SERVED: dict[tuple[str, str], tuple[dict[str, Any], Expected]] = {
    ("tools/list", "list"): ({}, expected("tools/list", *NAMED)),
    ("server/discover", "discover"): ({}, expected("server/discover", *NAMED)),
    ("tools/call", "ok"): (
        {"name": "greet", "arguments": {"name": "secret"}},
        expected("tools/call greet", *NAMED, "tool", "call"),
    ),
    ("tools/call", "tool error"): (
        {"name": "refuse"},
        expected("tools/call refuse", *NAMED, "tool", "call", error="tool_error"),
    ),
    ("tools/call", "unknown"): (
        {"name": "secret-unknown"},
        expected("tools/call", *NAMED, "call", "code"),
    ),
    ("tools/call", "no capability"): (
        {"name": "think"},
        expected("tools/call think", *NAMED, "tool", "call", "code", error="-32021"),
    ),
    ("prompts/get", "prompt"): (
        {"name": "ask", "arguments": {"topic": "secret"}},
        expected("prompts/get ask", *NAMED, "prompt"),
    ),
    ("prompts/get", "broken"): (
        {"name": "broken"},
        expected("prompts/get broken", *NAMED, "prompt", "code", error="-32603"),
    ),
    ("resources/read", "resource"): (
        {"uri": "note://one"},
        expected("resources/read", *NAMED, "resource"),
    ),
    ("secret/method", "method"): ({}, expected("_OTHER", "request", "code")),
    ("tools/call", "bad params"): ({"name": 3}, expected("tools/call", "request", "call", "code")),
}
"""Requests by method and JSON-RPC id."""


@pytest.fixture
async def app(seen: Telemetry) -> AsyncIterator[FastAPI]:
    async with app_of(OWN, fallback=NO_FALLBACK) as app:
        seen.clear()
        yield app


def by_id(spans: Iterable[ReadableSpan]) -> dict[str, ReadableSpan]:
    return {str((span.attributes or {}).get("jsonrpc.request.id")): span for span in spans}


async def test_every_span_of_a_request_is_by_the_convention(app: FastAPI, seen: Telemetry) -> None:
    async with client(app) as mcp:
        for (method, request_id), (params, _) in SERVED.items():
            await mcp.post(method, params, request_id=request_id)
    spans = by_id(seen.spans(SpanKind.SERVER))
    for (_, request_id), (_, one) in SERVED.items():
        check(spans[request_id], "mcp.server", one)
    check_metrics(seen, "mcp.server.operation.duration")
    whole = json.dumps([span.to_json() for span in spans.values()])
    assert "secret" not in whole.replace("note://", ""), "no name, argument or answer of a client"


async def test_a_notification_has_a_span_without_an_id(app: FastAPI, seen: Telemetry) -> None:
    told = wire.message("notifications/cancelled", {"requestId": 1})
    del told["id"]
    async with client(app) as mcp:
        response = await mcp.http.post("/mcp", json=told, headers=wire.headers(told))
    assert response.status_code == 202
    (span,) = seen.spans(SpanKind.SERVER)
    check(span, "mcp.server", expected("notifications/cancelled"))


async def test_requests_of_a_session_have_its_id(app: FastAPI, seen: Telemetry) -> None:
    session = await opened(app)
    await session.send(app, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    await session.send(app, request("ping", request_id="ping"))
    await session.send(app, calling("hello", "call"))
    await session.send(app, calling("secret-unknown", "unknown"))
    await session.send(app, request("secret/method", request_id="method"))
    await session.send(app, request("resources/read", {"uri": "note://none"}, "none"))
    async with client(app) as mcp:
        await mcp.http.delete("/mcp", headers=session.headers())
    spans = seen.spans(SpanKind.SERVER)
    named = ("request", "version", "session")
    check(spans[0], "mcp.server", expected("initialize", "request", "version"))
    notified = expected("notifications/initialized", "version", "session")
    check(spans[1], "mcp.server", notified)
    found = by_id(spans)
    check(found["ping"], "mcp.server", expected("ping", *named))
    check(found["call"], "mcp.server", expected("tools/call hello", *named, "tool", "call"))
    check(found["unknown"], "mcp.server", expected("tools/call", *named, "call", "code"))
    check(found["method"], "mcp.server", expected("_OTHER", *named, "code"))
    check(found["none"], "mcp.server", expected("resources/read", *named, "resource", "code"))
    assert len({(span.attributes or {}).get("mcp.session.id") for span in spans[1:]}) == 1
    assert session.id not in json.dumps([span.to_json() for span in spans])
    check_metrics(seen, "mcp.server.operation.duration", "mcp.server.session.duration")


async def test_the_parent_is_in_meta_and_the_http_request_is_linked(
    app: FastAPI, seen: Telemetry
) -> None:
    asked = wire.message("tools/list")
    asked["params"]["_meta"]["traceparent"] = PARENT
    headers = {**wire.headers(asked), "traceparent": AROUND}
    async with client(app) as mcp:
        await mcp.http.post("/mcp", json=asked, headers=headers)
        await mcp.http.post(
            "/mcp",
            json=wire.message("tools/list"),
            headers={**wire.headers(wire.message("tools/list")), "traceparent": AROUND},
        )
    with_meta, without = seen.spans(SpanKind.SERVER)
    assert with_meta.parent is not None
    assert f"{with_meta.parent.trace_id:032x}-{with_meta.parent.span_id:016x}" in PARENT
    assert [f"{link.context.trace_id:032x}" in AROUND for link in with_meta.links] == [True]
    assert without.parent is not None
    assert f"{without.parent.trace_id:032x}" in AROUND
    assert not without.links


async def test_malformed_trace_context_makes_a_new_trace(app: FastAPI, seen: Telemetry) -> None:
    async with client(app) as mcp:
        for value in ("00-0-0-00", "x" * 600, "\u00e4"):
            asked = wire.message("tools/list")
            asked["params"]["_meta"]["traceparent"] = value
            response = await mcp.http.post("/mcp", json=asked, headers=wire.headers(asked))
            assert response.status_code == 200
    assert all(span.parent is None and not span.links for span in seen.spans(SpanKind.SERVER))


async def test_a_call_through_another_tool_is_of_the_tool_that_ran(seen: Telemetry) -> None:
    async with app_of(OWN, search={}) as app, client(app) as mcp:
        arguments = {"name": "greet", "arguments": {"name": "Ada"}}
        seen.clear()
        await mcp.call("call_tool", arguments)
    (span,) = seen.spans(SpanKind.SERVER)
    check(span, "mcp.server", expected("tools/call greet", *NAMED, "tool", "call"))
    assert (span.attributes or {})["roundgate.through"] == "call_tool"


# requests to servers


def scripted_answer(asked: Asked) -> Any:
    match asked.params["name"]:
        case "works":
            return result(asked, text("done"))
        case "fails":
            return result(asked, {**text("no"), "isError": True})
        case "refuses":
            return error(asked, -32602, "secret")
    return error(asked, 12345, "secret")


def upstream(**more: Any) -> Upstream:
    names = ("works", "fails", "refuses", "invents")
    return Upstream(scripted_answer, [entry(name) for name in names], **more)


@pytest.mark.parametrize("session", [None, "secret-session"], ids=["newest", "older"])
async def test_requests_to_a_server_are_by_the_convention(
    seen: Telemetry, session: str | None
) -> None:
    async with (
        scripted(upstream(session=session)) as server,
        app_of({"kind": "mcp", "name": "up", "url": server.url}) as app,
        client(app) as mcp,
    ):
        seen.clear()
        for name in ("works", "fails", "refuses", "invents"):
            asked = wire.call(f"up__{name}")
            asked["params"]["_meta"]["traceparent"] = PARENT
            await mcp.http.post("/mcp", json=asked, headers=wire.headers(asked))
    named = ("request", "http", *(("session",) if session else ()))
    called = (*named, "tool", "call")
    spans = {span.name: span for span in seen.spans(SpanKind.CLIENT)}
    rows = {
        "works": expected("tools/call works", *called),
        "fails": expected("tools/call fails", *called, error="tool_error"),
        "refuses": expected("tools/call refuses", *called, "code", error="-32602"),
        "invents": expected("tools/call invents", *called, "code", error="_OTHER"),
    }
    for one in rows.values():
        check(spans[one.name], "mcp.client", one)
    whole = json.dumps([span.to_json() for span in seen.spans()])
    assert "secret" not in whole, "neither the session's id nor a server's text"
    check_metrics(seen, "mcp.client.operation.duration")
    if session:
        check_metrics(seen, "mcp.client.session.duration")
    assert traced(server, spans["tools/call works"], "tools/call")


def traced(server: Scripted, span: ReadableSpan, method: str) -> bool:
    """Whether the server received the context of a span, whose parent is the client's trace."""
    asked = next(one for one in server.asked if one.rpc == method)
    sent = asked.params["_meta"]["traceparent"]
    context = span.context
    assert f"{context.trace_id:032x}" in PARENT
    return bool(sent.startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-"))


async def test_a_trace_leads_from_the_client_over_the_worker_to_the_server(
    seen: Telemetry,
) -> None:
    override = {"works": {"task": "required"}}
    async with (
        scripted(upstream()) as server,
        app_of({"kind": "mcp", "name": "up", "url": server.url, "override": override}) as app,
        client(app) as mcp,
    ):
        can: dict[str, Any] = {"extensions": {EXTENSION: {}}}
        params = {"name": "up__works", "arguments": {}}
        asked = wire.message("tools/call", params, clientCapabilities=can)
        asked["params"]["_meta"]["traceparent"] = PARENT
        response = await mcp.http.post("/mcp", json=asked, headers=wire.headers(asked))
        task_id = response.json()["result"]["taskId"]

        async def status() -> Any:
            got = await mcp.post("tasks/get", {"taskId": task_id}, clientCapabilities=can)
            return got.json()["result"]["status"]

        await until("completed", status)
    spans = {(span.kind, span.name): span for span in seen.spans()}
    call = spans[SpanKind.SERVER, "tools/call up__works"]
    turn = spans[SpanKind.CONSUMER, "task up__works"]
    sent = spans[SpanKind.CLIENT, "tools/call works"]
    assert call.parent is not None
    assert f"{call.parent.span_id:016x}" in PARENT
    assert [link.context.span_id for link in turn.links] == [call.context.span_id]
    assert sent.parent is not None
    assert sent.parent.span_id == turn.context.span_id
    received = next(one for one in server.asked if one.rpc == "tools/call").params["_meta"]
    assert f"{sent.context.span_id:016x}" in received["traceparent"]
    ids = [dict(span.attributes or {}).get("roundgate.call.id") for span in (call, turn)]
    assert ids[0] is not None
    assert ids[0] == ids[1]


async def test_a_process_has_a_pipe_and_no_address(seen: Telemetry) -> None:
    async with app_of(process()) as app, client(app) as mcp:
        listed = (await mcp.result("tools/list"))["tools"]
        name = listed[0]["name"].removeprefix("up__")
        seen.clear()
        await mcp.post("tools/call", {"name": f"up__{name}", "arguments": {}})
    spans = {span.name: span for span in seen.spans(SpanKind.CLIENT)}
    span = spans[f"tools/call {name}"]
    attributes = dict(span.attributes or {})
    assert attributes["network.transport"] == "pipe"
    assert not {"server.address", "network.protocol.name"} & attributes.keys()


# HTTP back ends and functions


async def test_requests_to_a_service_are_by_the_convention(seen: Telemetry) -> None:
    async with service(answer(b'{"ok": true}'), answer(b"{}", "503 Down")) as orders:
        tools = [
            {
                "name": "order",
                "path": "/orders/{id}",
                "description": "An order.",
                "arguments": {"id": {"location": "path", "schema": {"type": "string"}}},
            }
        ]
        backend = {
            "kind": "http",
            "name": "api",
            "prefix": "",
            "base_url": f"{orders.url}/v1",
            "tools": tools,
        }
        async with app_of(backend) as app, client(app) as mcp:
            for _ in range(2):
                await mcp.call("order", {"id": "secret-7"})
    works, fails = seen.spans(SpanKind.CLIENT)
    name = "GET /v1/orders/{id}"
    check(works, "http.client", expected(name, "responded"))
    check(fails, "http.client", expected(name, "responded", error="503"))
    assert (works.attributes or {})["url.full"] == f"{orders.url}/v1/orders/{{id}}"
    assert "secret" not in works.to_json()
    context = works.context
    sent = f"traceparent: 00-{context.trace_id:032x}-{context.span_id:016x}-"
    assert sent.encode() in orders.requests[0].lower()
    check_metrics(seen, "http.client.request.duration")


async def test_a_service_that_cannot_be_reached_is_an_error_by_name(seen: Telemetry) -> None:
    async with service(answer()) as gone:
        url = gone.url
    tools = [{"name": "order", "path": "/orders", "description": "Orders."}]
    backend = {"kind": "http", "name": "api", "prefix": "", "base_url": url, "tools": tools}
    async with app_of(backend) as app, client(app) as mcp:
        await mcp.call("order")
    (span,) = seen.spans(SpanKind.CLIENT)
    check(span, "http.client", expected("GET /orders", error="ConnectError"))


def test_an_invocation_of_a_function_is_by_the_conventions(seen: Telemetry) -> None:
    done = Invoked(b"{}", has_failed=False, request_id="id")
    with function_span("Invoke", "orders", "eu-west-1", {}) as span:
        span.invoked(done.request_id, has_failed=done.has_failed)
    with function_span("Invoke", "orders", None, {}) as span:
        span.invoked("id", has_failed=True)
    works, fails = seen.spans()
    check(works, "aws.client", expected("Lambda.Invoke", "responded", "region"))
    check(fails, "aws.client", expected("Lambda.Invoke", "responded", error="FunctionError"))


# the rules


def test_codes_of_callers_faults_are_no_errors_of_the_server() -> None:
    faults = {-32700, -32600, -32601, -32602, -32002}
    assert {code for code in range(-32800, -31900) if not metrics.is_servers_error(code)} == (
        faults
    )


@pytest.mark.parametrize("code", [0, 1, 12345, -1, -33000])
def test_a_code_of_a_stranger_is_other(code: int) -> None:
    assert metrics.known_code(code) == metrics.OTHER


def test_each_method_that_is_served_is_recorded_by_name() -> None:
    served = {*METHODS, *ROUTES}
    assert {method for method in served if metrics.known_method(method) != method} == set()
