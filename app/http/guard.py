"""Host and Origin checks against DNS rebinding (streamable-http, "Security & Endpoint"): 403 before anything else.

An origin that is allowed gets CORS headers and preflights from Starlette's own middleware. Whether the gateway is alive
may be asked under any name: a load balancer asks at an address.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import TransportError
from app.http.responder import Responder

log = logging.getLogger("app.request")

HEALTH: Final = "/healthz"
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """Lets a request pass if its `Host`, and its `Origin` if it has one, are allowed."""

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], origins: Sequence[str]) -> None:
        self._app = app
        # for browsers alone, and for allowed origins alone: the check has refused every other by then
        self._cors = CORSMiddleware(app, allow_origins=["*"], allow_methods=["POST"], allow_headers=["*"])
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._known_hosts: set[bytes] = set()  # spellings that passed, at most a few: a Host is parsed once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict[bytes, bytes](scope["headers"])
        origin = headers.get(b"origin")
        is_probe = scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD") and origin is None
        if not is_probe and (refusal := self._refusal(headers.get(b"host", b""), origin)):
            log.info("request", extra={"fields": {"status": 403, "outcome": "refused", "error": refusal}})
            await Responder(send).error(TransportError(403, refusal), None)
        else:
            await (self._app if origin is None else self._cors)(scope, receive, send)

    def _refusal(self, host: bytes, origin: bytes | None) -> str | None:
        if host not in self._known_hosts:
            if not host_allowed(host.decode("latin-1").strip().lower(), self._hosts):
                return f"Host {_shown(host)} is not allowed; add it to http.allowed_hosts, or set GATEWAY_PUBLIC_URL"
            if len(self._known_hosts) < 100:
                self._known_hosts.add(host)
        if origin is not None and not origin_allowed(origin.decode("latin-1").strip().lower(), self._origins):
            return f"Origin {_shown(origin)} is not allowed; add it to http.allowed_origins, or set GATEWAY_PUBLIC_URL"
        return None


def host_allowed(host: str, allowed: frozenset[str]) -> bool:
    """Whether a lower-case Host value matches a name, a name with port, a `*.suffix` or `*`."""
    if "*" in allowed or host in allowed:
        return True
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
    return name in allowed or any(rule.startswith("*.") and name.endswith(rule[1:]) for rule in allowed)


def origin_allowed(origin: str, allowed: frozenset[str]) -> bool:
    """Whether a lower-case Origin value matches an origin or `*`; `http://localhost:*` matches any port."""
    if "*" in allowed or origin in allowed:
        return True
    base, _, port = origin.rpartition(":")
    return f"{origin}:*" in allowed or (port.isdecimal() and f"{base}:*" in allowed)


def default_hosts(public_url: str | None, on_lambda: bool) -> list[str]:
    """What `http.allowed_hosts` is when it is not set."""
    if on_lambda:
        return ["*"]
    public = urlsplit(public_url or "").hostname
    if public is None:
        return list(LOOPBACK)
    return [*LOOPBACK, f"[{public}]" if ":" in public else public]


def default_origins(public_url: str | None) -> list[str]:
    """What `http.allowed_origins` is when it is not set."""
    local = [f"{scheme}://{name}:*" for name in LOOPBACK for scheme in ("http", "https")]
    if public_url is None:
        return local
    parts = urlsplit(public_url)
    return [*local, f"{parts.scheme}://{parts.netloc}"]


def _shown(value: bytes) -> str:
    return repr(value.decode("latin-1")[:100])
