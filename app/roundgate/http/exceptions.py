"""Whatever is raised in the layers inside becomes exactly one well-formed
answer, and one line in the log.

An `AuthError` is answered with OAuth's challenge, any other `GatewayError` as a
JSON-RPC error. What nobody expected is told by a reference to the log; outside the MCP
endpoint it is left to Starlette.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate.clock import Clock
from roundgate.errors import AuthError, GatewayError, InternalError
from roundgate.http import early
from roundgate.http import exchange as exchanges
from roundgate.http.challenge import ProtectedResource
from roundgate.http.exchange import Exchange
from roundgate.http.responder import Responder, State

failures = logging.getLogger("roundgate.http")


class ExceptionMiddleware:
    """Makes one answer and one line in the log of whatever the layers inside do or raise.

    Args:
        app: the layers inside.
        endpoints: the view at each path of an MCP endpoint.
        resources: each view as a protected resource; empty without authentication.
        clock: measures how long a request takes.
        send_s: seconds that a client may take for one event.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        endpoints: Mapping[str, str],
        resources: Mapping[str, ProtectedResource],
        clock: Clock,
        send_s: float,
    ) -> None:
        self._app = app
        self._endpoints = {
            spelled: view for path, view in endpoints.items() for spelled in (path, path + "/")
        }
        self._resources = resources
        self._usual = next(iter(resources.values()), None)
        self._clock = clock
        self._send_s = send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        exchange = Exchange(scope, self._endpoints, Responder(send, self._send_s))
        try:
            try:
                await self._app(scope, receive, send)
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

    async def _find_id(self, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        """What is refused before it was read is answered under its id all the same,
        where that is easily had."""
        if exchange.is_mcp and not exchange.is_read and exchange.request_id is None:
            exchange.is_read = True
            exchange.request_id = await early.read_id(scope["method"], exchange.headers, receive)

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
