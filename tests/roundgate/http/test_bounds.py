"""What hostile clients can have of a server: a real one, on a real socket."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from roundgate.http.room import SETTLED_S
from tests.support.asgi import Client, client
from tests.support.server import Server, configured, running
from tests.support.wire import call, raw

SERVED = Path(__file__).with_name("served.py")
HEAD = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
PATIENT = {
    "head_timeout_s": 600,
    "body_timeout_s": 600,
    "send_timeout_s": 600,
    "max_connections": 40,
}
"""Limits that no client of a test meets, however slow the machine is."""
SHORT = {"head_timeout_s": 0.5, "body_timeout_s": 0.5, "idle_timeout_s": 5}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(configured(tmp_path_factory.mktemp("bounded"), SERVED, http=PATIENT)) as started:
        yield started
        assert [line for line in started.lines() if line["level"] == "error"] == []


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose limits are reached, also by a client that is only slow."""
    with running(configured(tmp_path_factory.mktemp("hasty"), SERVED, http=SHORT)) as started:
        yield started
        assert [line for line in started.lines() if line["level"] == "error"] == []


@pytest.fixture
async def mcp(server: Server) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        yield Client(http)


@asynccontextmanager
async def connected(
    server: Server,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def exchanged(server: Server, *parts: bytes) -> bytes:
    """Everything that the server says before it closes the connection, which may be before it has taken everything."""
    received = b""
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=60)) as connection:
        with suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        with suppress(ConnectionError):
            while some := connection.recv(65_536):
                received += some
    return received


async def answered(server: Server, sent: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of what the server says before it closes the connection."""
    head, _, body = (await asyncio.to_thread(exchanged, server, sent)).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def all_wait(server: Server, gate: str, count: int) -> None:
    """Return once so many calls wait at a gate."""
    async with asyncio.timeout(60):
        while sum(waits_at(line, gate) for line in server.lines()) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def waits_at(line: dict[str, Any], gate: str) -> bool:
    return (line["msg"], line.get("gate")) == ("waiting", gate)


def resident_mb(server: Server) -> float:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"x: " + b"x" * 70_000 + b"\r\n\r\n",
        HEAD + b"x: " + b"x" * 1_000_000,
        HEAD + b"".join(b"x%d: 1\r\n" % number for number in range(101)) + b"\r\n",
        HEAD + b"".join(b"x%d: %b\r\n" % (number, b"x" * 1000) for number in range(90)) + b"\r\n",
        b"POST /" + b"x" * 1_000_000,
    ],
    ids=["a long field", "an endless field", "many fields", "many long fields", "an endless path"],
)
async def test_a_head_over_the_bounds_is_refused_before_the_app_sees_it(
    server: Server, head: bytes
) -> None:
    status, body = await answered(server, head)
    assert status == 431
    assert "http.max_header_bytes" in body["error"]["message"]
    assert body["error"]["code"] == -32600


async def test_large_headers_leave_nothing_behind_whatever_the_server(everything: FastAPI) -> None:
    async with client(everything) as mcp:
        await mcp.call("add", {"a": 1, "b": 2})
        with tracing_memory() as grown:
            for number in range(64):
                headers: dict[str, str | None] = {
                    "accept": f"application/json, text/event-stream, x/{number}{'x' * 200_000}"
                }
                assert (await mcp.post("server/discover", headers=headers)).status_code == 200
                host: dict[str, str | None] = {"host": f"[::1]{number}{'x' * 200_000}"}
                await mcp.post("server/discover", headers=host)
        assert grown() < 2_000_000


@contextmanager
def tracing_memory() -> Iterator[Callable[[], int]]:
    """How many bytes more there are, within the block and after it."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    grown = before

    def now() -> int:
        return grown - before

    try:
        yield now
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


async def test_trailers_without_end_are_refused(server: Server) -> None:
    begun = HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    trailers = (b"x%d: %b\r\n" % (number, b"x" * 1000) for number in range(3_000))
    answer = await asyncio.to_thread(exchanged, server, begun, *trailers)
    assert answer.startswith(b"HTTP/1.1 431")
    assert resident_mb(server) < 150


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"POST /mcp HT",
        HEAD + b"content-length: 100\r\n\r\n{",
        HEAD + b"transfer-encoding: chunked\r\n\r\n",
    ],
    ids=["nothing", "half a head", "half a body", "no chunk"],
)
async def test_what_does_not_arrive_in_time_is_given_up(hasty: Server, part: bytes) -> None:
    status, body = await answered(hasty, part)
    assert status == 408
    assert "took too long" in body["error"]["message"]


