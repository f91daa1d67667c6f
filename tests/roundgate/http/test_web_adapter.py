"""Requests behind AWS's Lambda Web Adapter: a call ends before the invocation does, and the log has
the ids of both."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, tool
from roundgate.http.web_adapter import MARGIN_MS
from roundgate.observability.tracing import members_here
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import Exchange, built, client, config_file
from tests.support.clocks import FixedClock, pass_time
from tests.support.functions import EVERYTHING

LIMIT_S = 47


@tool
async def left(ctx: Context) -> float | None:
    """Return the milliseconds that the call may take."""
    return ctx.deadline.remaining_ms()


@tool
async def ids() -> dict[str, str]:
    """Return the ids in the log lines of the call."""
    return members_here()


def make_app(clock: FixedClock, *, on_lambda: bool) -> FastAPI:
    using = Settings(on_lambda=on_lambda, allow_anonymous=True, listen="on")
    limits = {"call_timeout_s": LIMIT_S}
    return built(config_file(*EVERYTHING, left, ids, limits=limits), using, clock=clock)


def of_adapter(clock: FixedClock, remaining_ms: int) -> dict[str, str]:
    """The headers that the adapter sends with an invocation."""
    invocation = {
        "request_id": "8f7d3b1e",
        "deadline": clock.now_ms() + remaining_ms,
        "invoked_function_arn": "arn:aws:lambda:eu-central-1:123456789012:function:gateway",
        "env_config": {"function_name": "gateway", "memory": 1024},
    }
    request = {"requestId": "BqZ8fjVd", "stage": "$default", "http": {"method": "POST"}}
    return {
        "x-amzn-lambda-context": json.dumps(invocation),
        "x-amzn-request-context": json.dumps(request),
    }


async def told(app: FastAPI, tool_name: str, headers: dict[str, str]) -> Any:
    async with client(app) as mcp:
        params = {"name": tool_name, "arguments": {}}
        response = await mcp.post("tools/call", params, headers={**headers})
        return response.json()["result"]["structuredContent"]


@pytest.mark.parametrize(
    ("remaining_ms", "left_ms"), [(10_000, 10_000 - MARGIN_MS), (900_000, LIMIT_S * 1000)]
)
async def test_a_call_ends_before_its_invocation(remaining_ms: int, left_ms: int) -> None:
    clock = FixedClock()
    app = make_app(clock, on_lambda=True)
    assert await told(app, "left", of_adapter(clock, remaining_ms)) == left_ms


async def test_a_client_cannot_set_a_deadline_where_no_adapter_is() -> None:
    clock = FixedClock()
    app = make_app(clock, on_lambda=False)
    answer = await told(app, "left", of_adapter(clock, 900_000))
    assert answer == LIMIT_S * 1000


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"deadline": "soon"}', '{"deadline": null}']
)
async def test_a_header_without_a_deadline_leaves_the_usual_limit(text: str) -> None:
    app = make_app(FixedClock(), on_lambda=True)
    assert await told(app, "left", {"x-amzn-lambda-context": text}) == LIMIT_S * 1000


async def test_lines_of_the_log_have_the_ids_of_the_invocation_and_of_the_request() -> None:
    clock = FixedClock()
    found = await told(make_app(clock, on_lambda=True), "ids", of_adapter(clock, 10_000))
    assert (found["lambda_request"], found["api_request"]) == ("8f7d3b1e", "BqZ8fjVd")


async def test_a_request_of_an_invocation_that_is_over_is_still_answered() -> None:
    clock = FixedClock()
    async with client(make_app(clock, on_lambda=True)) as mcp:
        headers: dict[str, str | None] = {**of_adapter(clock, -60_000)}
        response = await mcp.post("tools/list", headers=headers)
    assert response.status_code == 200


async def test_a_stream_of_changes_ends_before_its_invocation() -> None:
    clock = FixedClock()
    app = make_app(clock, on_lambda=True)
    asked = wire.message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    headers = {**wire.headers(asked), **of_adapter(clock, 600_000)}
    async with Exchange(app, asked, headers) as stream:
        acknowledged = await stream.event()
        assert acknowledged is not None
        pass_time(600)
        (closing,) = await stream.rest()
    assert closing["id"] == 1
    assert "result" in closing
