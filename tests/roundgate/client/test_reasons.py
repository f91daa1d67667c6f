"""Why a server refuses: its own words are in the error, and nothing that the client sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from roundgate.errors import ClientError, HttpRefused, Remedy
from tests.support.scripted import connected, http, says

ENDPOINT = {"error": "There is nothing here; the MCP endpoint is POST /mcp"}
PLAYWRIGHT = b"Access is only allowed at localhost:8931"
FORBIDDEN = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Origin refused"}}
CHALLENGE = 'Bearer error="invalid_token", error_description="The token has expired"'

REFUSALS = {
    "a challenge": (http(401, WWW_Authenticate=CHALLENGE), "The token has expired"),
    "OAuth's JSON": (
        says({"error": "invalid_token", "error_description": "Signature is wrong"}, 401),
        "Signature is wrong",
    ),
    "plain text": (http(403, PLAYWRIGHT, "text/plain; charset=utf-8"), PLAYWRIGHT.decode()),
    "JSON-RPC": (says(FORBIDDEN, 403), "Origin refused"),
    "a wrong path": (says(ENDPOINT, 404), "the MCP endpoint is POST /mcp"),
    "FastAPI's JSON": (says({"detail": "Not Found"}, 404), "Not Found"),
    "an error of another kind": (says({"error": {"message": "Over quota"}}, 400), "Over quota"),
    "FastAPI's list": (
        says({"detail": [{"loc": ["body"], "msg": "Field required", "type": "missing"}]}, 422),
        "Field required",
    ),
    "AWS's JSON": (says({"Message": "User is not authorized"}, 403), "User is not authorized"),
    "a list of errors": (says({"errors": [{"message": "Plan ended"}]}, 403), "Plan ended"),
    "a problem document": (
        http(422, b'{"title": "No such tenant"}', "application/problem+json"),
        "No such tenant",
    ),
    "text of a proxy": (http(413, b"Too large:\n 1 MB at most", "text/plain"), "Too large: 1 MB"),
    "later": (http(503, b"Back at noon", "text/plain", Retry_After="0"), "Back at noon"),
}


async def refused(answer: Any, **options: Any) -> ClientError:
    async with connected(lambda asked: answer, **options) as (_, client):
        with pytest.raises(ClientError) as caught:
            await client.connect()
    return caught.value


@pytest.mark.parametrize("name", REFUSALS)
async def test_the_reason_of_the_server_is_in_the_error(name: str) -> None:
    answer, reason = REFUSALS[name]
    assert reason in str(await refused(answer))


async def test_the_reason_of_a_refused_notification_is_in_the_error() -> None:
    def script(asked: Any) -> Any:
        if asked.rpc == "initialize":
            about = {"protocolVersion": "2025-11-25", "capabilities": {}}
            return says({"jsonrpc": "2.0", "id": asked.message["id"], "result": about})
        return http(400, b"Not in this state", "text/plain")

    async with connected(script) as (_, client):
        with pytest.raises(HttpRefused, match="Not in this state"):
            await client.connect()


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_reason_that_repeats_a_credential_is_not_shown(status: int) -> None:
    echo = http(status, b"Unknown key: Bearer hushhush-1", "text/plain")
    error = await refused(echo, auth="hushhush-1", headers={"X-Api-Key": "other-secret"})
    assert "hushhush" not in str(error)
    echo = http(status, b"Unknown key other-secret", "text/plain")
    error = await refused(echo, headers={"X-Api-Key": "other-secret"})
    assert "other-secret" not in str(error)


@pytest.mark.parametrize(
    "echo",
    [
        "sk-li ve-01 23456 789ab cdefS ECRET",
        "-".join("sk-live-0123456789abcdefSECRET"),
        "SK-LIVE-0123456789ABCDEFSECRET",
        "sk-live-0123456…",
        "…abcdefSECRET",
    ],
    ids=["pieces", "letters", "capitals", "beginning", "end"],
)
async def test_a_reason_that_repeats_a_part_of_a_credential_is_not_shown(echo: str) -> None:
    answer = says({"error_description": f"Unknown key {echo}"}, 403)
    error = await refused(answer, auth="sk-live-0123456789abcdefSECRET")
    assert str(error) == "The server refuses access (403)"


@pytest.mark.parametrize(
    "reason",
    [
        "The Bearer token has expired",
        "server/discover needs the scope admin",
        "Your token has the audience other",
    ],
)
async def test_a_reason_that_repeats_no_credential_is_shown(reason: str) -> None:
    for scheme in ("Bearer", "bearer"):
        headers = {"Authorization": f"{scheme} hushhush-1"}
        assert reason in str(await refused(says({"message": reason}, 403), headers=headers))


async def test_a_reason_is_one_short_line() -> None:
    text = ("\x1b[31mred\nroundgate: all is well\r" + "x" * 10_000).encode()
    said = str(await refused(http(403, text, "text/plain")))
    assert said.isprintable()
    assert len(said) < 400


@pytest.mark.parametrize("kind", ["text/html", "image/png", ""])
async def test_what_is_no_text_for_people_is_not_shown(kind: str) -> None:
    assert "<b>" not in str(await refused(http(404, b"<b>no</b>", kind)))


async def test_a_reason_without_an_end_is_cut() -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        yield b"HTTP/1.1 403 No\r\nContent-Type: text/plain\r\n\r\n"
        while True:
            yield b"no" * 4_096
            await asyncio.sleep(0)

    async with connected(lambda asked: endless()) as (_, client):
        with pytest.raises(HttpRefused, match="nono"):
            await client.connect()


@pytest.mark.parametrize("remedy", Remedy)
def test_each_remedy_has_words_for_code_and_for_the_command_line(remedy: Remedy) -> None:
    error = ClientError("It is so", remedy)
    assert str(error) == f"It is so: {remedy.in_code}"
    assert error.on_command_line == f"It is so: {remedy.on_command_line}"
    assert "=" not in remedy.on_command_line