@pytest.mark.parametrize("drip", [b"\r\n", b"x: 1\r\n"], ids=["line ends", "headers"])
async def test_dripping_does_not_keep_a_connection(hasty: Server, drip: bytes) -> None:
    async with connected(hasty) as (reader, writer), asyncio.timeout(60):
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # it is closed
            writer.write(raw(call("add", {"a": 1, "b": 2})))
            await reader.readuntil(b"}}")
            writer.write(b"" if drip == b"\r\n" else HEAD)
            while not reader.at_eof():
                writer.write(drip)
                await asyncio.sleep(0.1)
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1000), 0.01)


async def test_who_has_sent_no_request_makes_room_for_who_does(server: Server, mcp: Client) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port))))
        assert await mcp.text("add", {"a": 1, "b": 2}) == "3"


linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has all of 127.0.0.0/8"
)
PLACES = 16
ROOM = {**PATIENT, "max_connections": PLACES, "max_connections_per_address": 4}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Server]:
    """A server with few places, all of them free, which nothing but a newcomer makes anybody give up."""
    with running(configured(tmp_path, SERVED, http=ROOM)) as started:
        yield started
        assert [line for line in started.lines() if line["level"] == "error"] == []


class Crowd:
    """Connections from addresses of this machine."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.all: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> Crowd:
        return self

    async def __aexit__(self, *exception: object) -> None:
        for _, writer in self.all:
            writer.transport.abort()

    async def open(
        self, address: str, sent: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One more, on which so much is sent."""
        streams = await asyncio.open_connection(
            "127.0.0.1", self._server.port, local_addr=(address, 0)
        )
        self.all.append(streams)
        streams[1].write(sent)
        return streams


async def sum_of(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], a: int) -> int:
    """What `add` says on a connection."""
    streams[1].write(raw(call("add", {"a": a, "b": 1})))
    head = await asyncio.wait_for(streams[0].readuntil(b"\r\n\r\n"), 60)
    length = next(
        line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    )
    body = json.loads(await streams[0].readexactly(int(length.partition(b":")[2])))
    assert head.startswith(b"HTTP/1.1 200"), body
    found: int = body["result"]["structuredContent"]
    return found


@linux
@pytest.mark.parametrize(
    "part",
    [
        HEAD + b"content-length: 9\r\n\r\n{",
        b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nPOST /",
    ],
)
async def test_who_sends_half_requests_makes_room_for_who_sends_whole_ones(
    small: Server, part: bytes
) -> None:
    async with Crowd(small) as crowd:
        mine = await crowd.open("127.0.0.1")
        assert await sum_of(mine, 1) == 2
        for number in range(2 * PLACES):
            await crowd.open(f"127.0.0.{2 + number % 4}", part)
        if part.startswith(b"GET"):  # a busy server is still answering, and calls are spared
            for reader, _ in crowd.all[1:]:
                with suppress(asyncio.IncompleteReadError, ConnectionError):
                    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        await has_read_all(mine)
        for number in range(2 * PLACES):
            assert await sum_of(await crowd.open("127.0.0.1"), number) == number + 1


@linux
async def test_a_half_body_that_makes_room_is_told_why(small: Server) -> None:
    async with Crowd(small) as crowd:
        mine = await crowd.open("127.0.0.1")
        for _ in range(PLACES - 1):
            await crowd.open("127.0.0.2", HEAD + b"content-length: 9\r\n\r\n{")
        await has_read_all(mine)
        await crowd.open("127.0.0.1")
        async with asyncio.timeout(60):
            said = await first_of([everything_from(reader) for reader, _ in crowd.all[1:]])
    assert said.startswith(b"HTTP/1.1 503")
    assert b"http.max_connections" in said


