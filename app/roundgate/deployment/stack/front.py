"""API Gateway in front of the gateway function: an HTTP API with payload format 2.0.

What it changes is changed here too: header names in lower case, repeated ones joined;
`Transfer-Encoding` and the like do not pass; `WWW-Authenticate` of an answer comes out as
`x-amzn-Remapped-WWW-Authenticate`. Its own answers: 431 above 10 KB of headers, 413 above 10 MB of
body or 6 MB of event, 503 after 30 s, while the function goes on, or if it is throttled, 500 if it
fails or has answered more than 6 MB of JSON.
"""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from roundgate.deployment.stack.functions import Pool
from roundgate.errors import InvocationFailed, PayloadTooLarge, Throttled

INTEGRATION_S: Final = 30
MAX_REQUEST_BYTES: Final = 10 * 1024 * 1024
MAX_HEADER_BYTES: Final = 10_240
"""Of the request line and all header values."""
NOT_PASSED: Final = {
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
DEFAULT: Final = "$default"
"""The route of requests that no other route matches."""
REMAPPED: Final = {"www-authenticate": "x-amzn-remapped-www-authenticate"}


class Front:
    """Routes of the template to one function."""

    def __init__(
        self,
        pool: Pool,
        routes: Iterable[tuple[str, str]],
        stage: str,
        *,
        integration_s: float = INTEGRATION_S,
    ) -> None:
        self._pool = pool
        self._integration_s = integration_s
        self._routes = sorted(
            ((method, path.split("/")) for method, path in routes), key=_generality
        )
        self._stage = stage
        self.counts: Counter[str] = Counter()
        """Requests, and answers with a 5xx status."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            response = await self._answer(Request(scope, receive))
            self.counts["Count"] += 1
            self.counts["5xx"] += response.status_code >= 500
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        route = self._route(request.method, request.url.path)
        if route is None:
            return _message(404, "Not Found")
        if len(request.url.path) + sum(map(len, request.headers.values())) > MAX_HEADER_BYTES:
            return _message(431, "Request Header Fields Too Large")
        body = await request.body()
        if len(body) > MAX_REQUEST_BYTES:
            return _message(413, "Request Entity Too Large")
        event = self._event(request, route, body)
        try:
            async with asyncio.timeout(self._integration_s):
                answer = await self._pool.invoke(event)
        except (TimeoutError, Throttled):
            return _message(503, "Service Unavailable")
        except PayloadTooLarge:
            return _message(413, "Request Entity Too Large")
        except InvocationFailed:
            return _message(500, "Internal Server Error")
        return _response(answer)

    def _route(self, method: str, path: str) -> str | None:
        for allowed, pattern in self._routes:
            if allowed == DEFAULT:
                return DEFAULT
            if allowed in ("ANY", method) and _matches(pattern, path.split("/")):
                return f"{allowed} {'/'.join(pattern)}"
        return None

    def _event(self, request: Request, route: str, body: bytes) -> dict[str, Any]:
        path = (
            request.url.path if self._stage == "$default" else f"/{self._stage}{request.url.path}"
        )
        try:
            text, is_base64 = body.decode(), False
        except UnicodeDecodeError:
            text, is_base64 = base64.b64encode(body).decode(), True
        source = request.client.host if request.client else "127.0.0.1"
        return {
            "version": "2.0",
            "routeKey": route,
            "rawPath": path,
            "rawQueryString": request.url.query,
            "headers": _headers(request.headers.items())
            | {"x-forwarded-for": source, "x-forwarded-proto": "http"},
            "requestContext": {
                "accountId": "123456789012",
                "apiId": "local",
                "domainName": request.url.netloc,
                "http": {
                    "method": request.method,
                    "path": path,
                    "protocol": "HTTP/1.1",
                    "sourceIp": source,
                    "userAgent": request.headers.get("user-agent", ""),
                },
                "requestId": str(uuid.uuid4()),
                "routeKey": route,
                "stage": self._stage,
                "timeEpoch": int(time.time() * 1000),
            },
            **({"body": text} if body else {}),
            "isBase64Encoded": is_base64,
        }


def _generality(route: tuple[str, list[str]]) -> tuple[bool, ...]:
    """Return a key that sorts routes as API Gateway tries them: the exact path first, then one with
    variables, then a greedy one, then the default."""
    method, pattern = route
    has_variables = any(part.startswith("{") for part in pattern)
    return method == DEFAULT, pattern[-1].endswith("+}"), has_variables, method == "ANY"


def _matches(pattern: list[str], path: list[str]) -> bool:
    for place, part in enumerate(pattern):
        if part.endswith("+}"):
            return len(path) > place
        if place >= len(path) or (part != path[place] and not part.startswith("{")):
            return False
    return len(pattern) == len(path)


def _headers(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in items:
        key = name.lower()
        if key not in NOT_PASSED:
            joined[key] = f"{joined[key]},{value}" if key in joined else value
    return joined


def _message(status: int, text: str) -> Response:
    return JSONResponse({"message": text}, status)


def _response(answer: Mapping[str, Any]) -> Response:
    text = answer.get("body") or ""
    body = base64.b64decode(text) if answer.get("isBase64Encoded") else text.encode()
    headers = {
        REMAPPED.get(name.lower(), name): value
        for name, value in (answer.get("headers") or {}).items()
    }
    passed = {name: value for name, value in headers.items() if name.lower() not in NOT_PASSED}
    return Response(body, answer["statusCode"], passed)
