"""A real server on a real socket: what only shows between two processes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import wire
from tests.support.asgi import Client
from tests.support.server import Server, configured, running
from tests.support.wire import call, raw

SERVED = Path(__file__).with_name("served.py")
HTTP = {"keep_alive_s": 0.1, "max_body_bytes": 200_000}
LISTEN = {"notifications": {"toolsListChanged": True}}


def troubles(server: Server) -> list[dict[str, Any]]:
    """Warnings and errors that it has logged, but for uvicorn's warnings, and stalls, which a slow machine has too."""
    lines = [line for line in server.lines() if line["level"] in ("warning", "error")]
    return [
        line
        for line in lines
        if line.get("logger") not in ("uvicorn.error", "roundgate.stalls")
        or line["level"] == "error"
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that leave it running; none of them may have made it stumble."""
    with running(configured(tmp_path_factory.mktemp("server"), SERVED, http=HTTP)) as started:
        yield started
        assert troubles(started) == []


@pytest.fixture
async def mcp(server: Server) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        yield Client(http)


@asynccontextmanager
async def stream(
    server: Server, asked: dict[str, Any]
) -> AsyncIterator[AsyncIterator[dict[str, Any] | None]]:
    """The messages of an answer as they arrive, `None` for a comment; leaving the block hangs up."""

    async def messages(response: httpx.Response) -> AsyncIterator[dict[str, Any] | None]:
        async for line in response.aiter_lines():
            if line.startswith(("data: ", ":")):
                yield json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else None

    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60) as http,
        http.stream("POST", "/mcp", json=asked, headers=wire.headers(asked)) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream"
        yield messages(response)


async def exchange(server: Server, sent: bytes) -> bytes:
    """Send bytes, and read until the answer is whole, or the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(sent)
        answer = b""
        has_body = not sent.startswith(b"HEAD ")
        async with asyncio.timeout(60):
            while more := await reader.read(65536):
                answer += more
                if b"\r\n\r\n" in answer and (not has_body or _is_whole(answer)):
                    break
        return answer
    finally:
        writer.close()


def _is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(lengths) and len(body) >= int(lengths[0].split(b":")[1])


async def test_events_arrive_before_the_call_has_ended(server: Server, mcp: Client) -> None:
    async with stream(server, call("wait", {"name": "events"}, progressToken=1)) as messages:
        first = await anext(messages)
        assert first is not None
        assert first["method"] == "notifications/progress"
        await mcp.call("open", {"name": "events"})
        last = await anext(messages)
    assert last is not None
    assert last["result"]["content"][0]["text"] == "waited"


async def test_a_client_that_hangs_up_is_logged_as_such_and_harms_nobody(
    server: Server, mcp: Client
) -> None:
    before = sum(line.get("outcome") == "cancelled" for line in server.lines())
    for sent in (raw(call("wait", {"name": "gone"})), raw(call("add", {"a": 1, "b": 2}))[:-20]):
        with closing(socket.create_connection(("127.0.0.1", server.port))) as connection:
            connection.sendall(sent)
            await asyncio.sleep(0.05)
    until = time.monotonic() + 60
    while sum(line.get("outcome") == "cancelled" for line in server.lines()) < before + 2:
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    assert await mcp.text("add", {"a": 1, "b": 2}) == "3"


async def test_a_large_body_is_refused_while_it_is_still_being_sent(mcp: Client) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 10_000

    headers = wire.headers(wire.message("tools/list"))
    for content in (endless(), b" " * 1_000_000):
        response = await mcp.http.post("/mcp", content=content, headers=headers)
        assert response.status_code == 413
        assert wire.valid_error(response)["code"] == -32600


async def test_a_client_that_does_not_read_holds_up_itself_alone(
    server: Server, mcp: Client
) -> None:
    asked = call("flood", {"count": 2000, "size": 10_000}, logLevel="info")
    async with stream(server, asked) as messages:
        await anext(messages)
        await asyncio.sleep(0.1)
        assert "flooded" not in [line["msg"] for line in server.lines()], (
            "the call waits for its reader"
        )
        assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
        numbers = [one["params"]["data"][0] async for one in messages if one and "params" in one]
    assert numbers == list(range(1, 2000))


async def test_a_thread_that_is_busy_holds_up_nobody(
    server: Server, mcp: Client, tmp_path: Path
) -> None:
    held = asyncio.create_task(mcp.text("hold", {"file": str(tmp_path / "goes on")}))
    await asyncio.to_thread(server.logged, msg="holding")
    assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
    assert not held.done()
    (tmp_path / "goes on").touch()
    assert await held == "held"


async def test_many_calls_at_once_get_their_own_answers(mcp: Client) -> None:
    asked = [
        mcp.post("tools/call", {"name": "echo", "arguments": {"text": f"{n}"}}, request_id=n)
        for n in range(100)
    ]
    for number, response in enumerate(await asyncio.gather(*asked)):
        assert response.json()["id"] == number
        assert response.json()["result"]["content"][0]["text"] == str(number)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\n\r\n",
        b"POST /mcp HTTP/1.0\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{]",
        b"HEAD /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"POST /%ff%00 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        + b"x: \xff\r\n" * 500
        + b"content-length: 0\r\n\r\n",
    ],
    ids=range(9),
)
async def test_odd_bytes_are_answered_without_blaming_the_server(
    server: Server, mcp: Client, sent: bytes
) -> None:
    answer = await exchange(server, sent)
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 2")), answer
    assert await mcp.text("add", {"a": 1, "b": 2}) == "3"


