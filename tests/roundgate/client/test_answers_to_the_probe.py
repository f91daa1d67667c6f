"""Whatever a server answers to `server/discover`, the client either speaks an older revision with
it or says why it cannot connect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roundgate.client import Client, Limits
from roundgate.errors import AuthorizationFailed, BadAnswer, HttpRefused, RpcError, TimedOut
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    connected,
    error,
    event,
    http,
    result,
    says,
    scripted,
    text,
)

OLD = "2025-11-25"


def older(probe: Any) -> Any:
    """A server of an older revision that answers the probe with what `probe` makes."""

    def script(asked: Asked) -> Any:
        match asked.rpc:
            case "server/discover":
                return probe(asked) if callable(probe) else probe
            case "initialize":
                about = {"protocolVersion": OLD, "capabilities": {"tools": {}}}
                return result(asked, {**about, "serverInfo": {"name": "old", "version": "1"}})
            case "notifications/initialized":
                return http(202)
            case "tools/list":
                return result(asked, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
            case "tools/call":
                return result(asked, text("old"))
        return http(405)

    return script


def failure(code: int, message: str, request_id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


SESSIONLESS = failure(-32600, "Bad Request: Missing session ID", "server-error")
UNKNOWN = failure(-32601, "Method not found", "server-error")


async def streamed(message: Any) -> Any:
    yield STREAM_HEAD
    yield event(message)


ANSWERS_OF_OLDER_SERVERS = {
    "400, an error with an id of its own": says(SESSIONLESS, 400),
    "400, an error with another number as its id": says(failure(-32600, "no", 4711), 400),
    "400, an error without an id": says(failure(-32000, "no", None), 400),
    "400, text": http(400, b"Bad Request", "text/plain"),
    "400, JSON that is no message": says({"detail": "Bad Request"}, 400),
    "400, JSON that is no object": says("Bad Request", 400),
    "400, JSON-RPC without an error's code": says({"id": 1, "error": "Bad Request"}, 400),
    "404, HTML": http(404, b"<html>", "text/html"),
    "404, JSON of a web application": says({"error": "There is nothing here"}, 404),
    "404, an error": says(UNKNOWN, 404),
    "405, empty": http(405),
    "406, an error": says(failure(-32000, "Not Acceptable", "server-error"), 406),
    "415, text": http(415, b"Unsupported Media Type", "text/plain"),
    "422, JSON of a framework": says({"detail": [{"loc": ["body"]}]}, 422),
    "501, text": http(501, b"Not implemented", "text/plain"),
    "200, an error with an id of its own": says(UNKNOWN),
    "200, an error with the request's id": lambda asked: error(asked, -32601, status=200),
    "200, an error on a stream": lambda asked: streamed(failure(-32601, "no", "server-error")),
    "200, HTML": http(200, b"<html>Welcome</html>", "text/html"),
    "200, empty": http(200),
    "200, an empty object": says({}),
    "200, text that is no JSON": http(200, b"ok"),
    "202, empty": http(202, kind=""),
    "204, empty": http(204, kind=""),
}


@pytest.mark.parametrize("name", ANSWERS_OF_OLDER_SERVERS)
async def test_an_older_server_is_connected_to_whatever_it_answers_to_the_probe(name: str) -> None:
    async with connected(older(ANSWERS_OF_OLDER_SERVERS[name])) as (_, client):
        assert (await client.connect()).protocol_version == OLD
        assert (await client.call("t")).value == "old"


async def test_a_redirect_within_the_server_is_followed_to_the_handshake() -> None:
    handshake = older(says(SESSIONLESS, 400))

    def script(asked: Asked) -> Any:
        return handshake(asked) if asked.target == "/mcp/" else http(307, Location="/mcp/")

    async with connected(script) as (_, client):
        assert (await client.connect()).protocol_version == OLD


ANSWERS_THAT_SAY_NOTHING = {
    "401": (http(401), AuthorizationFailed, "401"),
    "403": (http(403), AuthorizationFailed, "403"),
    "429": (http(429, Retry_After="0"), HttpRefused, "429"),
    "500": (http(500, b"Internal Server Error", "text/plain"), HttpRefused, "500"),
    "502, HTML": (http(502, b"<html>", "text/html", Retry_After="0"), HttpRefused, "502"),
    "503": (http(503, Retry_After="0"), HttpRefused, "503"),
    "301": (http(301, Location="/elsewhere"), HttpRefused, "/elsewhere"),
    "302 to a login": (
        http(302, Location="https://login.example/?next=1"),
        HttpRefused,
        "https://login.example",
    ),
    "an error of this revision": (
        lambda asked: error(asked, -32020, "Header mismatch"),
        RpcError,
        "Header mismatch",
    ),
}


@pytest.mark.parametrize("name", ANSWERS_THAT_SAY_NOTHING)
async def test_an_answer_that_says_nothing_of_the_revision_is_the_error_itself(name: str) -> None:
    answer, kind, said = ANSWERS_THAT_SAY_NOTHING[name]
    async with scripted(older(answer)) as server:
        async with Client(server.url) as client:
            with pytest.raises(kind, match=said):
                await client.connect()
        assert set(server.methods()) == {"server/discover"}


async def test_a_probe_without_an_answer_ends_in_time_and_names_the_way_around_it() -> None:
    async def silent(asked: Asked) -> Any:
        yield STREAM_HEAD
        while True:
            yield b": still here\n\n"
            await asyncio.sleep(0.1)

    async with connected(older(silent), limits=Limits(request_s=0.5)) as (_, client):
        with pytest.raises(TimedOut, match="versions"):
            await client.connect()


async def test_a_website_is_told_from_a_server() -> None:
    async with connected(lambda asked: http(200, b"<html>", "text/html")) as (_, client):
        with pytest.raises(BadAnswer, match="text/html"):
            await client.connect()


async def test_a_result_with_the_id_of_another_request_is_not_believed() -> None:
    def script(asked: Asked) -> Any:
        return says({"jsonrpc": "2.0", "id": "other", "result": {"resultType": "complete"}})

    async with connected(script) as (_, client):
        with pytest.raises(BadAnswer, match="id of another request"):
            await client.connect()
