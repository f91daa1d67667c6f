"""The connections below httpx, without httpx."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpcore
import pytest

from roundgate.net.http import trust_store
from roundgate.net.streams import Network, NetworkStream


class Transport(asyncio.Transport):
    """A transport that remembers when it is paused and resumed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


@asynccontextmanager
async def connected(
    first: bytes = b"",
) -> AsyncGenerator[tuple[NetworkStream, asyncio.StreamWriter]]:
    """Yield a connection, and the service's end of it; the service sends `first` at once."""
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def converse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        accepted.set_result(writer)

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    async with server:
        stream = await Network().connect_tcp("127.0.0.1", server.sockets[0].getsockname()[1], 60)
        writer = await accepted
        try:
            yield stream, writer
        finally:
            await stream.aclose()
            writer.close()


async def test_a_stream_stops_to_receive_while_much_is_unread() -> None:
    stream, transport = NetworkStream(), Transport()
    stream.connection_made(transport)
    stream.end_head()
    stream.data_received(bytes(100_000))
    assert transport.calls == []
    stream.data_received(bytes(100_000))
    received = 0
    while received < 200_000:
        assert transport.calls == ["pause"]
        received += len(await stream.read(65_536, 60))
    assert transport.calls == ["pause", "resume"]


async def test_the_last_byte_is_returned_alone() -> None:
    async with connected(b"whole") as (stream, writer):
        assert await stream.read(100, 60) == b"whol"
        assert stream.get_extra_info("is_readable")
        assert await stream.read(100, 60) == b"e"
        assert not stream.get_extra_info("is_readable")
        writer.close()
        assert await stream.read(100, 60) == b""
        assert stream.get_extra_info("is_readable")


async def test_bytes_that_the_event_loop_has_not_read_make_a_stream_readable() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        _, stream = await asyncio.get_running_loop().create_connection(NetworkStream, sock=ours)
        assert not stream.get_extra_info("is_readable")
        theirs.send(b"x")
        assert stream.get_extra_info("is_readable")  # the event loop did not run in between
        await stream.aclose()


async def test_a_request_on_a_connection_that_has_become_readable_is_not_sent() -> None:
    async with connected(b"x") as (stream, _):
        await stream.write(b"a request")
        assert await stream.read(100, 60) == b"x"
        stream.end_head()
        stream.data_received(b"surplus")
        with pytest.raises(httpcore.ConnectionNotAvailable):
            await stream.write(b"another request")


async def test_bytes_before_a_tls_handshake_are_not_taken_for_encrypted_ones() -> None:
    async with connected() as (stream, _):
        stream.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
        with pytest.raises(httpcore.ConnectError, match="before the TLS handshake"):
            await stream.start_tls(trust_store(), "127.0.0.1", 60)


async def test_a_stream_that_is_closed_while_it_reads_raises() -> None:
    async with connected() as (stream, _):
        reading = asyncio.create_task(stream.read(100, 60))
        await asyncio.sleep(0)
        await stream.aclose()
        with pytest.raises(httpcore.ReadError):  # not the end of a body that has no length
            await reading


async def test_a_request_that_the_service_does_not_take_times_out() -> None:
    async with connected() as (stream, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(httpcore.WriteTimeout):
            await stream.write(bytes(50_000_000), 0.01)


async def test_the_next_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    lookup = loop.getaddrinfo
    ports = [1]  # refuses

    async def two_addresses(host: str, port: int, **options: Any) -> list[Any]:
        return [each for port in ports for each in await lookup("127.0.0.1", port, **options)]

    async def converse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    monkeypatch.setattr(loop, "getaddrinfo", two_addresses)
    async with await asyncio.start_server(converse, "127.0.0.1", 0) as server:
        with pytest.raises(httpcore.ConnectError):
            await Network().connect_tcp("service.example", 443, 60)
        ports.append(server.sockets[0].getsockname()[1])
        stream = await Network().connect_tcp("service.example", 443, 60)
        assert stream.get_extra_info("server_addr")[1] == ports[1]
        await stream.aclose()
