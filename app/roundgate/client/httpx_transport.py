"""A transport on httpx, for who needs its proxies, HTTP/2, or an application in this
very process (`ASGITransport`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import httpx

from roundgate.client.limits import Limits
from roundgate.client.transport import HttpRequest
from roundgate.errors import BadAnswer, ClientError, ConnectionLost, TimedOut


class HttpxTransport:
    """Sends through an `httpx.AsyncClient` that somebody else made, and closes."""

    def __init__(self, http: httpx.AsyncClient, limits: Limits) -> None:
        self._http = http
        self._limits = limits

    async def send(self, request: HttpRequest) -> _HttpxResponse:
        timeout = httpx.Timeout(self._limits.idle_s, connect=self._limits.connect_s)
        # Ours are all the headers that go out: no cookies, nothing of the client's defaults.
        built = httpx.Request(
            request.method,
            str(request.url),
            headers=[("Host", request.url.authority), *request.headers],
            content=request.body,
            extensions={"timeout": timeout.as_dict()},
        )
        try:
            response = await self._http.send(built, stream=True, auth=None, follow_redirects=False)
        except httpx.HTTPError as error:
            raise _translated(error, request.url.authority) from None
        return _HttpxResponse(response, request.url.authority)

    async def close(self) -> None:
        """The client stays open: it is its owner's."""


class _HttpxResponse:
    def __init__(self, response: httpx.Response, authority: str) -> None:
        self._response = response
        self._authority = authority

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for part in self._response.aiter_bytes():
                yield part
        except httpx.HTTPError as error:
            raise _translated(error, self._authority) from None

    async def close(self) -> None:
        await asyncio.shield(self._response.aclose())


def _translated(error: httpx.HTTPError, authority: str) -> ClientError:
    match error:
        case httpx.ConnectTimeout() | httpx.PoolTimeout():
            return TimedOut(f"No connection to {authority} in time", was_sent=False)
        case httpx.TimeoutException():
            return TimedOut(f"Nothing came from {authority} in time (limit idle_s)")
        case httpx.ConnectError():
            return ConnectionLost(f"No connection to {authority}", was_sent=False)
        case httpx.RemoteProtocolError() | httpx.DecodingError():
            if "disconnected" in str(error) or "closed" in str(error):
                return ConnectionLost(
                    f"{authority} closed the connection before its answer was whole", was_sent=True
                )
            return BadAnswer(f"{authority} does not answer in HTTP as it should")
    return ConnectionLost(f"The connection to {authority} was lost", was_sent=True)
