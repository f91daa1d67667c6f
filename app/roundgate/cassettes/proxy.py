"""A proxy that records: what a client says to it goes to the server, what the server
says comes back, and is kept.

Redirects are never followed; one that leads to another host does not reach the client
either, because it would take the conversation, and what the client proves itself
with, to where nobody records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from roundgate.cassettes.recorder import Recorder
from roundgate.cassettes.standin import Reply, refusal
from roundgate.cassettes.web import Asked
from roundgate.client import HttpRequest, HttpResponse, Url
from roundgate.errors import ClientError, ConnectionLost, ParseError
from roundgate.json import decode

_OF_THE_CONNECTION: Final = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
        "upgrade", "host", "content-length", "accept-encoding", "expect", "origin",
    }
)  # fmt: skip
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class Proxy:
    """Sends what it is asked to a server, through a recorder."""

    def __init__(self, url: str, recorder: Recorder) -> None:
        self._url = Url.parse(url)
        self._recorder = recorder

    @property
    def path(self) -> str:
        """The path of the endpoint, at the server and here."""
        return self._url.target

    def listens_at(self, origin: str) -> None:
        """Where clients reach it: `${server}` in the cassette, as the server itself is."""
        self._recorder.tape.origins.append(origin)

    async def answer(self, asked: Asked) -> Reply | None:
        """The server's answer; 502 if it has none."""
        url = Url(self._url.scheme, self._url.host, self._url.port, asked.target)
        headers = [
            (name, value) for name, value in asked.headers.items() if name not in _OF_THE_CONNECTION
        ]
        body = asked.body if asked.method in ("POST", "PUT", "PATCH") else None
        try:
            request = HttpRequest(
                asked.method, url, [*headers, ("accept-encoding", "identity")], body
            )
            response = await self._recorder.send(request)
        except ConnectionLost as error:
            if error.was_sent:
                return None  # lost here as it was there: whether it was done, nobody knows
            return self._failed(asked, f"The server could not be reached: {error}")
        except (ClientError, ValueError) as error:
            return self._failed(asked, f"The server could not be reached: {error}")
        if response.status not in _REDIRECTS:
            return await _reply(response)
        await response.close()
        if (location := self._within(response.headers.get("location", ""))) is not None:
            return Reply(response.status, {"location": location})
        what = "The server redirects to another host, which is not followed: record that one"
        return self._failed(asked, what)

    def _failed(self, asked: Asked, what: str) -> Reply:
        """In the shape that clients show: a JSON-RPC error under the id of the request."""
        try:
            message = decode(asked.body)
        except ParseError:
            message = None
        return refusal(message.get("id") if isinstance(message, dict) else None, -32603, what, 502)

    def _within(self, location: str) -> str | None:
        """Where a redirect leads at this proxy, `None` if it leaves the server."""
        if location.startswith("/") and not location.startswith("//"):
            return location
        try:
            aim = Url.parse(location)
        except ClientError:
            return None
        return aim.target if aim.origin == self._url.origin else None


async def _reply(response: HttpResponse) -> Reply:
    headers = {
        name: value for name, value in response.headers.items() if name not in _OF_THE_CONNECTION
    }
    if response.status in (204, 304) or response.headers.get("content-length") == "0":
        async for _ in response.chunks():
            pass
        await response.close()
        return Reply(response.status, headers)
    reply = Reply(response.status, headers)
    reply.stream = _passed_on(response, reply)
    return reply


async def _passed_on(response: HttpResponse, reply: Reply) -> AsyncGenerator[bytes, None]:
    try:
        async for data in response.chunks():
            yield data
    except ClientError:
        reply.is_cut = True  # the client is to see that it is not whole
    finally:
        await response.close()
