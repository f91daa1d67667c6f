"""Connections of one client to one or several services: how many, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from roundgate.net.http import PooledTransport, make_client, read_url
from roundgate.net.request import WireRequest
from tests.support.listening import listening
from tests.support.scripted import serving

PATIENCE_S = 60


@dataclass
class Service:
    """A server that counts its connections. It answers `/wait` when `may_answer` is set, and closes
    the connection after `/last`."""

    port: int = 0
    made: int = 0
    open: int = 0
    most_open: int = 0
    waiting: int = 0
    bodies: list[bytes] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            while await self._answer(reader, writer):
                pass
        finally:
            self.open -= 1

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split(b" ")[1]
        size = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        self.bodies.append(await reader.readexactly(int(size or 0)))
        if target == b"/wait":
            self.waiting += 1
            await self.may_answer.wait()
            self.waiting -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        return target != b"/last"


@asynccontextmanager
async def running() -> AsyncGenerator[Service, None]:
    service = Service()
    async with listening(service.converse) as service.port:
        yield service


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - a server of the test has no event for each state
            await asyncio.sleep(0.01)


async def test_requests_one_after_the_other_share_a_connection() -> None:
    async with running() as service, make_client() as client:
        for _ in range(5):
            assert (await client.get(service.origin)).text == "ok"
        assert service.made == 1


async def test_requests_together_have_a_connection_each_up_to_the_limit() -> None:
    async with running() as service, make_client(max_connections=3, timeout_s=60) as client:
        calls = [asyncio.create_task(client.get(f"{service.origin}/wait")) for _ in range(7)]
        await until(lambda: service.waiting == 3)
        service.may_answer.set()
        assert [answer.text for answer in await asyncio.gather(*calls)] == ["ok"] * 7
        assert (service.made, service.most_open) == (3, 3)


async def test_a_request_that_finds_no_free_connection_in_time_is_not_sent() -> None:
    async with running() as service, make_client(max_connections=1, timeout_s=60) as client:
        first = asyncio.create_task(client.get(f"{service.origin}/wait"))
        await until(lambda: service.waiting == 1)
        with pytest.raises(httpx.PoolTimeout):
            await client.get(service.origin, timeout=httpx.Timeout(60, pool=0.01))
        service.may_answer.set()
        assert (await first).text == "ok"
        assert len(service.bodies) == 1
        assert (await client.get(service.origin)).text == "ok"


async def test_cancelled_requests_leave_no_connection_and_no_slot() -> None:
    async with running() as service, make_client(max_connections=2, timeout_s=60) as client:
        calls = [asyncio.create_task(client.get(f"{service.origin}/wait")) for _ in range(5)]
        await until(lambda: service.waiting == 2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        service.may_answer.set()
        await until(lambda: service.open == 0)
        answers = await asyncio.gather(*(client.get(service.origin) for _ in range(4)))
        assert [answer.text for answer in answers] == ["ok"] * 4


async def test_an_answer_that_has_not_arrived_closes_its_connection() -> None:
    made = 0

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        made += 1
        while await reader.read(65_536):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")

    async with serving(converse) as url, make_client(max_connections=1, timeout_s=60) as client:
        for _ in range(3):
            async with client.stream("GET", url):
                pass
    assert made == 3


class Late:
    """A service that sends the end of an answer only when it is told to."""

    def __init__(self) -> None:
        self.made = self.ended = 0
        self.may_end = asyncio.Event()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
                waiting = asyncio.create_task(self.may_end.wait())
                closing = asyncio.create_task(reader.read(1))
                await asyncio.wait({waiting, closing}, return_when=asyncio.FIRST_COMPLETED)
                if closing.done():
                    break
                closing.cancel()
                await asyncio.wait({closing})
                writer.write(b"0\r\n\r\n")
        self.ended += 1


async def left(pool: PooledTransport, url: str) -> None:
    """Send a request, and leave its answer after the first part."""
    answer = await pool.send(WireRequest("GET", *read_url(url), []))
    assert await anext(answer) == b"ok"
    await answer.leave()


async def test_a_connection_is_used_again_once_the_rest_of_a_left_answer_has_arrived() -> None:
    service, pool = Late(), PooledTransport()
    async with serving(service.converse) as url:
        await left(pool, url)
        service.may_end.set()
        await asyncio.sleep(0.05)
        await left(pool, url)
        assert service.made == 1
        await pool.aclose()


async def test_an_answer_that_is_left_delays_no_request_and_closes_unless_it_ends() -> None:
    service, pool = Late(), PooledTransport(max_connections=1)
    async with serving(service.converse) as url:
        for _ in range(3):
            await left(pool, url)
        await until(lambda: service.ended == 3)
        assert service.made == 3


async def test_an_answer_that_has_arrived_frees_its_connection_before_it_is_read() -> None:
    async with running() as service, make_client(max_connections=1) as client:
        async with client.stream("GET", service.origin) as first:
            assert (await client.get(service.origin)).text == "ok"
            assert await first.aread() == b"ok"
        assert service.made == 1


async def test_a_connection_that_the_service_has_closed_is_replaced() -> None:
    async with running() as service, make_client(max_connections=1) as client:
        for number in range(1, 4):
            assert (await client.get(f"{service.origin}/last")).text == "ok"
            await until(lambda: service.open == 0)
            assert service.made == number


async def test_an_idle_connection_makes_room_for_another_service() -> None:
    async with (
        running() as first,
        running() as second,
        make_client(max_connections=1) as client,
    ):
        for _ in range(2):
            assert (await client.get(first.origin)).text == "ok"
            assert (await client.get(second.origin)).text == "ok"
            await until(lambda: first.open == 0)
        assert (first.made, second.made) == (2, 2)


async def test_no_more_than_the_allowed_number_stays_idle() -> None:
    async with (
        running() as service,
        make_client(max_connections=5, max_idle=2, keep_alive_s=60, timeout_s=60) as client,
    ):
        calls = [asyncio.create_task(client.get(f"{service.origin}/wait")) for _ in range(5)]
        await until(lambda: service.waiting == 5)
        service.may_answer.set()
        await asyncio.gather(*calls)
        await until(lambda: service.open == 2)


async def test_the_oldest_idle_connection_is_closed_after_its_time() -> None:
    async with (
        running() as first,
        running() as second,
        make_client(keep_alive_s=0.05) as client,
    ):
        await client.get(first.origin)
        await asyncio.sleep(0.1)
        assert first.open == 1
        await client.get(second.origin)
        await until(lambda: first.open == 0)
        assert second.open == 1


async def test_a_connection_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    lookup = loop.getaddrinfo
    async with running() as service, make_client(retries=1) as client:
        ports = [1, service.port, 1, 1]  # port 1 refuses

        async def next_port(host: str, port: int, **options: Any) -> list[Any]:
            return await lookup("127.0.0.1", ports.pop(0), **options)

        monkeypatch.setattr(loop, "getaddrinfo", next_port)
        assert (await client.get("http://service.example/last")).text == "ok"
        with pytest.raises(httpx.ConnectError):
            await client.get("http://service.example/")
        assert not ports


async def test_a_failed_connection_frees_its_slot() -> None:
    async with running() as service, make_client(max_connections=1) as client:
        for _ in range(3):
            with pytest.raises(httpx.ConnectError):
                await client.get("http://127.0.0.1:1/")
        assert (await client.get(service.origin)).text == "ok"


async def test_closing_the_client_ends_requests_under_way() -> None:
    async with running() as service:
        client = make_client(timeout_s=60)
        call = asyncio.create_task(client.get(f"{service.origin}/wait"))
        await until(lambda: service.waiting == 1)
        await client.aclose()
        with pytest.raises(httpx.HTTPError):
            await call


async def test_closing_the_client_leaves_no_connection_of_a_request_that_waited() -> None:
    async with running() as service:
        client = make_client(max_connections=1, timeout_s=60)
        calls = [asyncio.create_task(client.get(f"{service.origin}/wait")) for _ in range(2)]
        await until(lambda: service.waiting == 1)
        await client.aclose()
        service.may_answer.set()
        await asyncio.gather(*calls, return_exceptions=True)
        await until(lambda: service.open == 0)


async def test_requests_to_other_services_together_keep_the_limit() -> None:
    async with AsyncExitStack() as stack:
        services = [await stack.enter_async_context(running()) for _ in range(4)]
        client = await stack.enter_async_context(make_client(max_connections=2, timeout_s=60))
        for pair in (services[:2], services[2:]):
            calls = [asyncio.create_task(client.get(f"{each.origin}/wait")) for each in pair]
            await until(lambda: sum(each.waiting for each in services) == 2)
            await until(lambda: sum(each.open for each in services) == 2)
            for each in pair:
                each.may_answer.set()
            await asyncio.gather(*calls)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 1_000_000])
async def test_a_body_arrives_whole_with_a_length_and_without(size: int) -> None:
    body = bytes(index % 251 for index in range(size))
    async with running() as service, make_client(timeout_s=60) as client:
        for _ in range(2):
            assert (await client.post(service.origin, content=body)).text == "ok"
        assert service.bodies == [body, body]
        assert service.made == 1


async def test_a_body_in_pieces_arrives_whole_with_a_length() -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for piece in (b"one", b"", b"two" * 50_000):
            await asyncio.sleep(0)
            yield piece

    async with running() as service, make_client(timeout_s=60) as client:
        assert (await client.post(service.origin, content=pieces())).text == "ok"
        assert service.bodies == [b"onetwo" + b"two" * 49_999]
