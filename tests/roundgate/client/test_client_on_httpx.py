"""The client on an httpx client of somebody else: the same errors as on one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest

from roundgate.client import Client, Limits
from roundgate.errors import BadAnswer, ClientError, ConnectionLost, TimedOut
from tests.support.scripted import STREAM_HEAD, Asked, modern, scripted

TIGHT = Limits(idle_s=0.3)


async def closes(_: Asked) -> AsyncGenerator[bytes, None]:
    return
    yield


async def breaks_off(_: Asked) -> AsyncGenerator[bytes, None]:
    yield STREAM_HEAD.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n") + b"5\r\nda"


async def babbles(_: Asked) -> AsyncGenerator[bytes, None]:
    yield b"SSH-2.0-OpenSSH_9.9\r\n\r\n"


async def is_silent(_: Asked) -> AsyncGenerator[bytes, None]:
    await asyncio.sleep(600)
    yield b""


async def stops(_: Asked) -> AsyncGenerator[bytes, None]:
    yield STREAM_HEAD
    await asyncio.sleep(600)


@pytest.mark.parametrize(
    ("answers", "expected", "said"),
    [
        (closes, ConnectionLost, "closed the connection before its answer was complete"),
        (breaks_off, ConnectionLost, "closed the connection before its answer was complete"),
        (babbles, BadAnswer, "sent an invalid HTTP response"),
        (is_silent, TimedOut, r"sent no data .* \(limit idle_s\)"),
        (stops, TimedOut, r"sent no data .* \(limit idle_s\)"),
    ],
)
async def test_a_service_that_fails_is_told_as_on_a_client_of_our_own(
    answers: Callable[[Asked], AsyncGenerator[bytes, None]],
    expected: type[ClientError],
    said: str,
) -> None:
    async with (
        asyncio.timeout(60),
        scripted(modern(answers)) as server,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        limits = TIGHT if expected is TimedOut else Limits()
        for given in (http, None):
            async with Client(server.url, http=given, limits=limits) as client:
                with pytest.raises(expected, match=said):
                    await client.call("t")


async def test_nobody_there_means_that_nothing_was_sent() -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        with pytest.raises(ConnectionLost, match=r"No connection to 127\.0\.0\.1:9") as caught:
            async with Client("http://127.0.0.1:9/mcp", http=http) as client:
                await client.call("t")
    assert not caught.value.was_sent


async def test_a_client_without_a_free_connection_says_so() -> None:
    """Its owner has bounded it."""

    async def waits(request: httpx.Request) -> httpx.Response:
        raise httpx.PoolTimeout("no connection is free", request=request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(waits)) as http:
        with pytest.raises(TimedOut, match=r"No connection to example\.com within"):
            async with Client("http://example.com/mcp", http=http) as client:
                await client.call("t")
