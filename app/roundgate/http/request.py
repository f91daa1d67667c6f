"""The layer that makes one answer and one log line of each request: it checks the head, finds out
who is calling, and answers whatever the layers inside raise.

    an MCP endpoint            POST, JSON in, JSON or a stream out; in a session of an older revision
                               GET and DELETE too; every caller that the configuration lets in
    /healthz, /.well-known/…   anybody: probes, and the documents that a client needs to get a token
    anything else              operators

The head is checked before the caller: a client that tries GET learns that there is none, not that
it needs a token. An operator is a caller whose token has the scope that the configuration names for
operators; without such a scope there are none. Without authentication the one local subject is an
operator where the gateway serves this machine alone.

An `AuthError` is answered with OAuth's challenge, any other `GatewayError` as a JSON-RPC error. An
unexpected exception is answered with a reference to the log; outside the MCP endpoints Starlette
answers it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate.auth import Principal, Verifier
from roundgate.clock import Clock
from roundgate.errors import (
    AuthError,
    GatewayError,
    InsufficientScope,
    InternalError,
    TransportError,
)
from roundgate.http import bodies
from roundgate.http import exchange as exchanges
from roundgate.http.exchange import Exchange
from roundgate.http.guard import HEALTH
from roundgate.http.old_transport import OLD_TRANSPORT
from roundgate.http.protected import ProtectedResource
from roundgate.http.responder import Responder, State
from roundgate.protocol import SESSION_HEADER as SESSION
from roundgate.protocol import may_be_older

failures = logging.getLogger("roundgate.http")

JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream"
MAX_KEPT_BYTES: Final = 256
_BOTH: Final = frozenset({JSON, EVENT_STREAM})
OPEN: Final = frozenset({HEALTH, OLD_TRANSPORT})
"""The paths that need no authentication."""
PUBLIC: Final = "/.well-known/"
"""RFC 8615: where clients look before they have a token, also for what is not there."""


class RequestMiddleware:
    """Makes one answer and one log line of whatever the layers inside do or raise.

    Args:
        app: the layers inside.
        endpoints: the view at each path of an MCP endpoint.
        resources: each view as a protected resource; empty without authentication.
        verifiers: the verifier of each view, the usual one first.
        nothing: answers a caller who is no operator and cannot become one.
        operator_scope: the scope of operators; `None` if there is none.
        local_operates: whether the one subject of a gateway without authentication is an operator.
        clock: makes references.
        send_s: seconds that a client may take for one event.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        endpoints: Mapping[str, str],
        resources: Mapping[str, ProtectedResource],
        verifiers: Mapping[str, Verifier],
        nothing: ASGIApp,
        operator_scope: str | None,
        local_operates: bool,
        clock: Clock,
        send_s: float,
    ) -> None:
        self._app = app
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
            if scope["type"] == "websocket":  # nothing of ours is one: nobody is authenticated
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        exchange = Exchange(scope, self._endpoints, Responder(send, self._send_s))
        try:
            try:
                if exchange.is_mcp:
                    exchange.accepted = _check(scope["method"], exchange.headers)
                    verifier = self._verifiers[exchange.view]
                    exchange.principal = await verifier.principal(
                        exchange.headers.get(b"authorization"), exchange.host.claims
                    )
                    await self._app(scope, receive, send)
                elif await self._is_open_to(exchange):
                    await self._app(scope, receive, send)
                else:
                    await self._nothing(scope, receive, send)
            except AuthError as error:
                await self._find_id(scope, receive, exchange)
                await self._challenge(error, exchange)
            except GatewayError as error:
                await self._find_id(scope, receive, exchange)
                await self._fail(error, exchange)
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
            raise
        finally:
            if exchange.is_mcp or exchange.error is not None:
                exchange.write_line((time.perf_counter() - started) * 1000)
            exchanges.leave(scope)

    async def _is_open_to(self, exchange: Exchange) -> bool:
        """Return whether the caller may use a path that is no MCP endpoint.

        Raises:
            AuthError: a token, or one with the scope of operators, would let the caller in.
        """
        if exchange.path in OPEN or exchange.path.startswith(PUBLIC):
            return True
        authorization = exchange.headers.get(b"authorization")
        exchange.principal = await self._usual_verifier.principal(
            authorization, exchange.host.claims
        )
        return self._operates(exchange.principal)

    def _operates(self, principal: Principal) -> bool:
        """Whether a caller is an operator.

        Raises:
            InsufficientScope: it is not, and a token with the scope would make it one.
        """
        if self._operator_scope is None:
            return self._local_operates
        if self._operator_scope not in principal.scopes:
            raise InsufficientScope("this address", [self._operator_scope])
        return True

    async def _find_id(self, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        """What is refused before it was read is answered under its id all the same,
        where that is easily had."""
        if exchange.is_mcp and not exchange.is_read and exchange.request_id is None:
            exchange.is_read = True
            exchange.request_id = await bodies.read_id(scope["method"], exchange.headers, receive)

    async def _challenge(self, error: AuthError, exchange: Exchange) -> None:
        exchange.label, exchange.error = "unauthorized", str(error)
        resource = self._resources.get(exchange.view, self._usual)
        challenge = b"Bearer" if resource is None else resource.challenge(error)
        await exchange.responder.refused(error, challenge, exchange.request_id)

    async def _fail(self, error: GatewayError, exchange: Exchange) -> None:
        exchange.code = exchange.revision.look_up(error).code
        exchange.label, exchange.error = "error", str(error)
        if exchange.responder.state is not State.DONE:
            await exchange.responder.error(error, exchange.request_id, exchange.revision)


def _check(method: str, headers: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """What the client accepts of JSON and event streams.

    Raises:
        TransportError: the HTTP method or a media type is none that this endpoint has.
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
            "The MCP endpoint takes POST only; revision 2026-07-28 has no GET stream and no "
            "sessions",
            [(b"allow", b"POST")],
        )
    content_type = headers.get(b"content-type", b"")
    if (
        content_type != JSON  # what nearly everybody sends
        and content_type.partition(b";")[0].strip().lower() != JSON
    ):
        raise TransportError(415, "Content-Type must be application/json")
    accepted = (
        _BOTH
        if accept is None
        else _accepted(accept)
        if len(accept) <= MAX_KEPT_BYTES
        else _media(accept)
    )
    if not accepted:
        raise TransportError(
            406, "The Accept header must list application/json and text/event-stream"
        )
    return accepted


def _media(accept: bytes) -> frozenset[bytes]:
    ranges = {part.partition(b";")[0].strip().lower() for part in accept.split(b",")}
    if b"*/*" in ranges:
        return _BOTH
    return frozenset(
        kind for kind in _BOTH if kind in ranges or kind.partition(b"/")[0] + b"/*" in ranges
    )


_accepted: Final = lru_cache(maxsize=64)(_media)
"""Clients send one and the same value with every request; a long one is not kept."""
