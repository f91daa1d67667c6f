"""An event of an HTTP API or of a Function URL (payload 2.0) → the ASGI app →
what the function returns.

    event ── scope_of ──▶ scope ──▶ the app ──▶ Cycle ── response ──▶ {"statusCode": 200, "headers": {…}, "body": "…"}

What Mangum does for these events, to the byte (docs/decisions/0046). Events of other kinds are
Mangum's: see `roundgate.lambda_http`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

Event: TypeAlias = Mapping[str, Any]
Response: TypeAlias = dict[str, Any]

TEXTS: Final = (
    "text/",
    "application/json",
    "application/javascript",
    "application/xml",
    "application/vnd.api+json",
    "application/vnd.oai.openapi",
)
"""Media types whose bodies are returned as text; others in base64."""
_ASGI: Final = {"version": "3.0", "spec_version": "2.0"}
_FAILED: Final = (500, [(b"content-type", b"text/plain; charset=utf-8")], b"Internal Server Error")

log = logging.getLogger("roundgate.lambda")


def is_known(event: Event) -> bool:
    """Whether an event with a `requestContext` is one of payload 2.0."""
    return event.get("version") == "2.0" and isinstance(event["requestContext"].get("http"), dict)


async def answer(app: ASGIApp, event: Event, context: Any) -> Response:
    """The response of an app to an event; 500 if it ends before it has answered."""
    cycle = Cycle(_body_of(event))
    try:
        await app(scope_of(event, context), cycle.receive, cycle.send)
    except BaseException:  # nothing that is called may end the process: others are answered by it
        log.error("an event could not be answered", exc_info=True)
    if not cycle.is_complete:
        return response(*_FAILED)
    return response(cycle.status, cycle.headers, b"".join(cycle.parts))


class Cycle:
    """One request and its answer, as an app receives and sends them."""

    __slots__ = ("_body", "_over", "headers", "is_complete", "parts", "status")

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._over: asyncio.Event | None = None
        self.status = 500
        self.headers: Iterable[tuple[bytes, bytes]] = ()
        self.parts: list[bytes] = []
        self.is_complete = False

    async def receive(self) -> Message:
        """The request; after it, once it has been answered, that nobody listens any more."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self.is_complete:
            self._over = self._over or asyncio.Event()
            await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """A part of the answer; it is returned when it is complete."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message.get("headers", ())
            return
        self.parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            self.is_complete = True
            if self._over is not None:
                self._over.set()


def scope_of(event: Event, context: Any) -> Scope:
    """The request of an event. API Gateway has joined headers of one name already."""
    http = event["requestContext"]["http"]
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    if cookies := event.get("cookies"):
        headers["cookie"] = "; ".join(cookies)
    path = http["path"] or "/"
    return {
        "type": "http",
        "method": http["method"],
        "http_version": "1.1",
        "headers": [(_bytes(name), _bytes(value)) for name, value in headers.items()],
        "path": unquote(path) if "%" in path else path,
        "raw_path": None,
        "root_path": "",
        "scheme": headers.get("x-forwarded-proto", "https"),
        "query_string": _bytes(event.get("rawQueryString", "")),
        "server": _server_of(headers),
        "client": (http.get("sourceIp"), 0),
        "asgi": _ASGI,
        "aws.event": event,
        "aws.context": context,
    }


def _server_of(headers: Mapping[str, str]) -> tuple[str, int]:
    """Host and port, whatever the client sent as `Host`."""
    name, _, port = headers.get("host", "").rpartition(":")
    if name and port.isdecimal():
        return name, int(port)
    port = headers.get("x-forwarded-port", "")
    return headers.get("host", ""), int(port) if port.isdecimal() else 80


def _body_of(event: Event) -> bytes:
    body = event.get("body") or ""
    return base64.b64decode(body) if event.get("isBase64Encoded") else _bytes(body)


def _bytes(text: str) -> bytes:
    """Text of an event as bytes; half a surrogate pair as what no reader of UTF-8 takes."""
    return text.encode("utf-8", "surrogatepass")


def response(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Response:
    """What the function returns. Headers of one name are joined, cookies excepted."""
    named: dict[str, str] = {}
    cookies: list[str] = []
    for key, value in headers:
        name, text = key.decode().lower(), value.decode()
        if name == "set-cookie":
            cookies.append(text)
        else:
            named[name] = f"{named[name]},{text}" if name in named else text
    kind = named.setdefault("content-type", "application/json")
    text, is_encoded = _as_text(body, kind)
    more = {"cookies": cookies} if cookies else {}
    return {
        "statusCode": status,
        "body": text,
        "headers": named,
        **more,
        "isBase64Encoded": is_encoded,
    }


def _as_text(body: bytes, kind: str) -> tuple[str, bool]:
    """A body as a string, and whether it is base64."""
    if not body or any(text in kind for text in TEXTS):
        try:
            return body.decode(), False
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode(), True
