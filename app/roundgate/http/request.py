"""The two layers in front of every request: `Guard` checks its Host and Origin, `RequestMiddleware`
checks its head, authenticates its caller, and turns its outcome into one answer and one log line.

    an MCP endpoint            POST, JSON in, JSON or a stream out; in a session of an older revision
                               GET and DELETE too; every caller that the configuration lets in
    /healthz, /readyz,         everyone: probes, and the documents that a client needs to get a token;
    /.well-known/…             `/healthz` has more for operators
    /events/…                  everyone: the path has a token of its own (`http.routes`)
    /console/…                 everyone: `console.access` lets operators in, by a session or a token
    anything else              operators

The head is checked before the caller, so that a client that tries GET learns that GET is not
served, rather than that a token is missing. An operator is a caller whose token has
`auth.operator_scope`; if that is not set, there are no operators. Without authentication the one
local subject is an operator if the gateway serves this machine alone.

An `AuthError` is answered with OAuth's challenge, any other `GatewayError` as a JSON-RPC error, and
an unexpected exception with a reference to the log. Starlette answers the last outside the MCP
endpoints.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate import json
from roundgate.aio import ROOM, is_draining
from roundgate.auth import LOCAL, Verifier
from roundgate.clock import Clock
from roundgate.errors import (
    AuthError,
    Draining,
    GatewayError,
    InsufficientScope,
    InternalError,
    TransportError,
    Unavailable,
)
from roundgate.http import bodies
from roundgate.http.arrival import STATE
from roundgate.http.exchange import (
    EVENT_STREAM,
    JSON,
    MAX_ADDRESS,
    Exchange,
    Responder,
    State,
    forget_exchange,
    request_headers,
)
from roundgate.http.protected import ProtectedResource
from roundgate.http.routes import HEALTH, OLD_TRANSPORT, READINESS
from roundgate.net.addresses import canonical_host, canonical_origin, client_address, host_of
from roundgate.observability.metrics import count_auth_refused
from roundgate.protocol import NEWEST, Headers, jsonrpc, may_be_older
from roundgate.protocol import SESSION_HEADER as SESSION
from roundgate.tasks.external import is_event_path

log = logging.getLogger("roundgate.request")
failures = logging.getLogger("roundgate.http")

_BOTH: Final = frozenset({JSON, EVENT_STREAM})
PROBED: Final = frozenset({HEALTH, READINESS})
OPEN: Final = PROBED | {OLD_TRANSPORT}
"""The paths that need no authentication."""
PUBLIC: Final = "/.well-known/"
"""The prefix of paths that clients read before they have a token (RFC 8615), whether they have a
document or not."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
MAX_KEPT_BYTES: Final = 256
"""The maximum length of a header value that is cached or fully parsed, in bytes."""
MAX_RANGES: Final = 64
"""The number of media ranges of an Accept header that are read."""
MAX_QUERY_FIELDS: Final = 256
"""The limit on the fields of a query, which open paths parse before anyone is authenticated."""
REFUSED: Final = -32600
"""The JSON-RPC code of a request that is refused with 401 or 403, in every revision."""
_ONCE: Final = frozenset({b"host", b"origin"})
_USUAL: Final = ("127.0.0.1", "::1")
_FORWARDING: Final = frozenset(
    {
        *(b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip"),
        *(b"x-cluster-client-ip", b"x-envoy-external-address", b"fastly-client-ip"),
        *(b"fly-client-ip", b"x-azure-clientip"),
    }
)
_FORWARDING_PREFIXES: Final = (b"x-forwarded", b"x-original-", b"cf-")
_ELSEWHERE: Final = "roundgate.elsewhere"
"""The member of the ASGI scope of a probe that `Guard` would refuse on any other path."""
_NO_STATE: Final[Mapping[str, Any]] = {}
_EXPOSED: Final = (
    "There is no authentication, so the gateway serves this machine alone: configure auth, or set"
    " GATEWAY_ALLOW_ANONYMOUS=true if something in front authenticates"
)


class Guard:
    """Host and Origin checks against DNS rebinding: 403 before anything else (streamable-http,
    "Security & Endpoint").

    Starlette's middleware answers preflights of an allowed origin and adds CORS headers. `/healthz`
    and `/readyz` are open under every host name, because a load balancer uses an IP address.

    Args:
        app: the layers inside.
        hosts: names, names with port, `*.suffixes`, or `*`.
        origins: `https://name`, `http://localhost:*`, or `*`.
        own_origin: whether to allow pages from the name and port to which the request was sent.
        loopback_only: whether to serve only requests to a loopback address of this machine.
            Without authentication every other client would be the one local subject.
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
        # gets requests from allowed origins only: `_refusal` refuses all others
        self._cors = CORSMiddleware(
            app,
            allow_origins=["*"],
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["WWW-Authenticate", "Mcp-Session-Id"],
        )
        self._hosts = frozenset(host.lower() for host in hosts)
        self._known_host = lru_cache(maxsize=64)(self._allows_host)
        # a name that only `*` allows may be an attacker's: do not trust its pages
        self._own_names = (self._hosts - {"*"}).union(LOOPBACK) if own_origin else frozenset[str]()
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._loopback_only = loopback_only

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        headers = request_headers(scope)
        origin = headers.get(b"origin")
        refusal = self._refusal(headers, scope.get("server"))
        if refusal is None:
            return (self._app if origin is None else self._cors)(scope, receive, send)
        if scope["path"] in PROBED and scope["method"] in ("GET", "HEAD") and origin is None:
            scope[_ELSEWHERE] = True
            return self._app(scope, receive, send)
        client = scope.get("client")
        address = {"address": client[0][:MAX_ADDRESS]} if client else {}
        fields = {"status": 403, "outcome": "refused", "error": refusal, **address}
        log.info("request", extra={"fields": fields})
        return self._refuse(refusal, scope, receive, send)

    async def _refuse(self, refusal: str, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = await bodies.read_id(scope["method"], request_headers(scope), receive)
        await Responder(send).error(TransportError(403, refusal), request_id, NEWEST)

    def _refusal(self, headers: Headers, server: Any) -> str | None:
        if self._loopback_only and not (_is_loopback(server) and _is_direct(tuple(headers))):
            return _EXPOSED
        # with two values, a proxy might use the value that is not checked here
        if not _ONCE.isdisjoint(headers.repeated):
            return "Host and Origin may each be sent only once"
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        allows = self._known_host if len(host) <= MAX_KEPT_BYTES else self._allows_host
        if not allows(host):
            return (
                f"Host {_shown(host)} is not allowed; add it to http.allowed_hosts, or set "
                "GATEWAY_PUBLIC_URL"
            )
        if origin is not None and not self._is_allowed(
            origin.decode("latin-1").strip().lower(), host
        ):
            return (
                f"Origin {_shown(origin)} is not allowed; add it to http.allowed_origins, or "
                "set GATEWAY_PUBLIC_URL"
            )
        return None

    def _allows_host(self, host: bytes) -> bool:
        return host_allowed(host.decode("latin-1").strip().lower(), self._hosts)

    def _is_allowed(self, origin: str, host: bytes) -> bool:
        if origin_allowed(origin, self._origins):
            return True
        name = host.decode("latin-1").strip().lower()
        is_own = origin in (f"http://{name}", f"https://{name}")
        return is_own and host_allowed(name, self._own_names)


def host_allowed(host: str, allowed: frozenset[str]) -> bool:
    """Return whether a lower-case Host value matches a name, a name with port, a `*.suffix` or `*`."""
    if "*" in allowed:
        return True
    name = host_of(host)
    return name is not None and (
        host in allowed
        or name in allowed
        or any(rule.startswith("*.") and name.endswith(rule[1:]) for rule in allowed)
    )


def origin_allowed(origin: str, allowed: frozenset[str]) -> bool:
    """Return whether a lower-case Origin value matches an origin or `*`; `http://localhost:*`
    matches any port."""
    if "*" in allowed or origin in allowed:
        return True
    base, _, port = origin.rpartition(":")
    return f"{origin}:*" in allowed or (port.isdecimal() and f"{base}:*" in allowed)


def public_origins(public_url: str | None) -> list[str]:
    """Return the origin of the URL that clients use, if there is one."""
    if public_url is None:
        return []
    return [canonical_origin(public_url)]


def default_hosts(public_url: str | None, on_lambda: bool) -> list[str]:
    """Return the default of `http.allowed_hosts`. On AWS Lambda it allows all: no browser can reach
    a function under an attacker's host name."""
    if on_lambda:
        return ["*"]
    if public_url is None:
        return list(LOOPBACK)
    public = canonical_host(public_url)
    return [*LOOPBACK, f"[{public}]" if ":" in public else public]


def _is_loopback(server: Any) -> bool:
    """Return whether a connection was accepted at a loopback address. A name (on AWS Lambda the
    Host header) or the path of a socket counts as loopback."""
    if not server or server[0] in _USUAL or len(server[0]) > MAX_KEPT_BYTES:
        return True
    return _is_own(server[0])


@lru_cache(maxsize=64)
def _is_direct(names: Sequence[bytes]) -> bool:
    """Return whether no proxy forwarded the request with headers of these names. Its client may be
    anywhere, whatever address the proxy reports. Cached, because clients repeat their headers; a
    head has at most `http.max_header_bytes`."""
    return not any(name.startswith(_FORWARDING_PREFIXES) for name in names) and (
        _FORWARDING.isdisjoint(names)
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


class RequestMiddleware:
    """Turns every outcome of the inner layers into one answer and one log line.

    Args:
        app: the layers inside, for all other requests.
        endpoint: answers a request to an MCP endpoint, given its HTTP method (`http.endpoint`).
        endpoints: the view at each path of an MCP endpoint.
        resources: each view as a protected resource; empty without authentication.
        verifiers: the verifier of each view, the default verifier first.
        nothing: the app for callers that are not operators and cannot become operators.
        operator_scope: the scope of operators; `None` if there is none.
        console: the path of the console, which authenticates its callers itself
            (`console.access`); `None` without a console.
        local_operates: whether the one subject of a gateway without authentication is an operator.
        clock: the source of references for unexpected exceptions.
        send_s: seconds that a client may take for one event.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        endpoint: Callable[[str, Receive, Exchange], Awaitable[None]],
        endpoints: Mapping[str, str],
        resources: Mapping[str, ProtectedResource],
        verifiers: Mapping[str, Verifier],
        nothing: ASGIApp,
        operator_scope: str | None,
        local_operates: bool,
        clock: Clock,
        send_s: float,
        console: str | None = None,
    ) -> None:
        self._app = app
        self._endpoint = endpoint
        self._console = None if console is None else (console, console + "/")
        self._endpoints = {
            spelled: view for path, view in endpoints.items() for spelled in (path, path + "/")
        }
        self._resources = resources
        self._usual = next(iter(resources.values()), None)
        self._verifiers = verifiers
        self._usual_verifier = next(iter(verifiers.values()))
        self._nothing = nothing
        self._operator_scope = operator_scope
        self._local_operates = local_operates
        self._clock = clock
        self._send_s = send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # refused: its caller would not be authenticated
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        exchange = Exchange(scope, self._endpoints, Responder(send, self._send_s))
        exchange.resource = self._resources.get(exchange.view, self._usual)
        try:
            try:
                if scope.get("query_string", b"").count(b"&") >= MAX_QUERY_FIELDS:
                    raise TransportError(414, f"The query has more than {MAX_QUERY_FIELDS} fields")
                if exchange.is_mcp:
                    exchange.accepted = _check(scope["method"], exchange.headers)
                    exchange.principal = principal = await self._verifiers[exchange.view].principal(
                        exchange.headers.get(b"authorization"), exchange.host.claims
                    )
                    if (connection := scope.get("state", _NO_STATE).get(STATE)) is not None:
                        connection.caller = (
                            client_address(exchange.address)
                            if principal is LOCAL
                            else principal.identity
                        )
                        if not connection.is_idle:
                            await connection.wait()
                        ROOM.set(connection)  # uvicorn serves each request in a context of its own
                    await self._endpoint(scope["method"], receive, exchange)
                else:
                    app = self._app if await self._is_open_to(scope, exchange) else self._nothing
                    await app(scope, receive, exchange.responder.relay)
            except GatewayError as error:
                await self._answer_error(error, scope["method"], receive, exchange)
            except ClientDisconnect:
                exchange.label = "cancelled"
            except Exception as error:
                if not exchange.is_mcp:
                    raise
                reference = self._clock.new_id()
                failures.error(
                    "request failed", exc_info=error, extra={"fields": {"reference": reference}}
                )
                await self._fail(InternalError(reference), exchange)
        except asyncio.CancelledError:
            exchange.label = "cancelled"
            is_open = exchange.is_mcp or exchange.responder.state is State.NOTHING_SENT
            if not (is_open and is_draining()):
                raise
            # the server cancels requests that outlast the grace; it would answer with a bare 500
            await self._fail(Draining(), exchange)
        finally:
            if exchange.is_mcp or exchange.error is not None:
                exchange.write_line((time.perf_counter() - started) * 1000)
            forget_exchange(scope)

    async def _is_open_to(self, scope: Scope, exchange: Exchange) -> bool:
        """Return whether the caller may use a path that is not an MCP endpoint.

        Raises:
            AuthError: the caller needs a token, or a token with the scope of operators.
        """
        if exchange.path == HEALTH:
            with suppress(GatewayError):  # probes have no token
                exchange.operates = _ELSEWHERE not in scope and await self._operates(exchange)
            return True
        return (
            exchange.path in OPEN
            or exchange.path.startswith(PUBLIC)
            # the path of an external event has a token of its own
            or (scope["method"] == "POST" and is_event_path(exchange.path))
            or self._is_console(exchange.path)
            or await self._operates(exchange)
        )

    async def _operates(self, exchange: Exchange) -> bool:
        """Authenticate the caller, and return whether it is an operator; False if it cannot become
        one.

        Raises:
            AuthError: the caller needs a token, or a token with the scope of operators.
        """
        exchange.principal = await self._usual_verifier.principal(
            exchange.headers.get(b"authorization"), exchange.host.claims
        )
        if self._operator_scope is None:
            return self._local_operates
        if self._operator_scope not in exchange.principal.scopes:
            raise InsufficientScope("this address", [self._operator_scope])
        return True

    def _is_console(self, path: str) -> bool:
        """Return whether a path is the console's."""
        return self._console is not None and (
            path == self._console[0] or path.startswith(self._console[1])
        )

    async def _answer_error(
        self, error: GatewayError, method: str, receive: Receive, exchange: Exchange
    ) -> None:
        if exchange.is_mcp and not exchange.is_read:
            exchange.is_read = True
            exchange.request_id = await bodies.read_id(method, exchange.headers, receive)
        if isinstance(error, AuthError):
            count_auth_refused(error.kind)
            await self._challenge(error, exchange)
            return
        if exchange.is_mcp and exchange.principal is None and isinstance(error, Unavailable):
            count_auth_refused("keys unavailable")
        await self._fail(error, exchange)

    async def _challenge(self, error: AuthError, exchange: Exchange) -> None:
        """Send 401 or 403 with its challenge (RFC 6750 section 3).

        The body is a JSON-RPC error if the id of the request is known, because clients show no
        other error. Otherwise it is an OAuth error.
        """
        error, resource = exchange.refused(error), exchange.resource
        challenge = b"Bearer" if resource is None else resource.challenge(error)
        members = {"error": error.error or "unauthorized", "error_description": str(error)}
        if exchange.request_id is None:
            body = json.encode(members)
        else:
            body = jsonrpc.error_response(exchange.request_id, REFUSED, str(error), members)
        await exchange.responder.answer(error.status, body, [(b"www-authenticate", challenge)])

    async def _fail(self, error: GatewayError, exchange: Exchange) -> None:
        exchange.code = exchange.revision.look_up(error).code
        exchange.label, exchange.error = error.outcome, str(error)
        if exchange.responder.state is not State.DONE:
            await exchange.responder.error(error, exchange.request_id, exchange.revision)


def _check(method: str, headers: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """Return the media types that the client accepts, of JSON and event streams.

    Raises:
        TransportError: the endpoint does not serve the HTTP method or the media types.
    """
    accept = headers.get(b"accept")
    if method in ("GET", "DELETE") and SESSION in headers and may_be_older(headers):
        accepted = _BOTH if accept is None or method == "DELETE" else _media(accept)
        if EVENT_STREAM not in accepted:
            raise TransportError(
                406, "GET answers with a stream: the Accept header must list text/event-stream"
            )
        return accepted
    if method != "POST":
        raise TransportError(
            405,
            "The MCP endpoint accepts POST only; revision 2026-07-28 has no GET stream and no "
            "sessions",
            [(b"allow", b"POST")],
        )
    content_type = headers.get(b"content-type", b"")
    if content_type != JSON and content_type.partition(b";")[0].strip().lower() != JSON:
        raise TransportError(415, "Content-Type must be application/json")
    if accept is None:
        return _BOTH
    accepted = _kept_media(accept) if len(accept) <= MAX_KEPT_BYTES else _media(accept)
    if not accepted:
        raise TransportError(
            406, "The Accept header must list application/json and text/event-stream"
        )
    return accepted


def _media(accept: bytes) -> frozenset[bytes]:
    ranges = {part.partition(b";")[0].strip().lower() for part in accept.split(b",", MAX_RANGES)}
    if b"*/*" in ranges:
        return _BOTH
    return frozenset(
        kind for kind in _BOTH if kind in ranges or kind.partition(b"/")[0] + b"/*" in ranges
    )


_kept_media: Final = lru_cache(maxsize=64)(_media)
