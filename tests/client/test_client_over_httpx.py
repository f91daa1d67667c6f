"""A client that sends through somebody's `httpx.AsyncClient`: whatever httpx raises is one of our
errors, and says whether the server may have acted."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from roundgate.client import Client, Limits
from roundgate.errors import BadAnswer, ClientError, ConnectionLost, TimedOut
from tests.support.scripted import STREAM_HEAD, Asked, Script, modern, result, scripted, text


async def called(script: Script, **limits: float) -> Any:
    """The call of a tool, which the server answers so."""
    async with (
        scripted(modern(script)) as server,
        httpx.AsyncClient() as http,
        asyncio.timeout(60),
        Client(server.url, limits=Limits(**limits), http=http) as client,  # type: ignore[arg-type]
    ):
        return await client.call("t")


async def says_nothing(_: Asked) -> AsyncGenerator[bytes, None]:
    await asyncio.sleep(60)
    yield b""


async def stops_in_the_middle(_: Asked) -> AsyncGenerator[bytes, None]:
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"


async def is_silent_in_the_middle(_: Asked) -> AsyncGenerator[bytes, None]:
    yield STREAM_HEAD
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        (lambda asked: None, ConnectionLost, "closed the connection before its answer was whole"),
        (stops_in_the_middle, ConnectionLost, "closed the connection before its answer was whole"),
        (lambda asked: b"SSH-2.0-OpenSSH_9.6\r\n\r\n", BadAnswer, "does not answer in HTTP"),
        (says_nothing, TimedOut, "idle_s"),
        (is_silent_in_the_middle, TimedOut, "idle_s"),
    ],
)
async def test_what_goes_wrong_on_the_way_is_an_error_of_ours(
    script: Script, kind: type[ClientError], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        await called(script, idle_s=0.5)
    assert "127.0.0.1" in str(caught.value)
    if isinstance(caught.value, ConnectionLost):
        assert caught.value.was_sent, "the server may have acted: the call is not sent again"


async def test_a_server_that_is_not_there_cannot_have_acted() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/mcp"
        async with httpx.AsyncClient() as http, Client(url, http=http) as client:
            with pytest.raises(ConnectionLost, match=r"No connection to 127\.0\.0\.1") as caught:
                await client.call("t")
    assert not caught.value.was_sent


async def test_a_connection_that_is_reset_was_lost() -> None:
    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        own: socket.socket = writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with await asyncio.start_server(resets, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        async with httpx.AsyncClient() as http, Client(url, http=http) as client:
            with pytest.raises(ConnectionLost, match="was lost") as caught:
                await client.call("t")
    assert caught.value.was_sent


async def test_a_pool_without_a_free_connection_is_said_to_be_no_connection() -> None:
    """The owner of the pool uses all of it."""
    one = httpx.Limits(max_connections=1)
    async with (
        scripted(modern(is_silent_in_the_middle)) as server,
        httpx.AsyncClient(limits=one, timeout=60) as http,
        http.stream("POST", server.url, json={"method": "x"}) as busy,
        Client(server.url, limits=Limits(idle_s=0.3), http=http) as client,
    ):
        assert busy.status_code == 200
        with pytest.raises(TimedOut, match=r"No connection to .* in time"):
            await client.call("t")


async def test_nothing_of_the_owners_client_goes_along() -> None:
    """No cookies, credentials or headers of its own; and it stays open for its owner."""
    async with (
        scripted(modern(lambda asked: result(asked, text("done")))) as server,
        httpx.AsyncClient(
            cookies={"a": "b"}, auth=("user", "word"), headers={"X-Own": "1"}
        ) as http,
    ):
        async with Client(server.url, http=http) as client:
            assert (await client.call("t")).value == "done"
        sent = server.asked[-1].headers
        assert not {"cookie", "authorization", "x-own"} & sent.keys()
        assert not http.is_closed
