"""Host and Origin checks against DNS rebinding (streamable-http, "Security & Endpoint"):
403 before anything else.

An origin that is allowed gets CORS headers and preflights from Starlette's own middleware. Whether
the gateway is alive may be asked under any name: a load balancer asks at an address.

Without authentication, requests that reach the process at another address than loopback are refused
too, whichever server runs the app: everybody who can connect would be its one local subject.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate.errors import TransportError
from roundgate.http import bodies
from roundgate.http.exchange import headers_of
from roundgate.http.responder import Responder
from roundgate.protocol import NEWEST, Headers

log = logging.getLogger("roundgate.request")

HEALTH: Final = "/healthz"
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
MAX_KEPT_BYTES: Final = 256
_ONCE: Final = frozenset({b"host", b"origin"})
_USUAL: Final = ("127.0.0.1", "::1")
_EXPOSED: Final = (
    "There is no authentication, so the gateway serves this machine alone: configure auth, or set"
    " GATEWAY_ALLOW_ANONYMOUS=true if something in front authenticates"
)


class Guard:
    """Lets a request pass if its `Host`, and its `Origin` if it has one, are allowed.

    Args:
        app: the layers inside.
        hosts: names, names with port, `*.suffixes`, or `*`.
        origins: `https://name`, `http://localhost:*`, or `*`.
        own_origin: whether a page may come from where this very request was sent
            to: the same name and port.
        loopback_only: whether only requests to a loopback address of this machine are served.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Sequence[str],
        origins: Sequence[str],
        own_origin: bool = False,
        loopback_only: bool = False,
    ) -> None:
        self._app = app
        # for browsers alone, and for allowed origins alone: the check has refused every other by
        # then
        self._cors = CORSMiddleware(
            app,
            allow_origins=["*"],
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["WWW-Authenticate", "Mcp-Session-Id"],
        )
        self._hosts = frozenset(host.lower() for host in hosts)
        # a name that `*` alone lets pass may be anybody's: pages from there are not from here
        self._own_names = (self._hosts - {"*"}).union(LOOPBACK) if own_origin else frozenset[str]()
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        # spellings that passed, at most a few: a Host is parsed once
        self._known_hosts: set[bytes] = set()
        self._loopback_only = loopback_only

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        headers = headers_of(scope)
        origin = headers.get(b"origin")
        is_probe = scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD") and origin is None
        if not is_probe and (refusal := self._refusal(headers, scope.get("server"))):
            log.info(
                "request", extra={"fields": {"status": 403, "outcome": "refused", "error": refusal}}
            )
            return self._refuse(refusal, scope, receive, send)
        return (self._app if origin is None else self._cors)(scope, receive, send)

    async def _refuse(self, refusal: str, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = await bodies.read_id(scope["method"], headers_of(scope), receive)
        await Responder(send).error(TransportError(403, refusal), request_id, NEWEST)

    def _refusal(self, headers: Headers, server: Any) -> str | None:
        if self._loopback_only and not (_is_loopback(server) and _is_from_here(headers)):
            return _EXPOSED
        # who is in front of us, or behind, might look at the other one
        if not _ONCE.isdisjoint(headers.repeated):
            return "Host and Origin may be sent once"
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        if host not in self._known_hosts:
            if not host_allowed(host.decode("latin-1").strip().lower(), self._hosts):
                return (
                    f"Host {_shown(host)} is not allowed; add it to http.allowed_hosts, or set "
                    "GATEWAY_PUBLIC_URL"
                )
            if len(self._known_hosts) < 100 and len(host) <= MAX_KEPT_BYTES:
                self._known_hosts.add(host)
        if origin is not None and not self._is_allowed(
            origin.decode("latin-1").strip().lower(), host
        ):
            return (
                f"Origin {_shown(origin)} is not allowed; add it to http.allowed_origins, or "
                "set GATEWAY_PUBLIC_URL"
            )
        return None

    def _is_allowed(self, origin: str, host: bytes) -> bool:
        if origin_allowed(origin, self._origins):
            return True
        name = host.decode("latin-1").strip().lower()
        is_own = origin in (f"http://{name}", f"https://{name}")
        return is_own and host_allowed(name, self._own_names)


def host_allowed(host: str, allowed: frozenset[str]) -> bool:
    """Whether a lower-case Host value matches a name, a name with port, a `*.suffix` or `*`."""
    if "*" in allowed or host in allowed:
        return True
    name = (
        host[: host.index("]") + 1]
        if host.startswith("[") and "]" in host
        else host.partition(":")[0]
    )
    return name in allowed or any(
        rule.startswith("*.") and name.endswith(rule[1:]) for rule in allowed
    )


def origin_allowed(origin: str, allowed: frozenset[str]) -> bool:
    """Whether a lower-case Origin value matches an origin or `*`;
    `http://localhost:*` matches any port."""
    if "*" in allowed or origin in allowed:
        return True
    base, _, port = origin.rpartition(":")
    return f"{origin}:*" in allowed or (port.isdecimal() and f"{base}:*" in allowed)


def public_origins(public_url: str | None) -> list[str]:
    """The origin of the URL that clients use."""
    if public_url is None:
        return []
    parts = urlsplit(public_url)
    return [f"{parts.scheme}://{parts.netloc}"]


def default_hosts(public_url: str | None, on_lambda: bool) -> list[str]:
    """What `http.allowed_hosts` is when it is not set.

    Args:
        public_url: `GATEWAY_PUBLIC_URL`; `None` if it is not set.
        on_lambda: whether this is a function on AWS Lambda, which no browser can
            reach under a name of its own.
    """
    if on_lambda:
        return ["*"]
    public = urlsplit(public_url or "").hostname
    if public is None:
        return list(LOOPBACK)
    return [*LOOPBACK, f"[{public}]" if ":" in public else public]


def _is_loopback(server: Any) -> bool:
    """Whether the address at which a connection was accepted is this machine's own; a name
    or a path says nothing."""
    # AWS Lambda has the Host header there
    if not server or server[0] in _USUAL or len(server[0]) > MAX_KEPT_BYTES:
        return True
    return _is_own(server[0])


_FORWARDED: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"cf-connecting-ip"})
_ADDRESS: Final = re.compile(r"[0-9A-Fa-f.:]*[.:][0-9A-Fa-f.:]*")


def _is_from_here(headers: Headers) -> bool:
    """Return whether no proxy on this machine reports that the request came from another one. A
    proxy appends to a client's value, so a value too long to read whole does not count as local."""
    if _FORWARDED.isdisjoint(headers):
        return True
    values = [headers[name] for name in _FORWARDED if name in headers]
    return all(len(value) <= MAX_KEPT_BYTES for value in values) and all(
        _is_own(one.rpartition(":")[0] if one.count(":") == 1 else one)
        for value in values
        for one in _ADDRESS.findall(value.decode("latin-1"))
    )


@lru_cache(maxsize=64)
def _is_own(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return True
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _shown(value: bytes) -> str:
    return repr(value.decode("latin-1")[:100])