async def test_a_server_that_is_told_to_stop_ends_its_streams_and_itself(
    tmp_path: Path,
) -> None:
    with running(configured(tmp_path, SERVED, http=HTTP)) as server:
        idle = socket.create_connection(("127.0.0.1", server.port))
        async with AsyncExitStack() as stack:
            opened = []
            for request_id in (1, "1", 0):
                asked = wire.message("subscriptions/listen", LISTEN, request_id)
                opened.append((request_id, await stack.enter_async_context(stream(server, asked))))
            for _, messages in opened:
                await anext(messages)
            waiting = await stack.enter_async_context(
                stream(server, call("wait", {"name": "x"}, progressToken=1))
            )
            await anext(waiting)
            http = httpx.AsyncClient(base_url=server.url, timeout=60)
            client = Client(await stack.enter_async_context(http))
            held = asyncio.create_task(client.text("hold", {"file": str(tmp_path / "goes on")}))
            await asyncio.to_thread(server.logged, msg="holding")
            await client.call("open", {"name": "x"})
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            await asyncio.sleep(0.3)
            (tmp_path / "goes on").touch()
            status = await stopping
            last = [
                (request_id, [one async for one in messages if one][-1])
                for request_id, messages in opened
            ]
            assert await held == "held"
        idle.close()
        found = troubles(server)
    assert status == 0
    for request_id, one in last:
        assert (one["id"], type(one["id"])) == (request_id, type(request_id))
        assert (
            wire.valid_result("subscriptions/listen", one)["_meta"][wire.SUBSCRIPTION_ID]
            == request_id
        )
    assert found == []


async def test_requests_that_have_arrived_when_the_server_stops_are_answered(
    tmp_path: Path,
) -> None:
    probe = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with running(configured(tmp_path, SERVED, http=HTTP)) as server:
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        for reader, writer in opened:
            writer.write(probe)
            assert b" 200 " in await reader.readuntil(b"}")
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            first, second = tmp_path / "first", tmp_path / "second"
            await Client(http).text("add", {"a": 1, "b": 2})
            frozen = [asyncio.create_task(Client(http).text("freeze", {"file": str(first)}))]
            await asyncio.to_thread(server.logged, msg="freezing", file=str(first))
            server.process.send_signal(signal.SIGTERM)
            frozen.append(asyncio.create_task(Client(http).text("freeze", {"file": str(second)})))
            await asyncio.sleep(0.3)  # the server stops after the second call
            first.touch()
            await asyncio.to_thread(server.logged, msg="freezing", file=str(second))
            for _, writer in opened:
                writer.write(probe)
                await writer.drain()
            second.touch()
            answers = [await reader.read() for reader, _ in opened]
            assert await asyncio.gather(*frozen) == ["frozen", "frozen"]
        for _, writer in opened:
            writer.close()
        assert await asyncio.to_thread(server.process.wait, 60) == 0
        assert troubles(server) == []
    assert all(b" 200 " in answer for answer in answers)
    assert all(b"connection: close" in answer for answer in answers)