async def has_read_all(mine: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Return once the server has read what was sent before. It reads in order, so it has when it answers on another
    connection; that it begins to serve it is certain when it has answered twice."""
    for number in range(2):
        assert await sum_of(mine, number) == number + 1


async def first_of(waiting: list[Coroutine[Any, Any, bytes]]) -> bytes:
    """What the first of them returns."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return await done.pop()


async def everything_from(reader: asyncio.StreamReader) -> bytes:
    with suppress(ConnectionError):
        return await reader.read()
    return b""


@linux
async def test_a_flood_of_connections_ends_its_own_and_not_one_of_another_address(
    small: Server,
) -> None:
    async with Crowd(small) as crowd:
        mine = await crowd.open("127.0.0.1")
        for _ in range(10 * PLACES):
            await crowd.open("127.0.0.2")
        assert await sum_of(mine, 1) == 2


@linux
async def test_who_is_served_keeps_the_connection_whatever_a_flood_does(small: Server) -> None:
    async with Crowd(small) as crowd:
        mine = await crowd.open("127.0.0.1")
        for number in range(10 * PLACES):
            await crowd.open(f"127.0.0.{2 + number % 50}", HEAD if number % 2 else b"")
            assert await sum_of(mine, number) == number + 1


@linux
async def test_an_address_with_more_calls_than_its_share_makes_room_for_one_with_fewer(
    small: Server,
) -> None:
    async with Crowd(small) as crowd:
        for number in range(PLACES):
            await crowd.open(f"127.0.0.{2 + number % 3}", raw(call("wait", {"name": "share"})))
        await all_wait(small, "share", PLACES)
        await asyncio.sleep(SETTLED_S + 0.1)
        assert await sum_of(await crowd.open("127.0.0.1"), 1) == 2
        assert await asyncio.to_thread(small.logged, msg="cancelled", gate="share")


@linux
async def test_calls_of_addresses_within_their_share_make_room_for_nobody(small: Server) -> None:
    async with Crowd(small) as crowd:
        for number in range(PLACES):
            await crowd.open(f"127.0.0.{2 + number}", raw(call("wait", {"name": "within"})))
        await all_wait(small, "within", PLACES)
        await asyncio.sleep(SETTLED_S + 0.1)
        refused = await crowd.open("127.0.0.1")
        assert b" 503 " in await asyncio.wait_for(refused[0].read(), 60)
        await asyncio.sleep(0.1)
    assert not [
        line
        for line in small.lines()
        if line.get("gate") == "within" and line["msg"] == "cancelled"
    ]


async def test_a_server_whose_connections_are_all_in_use_says_503(server: Server) -> None:
    asked = raw(call("wait", {"name": "full"}))
    connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(40)]
    for _, writer in connections:
        writer.write(asked)
    await all_wait(server, "full", 40)
    status, body = await answered(server, b"")
    assert status == 503
    assert "too many connections (http.max_connections)" in body["error"]["message"]
    for _, writer in connections:
        writer.transport.abort()


def test_as_many_connections_as_there_are_descriptors_for() -> None:
    limited = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from roundgate.settings import HttpConfig
from roundgate.http.connections import Bounds
bounds = Bounds.from_config(HttpConfig())
print(bounds.connections, bounds.per_address)
"""
    ran = subprocess.run(
        [sys.executable, "-c", limited], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["144", "18"]


async def test_clients_that_do_not_read_do_not_keep_threads(tmp_path: Path) -> None:
    http = {**PATIENT, "send_timeout_s": 1}
    with running(configured(tmp_path, SERVED, http=http, limits={"threads": 2})) as server:
        asked = raw(call("flood_thread", {"count": 2000, "size": 10_000}, logLevel="info"))
        connections = [
            await asyncio.open_connection("127.0.0.1", server.port, limit=1024) for _ in range(4)
        ]
        for _, writer in connections:
            writer.write(asked)
        await asyncio.sleep(0.3)
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as mcp:
            assert await Client(mcp).text("block", {"seconds": 0.01}) == "blocked"
        for _, writer in connections:
            writer.transport.abort()


async def test_a_slow_reader_that_keeps_reading_gets_everything(server: Server) -> None:
    asked = raw(call("echo", {"text": "x" * 3_000_000}))
    async with connected(server) as (reader, writer):
        writer.write(asked)
        received = b""
        while not received.endswith(b"}}") or len(received) < 3_000_000:
            received += await reader.read(200_000)
            await asyncio.sleep(0.05)
    assert received.startswith(b"HTTP/1.1 200")


async def test_requests_that_do_not_wait_for_an_answer_are_held_back(server: Server) -> None:
    async with connected(server) as (_, writer):
        writer.write(raw(call("wait", {"name": "pipeline"})))
        await asyncio.to_thread(server.logged, msg="waiting", gate="pipeline")
        before = resident_mb(server)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 300_000)
        await asyncio.sleep(1)
        assert writer.transport.get_write_buffer_size() > 1_000_000  # the server does not read it
        assert resident_mb(server) < before + 5


async def test_a_call_ends_with_its_connection_also_while_another_request_waits_behind_it(
    server: Server,
) -> None:
    async with connected(server) as (_, writer):
        writer.write(raw(call("wait", {"name": "behind"})) + raw(call("add", {"a": 1, "b": 2})))
        await asyncio.to_thread(server.logged, msg="waiting", gate="behind")
    await asyncio.to_thread(server.logged, msg="cancelled", gate="behind")


@pytest.mark.parametrize("path", ["/mcp", "/healthz"])
def test_the_fields_of_a_query_are_bounded(server: Server, path: str) -> None:
    refused = httpx.get(f"{server.url}{path}?{256 * 'a&'}", timeout=60)
    assert refused.status_code == 414
    assert "more than 256 fields" in refused.text
