"""Requests of AWS's Lambda Web Adapter, which turns the invocations of a function into requests to a
server in the same container (`roundgate docs deploy`, "Streaming from AWS Lambda").

The adapter replaces two headers, whatever a client has sent under their names:

    x-amzn-lambda-context    {"request_id": "8f7d…", "deadline": 1764230400000, …}
    x-amzn-request-context   {"requestId": "BqZ8…", …}, of the Function URL or the API

https://awslabs.github.io/aws-lambda-web-adapter/features/request-context.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate import json
from roundgate.clock import Clock
from roundgate.errors import ParseError
from roundgate.http.exchange import Hosting
from roundgate.observability.tracing import environment

INVOCATION: Final = b"x-amzn-lambda-context"
REQUEST: Final = b"x-amzn-request-context"
MARGIN_MS: Final = 1_000
"""The milliseconds between the deadline of a call and the end of the invocation, reserved to seal,
answer and log."""


class WebAdapterMiddleware:
    """Middleware that ends each call before Lambda ends its invocation, and adds the ids of both to
    the log. It leaves alone what another adapter has turned into a request: there, the headers are
    a client's."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or "aws.event" in scope:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        invocation, request = _members(headers, INVOCATION), _members(headers, REQUEST)
        deadline_ms = invocation.get("deadline")
        if isinstance(deadline_ms, int):
            remaining_ms = deadline_ms - self._clock.now_ms() - MARGIN_MS
            Hosting(max(1.0, remaining_ms)).put(scope)
        ids = {
            "api_request": request.get("requestId"),
            "lambda_request": invocation.get("request_id"),
        }
        with environment({name: value for name, value in ids.items() if isinstance(value, str)}):
            await self._app(scope, receive, send)


def _members(headers: Mapping[bytes, bytes], name: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a header; empty without one."""
    try:
        value = json.decode(headers.get(name, b"{}"))
    except ParseError:
        return {}
    return value if isinstance(value, dict) else {}
