"""TLS of the client: who the server is, is known before anything is said to it."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundgate.client import Client, Limits
from roundgate.errors import BadAnswer, ConnectionLost, TimedOut
from tests.support.authority import Authority
from tests.support.command import roundgate
from tests.support.listening import listening
from tests.support.scripted import http, modern, result, scripted, text

HERE = modern(lambda asked: result(asked, text("in private")))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def called(url: str, **options: Any) -> str:
    async with asyncio.timeout(60), Client(url, auth="secret", **options) as client:
        return (await client.call("t")).text


async def test_a_server_that_is_who_it_says_is_spoken_to(authority: Authority) -> None:
    async with scripted(HERE, authority.server("here", "127.0.0.1")) as server:
        assert await called(server.url, tls=authority.trusting()) == "in private"
        async with httpx.AsyncClient(
            verify=authority.trusting(), trust_env=False, timeout=60
        ) as over_httpx:
            assert await called(server.url, http=over_httpx) == "in private"
        assert {one.headers["authorization"] for one in server.asked} == {"Bearer secret"}


async def test_connections_are_used_again(authority: Authority) -> None:
    context = authority.trusting()
    async with (
        scripted(HERE, authority.server("here", "127.0.0.1")) as server,
        Client(server.url, tls=context) as client,
    ):
        for _ in range(3):
            await client.call("t")
        assert context.session_stats()["connect"] == 1


async def test_one_that_a_server_may_just_be_closing_is_not(authority: Authority) -> None:
    context = authority.trusting()
    async with (
        scripted(HERE, authority.server("here", "127.0.0.1")) as server,
        Client(server.url, tls=context, limits=Limits(keep_alive_s=0.05)) as client,
    ):
        await client.call("t")
        before = context.session_stats()["connect"]
        await asyncio.sleep(0.1)
        await client.call("t")
        assert context.session_stats()["connect"] == before + 1


async def test_a_client_may_show_a_certificate_of_its_own(authority: Authority) -> None:
    wanting, showing = authority.server("here", "127.0.0.1"), authority.trusting()
    wanting.load_verify_locations(authority.ca)
    wanting.verify_mode = ssl.CERT_REQUIRED
    async with scripted(HERE, wanting) as server:
        with pytest.raises(ConnectionLost):
            await called(server.url, tls=authority.trusting())
        showing.load_cert_chain(*authority.issue("caller"))
        assert await called(server.url, tls=showing) == "in private"


@pytest.mark.parametrize(
    ("addresses", "days", "is_trusted", "said"),
    [
        (["127.0.0.1"], 1, False, "unable to get local issuer|self-signed"),
        (["127.0.0.2"], 1, True, "IP address mismatch"),
        ([], 1, True, "IP address mismatch"),
        (["127.0.0.1"], -1, True, "expired"),
    ],
    ids=["unknown authority", "another address", "a name alone", "expired"],
)
async def test_a_server_that_may_be_another_hears_nothing(
    authority: Authority, addresses: list[str], days: int, is_trusted: bool, said: str
) -> None:
    tls = authority.trusting() if is_trusted else None
    async with scripted(HERE, authority.server("there", *addresses, days=days)) as server:
        with pytest.raises(ConnectionLost, match=f"No secure connection.*({said})") as caught:
            await called(server.url, tls=tls)
        assert server.asked == []
    assert not caught.value.was_sent


async def test_a_server_without_tls_is_said_so() -> None:
    over = asyncio.Event()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(http(400))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        over.set()

    async with listening(plain) as port:
        with pytest.raises(ConnectionLost, match="No secure connection"):
            await called(f"https://127.0.0.1:{port}/mcp")
        await asyncio.wait_for(over.wait(), 60)


async def test_a_server_with_tls_hears_nothing_in_the_clear(authority: Authority) -> None:
    async with scripted(HERE, authority.server("here", "127.0.0.1")) as server:
        with pytest.raises((ConnectionLost, BadAnswer)):
            await called(server.url.replace("https:", "http:"))
        assert server.asked == []


async def test_a_handshake_that_does_not_go_on_ends_in_time() -> None:
    over = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        over.set()

    async with listening(silent) as port:
        with pytest.raises(TimedOut, match="connect_s"):
            await called(f"https://127.0.0.1:{port}/mcp", limits=Limits(connect_s=0.5))
        await asyncio.wait_for(over.wait(), 60)


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_the_command_trusts_whom_the_environment_names(
    authority: Authority, is_trusted: bool
) -> None:
    environment: dict[str, Any] = {"SSL_CERT_FILE": str(authority.ca)} if is_trusted else {}
    async with scripted(HERE, authority.server("here", "127.0.0.1")) as server:
        command = partial(roundgate, "call", server.url, "t", **environment)
        ran = await asyncio.to_thread(command)
    assert (ran.status, ran.out) == ((0, "in private\n") if is_trusted else (5, "")), ran.err
    assert is_trusted or "No secure connection" in ran.err
