"""What the proxy that records answers where the server it stands before does not, or
sends its client elsewhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from roundgate.client import HttpRequest, HttpResponse
from roundgate.errors import ConnectionLost
from roundgate.json import decode
from roundgate_testing.cassettes import Proxy, Recorder
from roundgate_testing.cassettes.web import IncomingRequest

URL = "http://server.example/mcp"
REQUEST = b'{"jsonrpc": "2.0", "id": 7, "method": "tools/list"}'


class Response:
    """What a server answers."""

    def __init__(self, status: int, headers: dict[str, str], *parts: bytes, is_cut: bool) -> None:
        self.status = status
        self.headers = headers
        self.is_closed = False
        self._parts = parts
        self._is_cut = is_cut

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for part in self._parts:
            yield part
        if self._is_cut:
            raise ConnectionLost("the connection ended")

    async def close(self) -> None:
        self.is_closed = True


class Server:
    """In place of a connection: an answer, or what is raised."""

    def __init__(self, *answers: Response | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[HttpRequest] = []

    async def send(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """Nothing is held."""


def proxy(*answers: Response | Exception) -> tuple[Proxy, Server]:
    server = Server(*answers)
    return Proxy(URL, Recorder(None, URL, transport=server)), server


def asked(body: bytes = REQUEST, method: str = "POST") -> IncomingRequest:
    return IncomingRequest(method, "/mcp", {"content-type": "application/json"}, body)


@pytest.mark.parametrize(("body", "request_id"), [(REQUEST, 7), (b"{", None), (b"[1]", None)])
async def test_nobody_there_is_an_error_under_the_id_of_the_request(
    body: bytes, request_id: int | None
) -> None:
    answering, _ = proxy(ConnectionLost("refused", was_sent=False))
    reply = await answering.answer(asked(body))
    assert reply is not None
    error = decode(reply.body)
    assert (reply.status, error["id"]) == (502, request_id)
    assert error["error"]["message"] == "The server could not be reached: refused"


async def test_an_answer_that_was_lost_is_lost_for_the_client_too() -> None:
    answering, _ = proxy(ConnectionLost("the connection ended", was_sent=True))
    assert await answering.answer(asked()) is None


@pytest.mark.parametrize(
    ("location", "passed_on"),
    [
        ("/other", "/other"),
        ("http://server.example/other?a=1", "/other?a=1"),
        ("http://elsewhere.example/mcp", None),
        ("https://server.example/mcp", None),
        ("//elsewhere.example/mcp", None),
        ("http://[", None),
        ("", None),
    ],
)
async def test_a_redirect_is_passed_on_only_within_the_server(
    location: str, passed_on: str | None
) -> None:
    answering, _ = proxy(Response(307, {"location": location}, is_cut=False))
    reply = await answering.answer(asked())
    assert reply is not None
    if passed_on is None:
        assert reply.status == 502
        assert "redirects to another host" in decode(reply.body)["error"]["message"]
    else:
        assert (reply.status, reply.headers) == (307, {"location": passed_on})


async def test_a_stream_that_is_cut_is_cut_for_the_client_too() -> None:
    response = Response(200, {"content-type": "text/event-stream"}, b"data: 1\n\n", is_cut=True)
    answering, _ = proxy(response)
    reply = await answering.answer(asked())
    assert reply is not None
    assert reply.stream is not None
    assert [part async for part in reply.stream] == [b"data: 1\n\n"]
    assert (reply.is_cut, response.is_closed) == (True, True)


async def test_an_answer_without_a_body_is_whole() -> None:
    response = Response(202, {"content-length": "0", "connection": "close"}, is_cut=False)
    answering, server = proxy(response)
    reply = await answering.answer(asked())
    assert reply is not None
    assert (reply.status, dict(reply.headers), reply.stream) == (202, {}, None)
    assert response.is_closed
    assert server.asked[0].body == REQUEST


async def test_a_get_goes_on_without_a_body() -> None:
    answering, server = proxy(Response(405, {"content-length": "0"}, is_cut=False))
    await answering.answer(asked(b"{}", method="GET"))
    assert server.asked[0].body is None
