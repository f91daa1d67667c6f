"""Answers that nobody reads: they have one limit, and whoever reads is served."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from roundgate.errors import Unavailable
from roundgate.http.unread import UnreadAnswers
from tests.support import wire
from tests.support.server import Server, running

TOOLS = """
from roundgate import tool

@tool
async def large() -> str:
    return "x" * 8_000_000

@tool
async def small() -> str:
    return "small"
"""
WHOLE = 8_000_000
HTTP = "http: {max_unread_bytes: 20_000_000, send_timeout_s: 600}\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "tools.py").write_text(TOOLS)
    config = folder / "gateway.yaml"
    config.write_text(HTTP + "backends: [{kind: python, name: own, prefix: '', path: tools.py}]\n")
    with running(config, {"GATEWAY_STORE": f"sqlite:///{folder}/store.sqlite3"}) as started:
        yield started


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def request(tool: str) -> bytes:
    asked = wire.message("tools/call", {"name": tool, "arguments": {}})
    body = json.dumps(asked).encode()
    headers = {"host": "127.0.0.1", "content-length": str(len(body)), **wire.headers(asked)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body


def caller(
    server: Server, stack: ExitStack, address: str, sent: bytes, buffer: int = 65_536
) -> socket.socket:
    """A client at an address of this machine, which sends a request and does not read."""
    client = stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.settimeout(60)
    client.bind((address, 0))
    client.connect(("127.0.0.1", server.port))
    client.sendall(sent)
    return client


def read(client: socket.socket, pause_s: float = 0) -> bytes:
    """The body of the answer, as far as it arrives."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    (length,) = (
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    )
    parts = [body]
    left = length - len(body)
    while left:
        part = client.recv(min(left, 262_144))
        if not part:  # the gateway has dropped the rest
            break
        parts.append(part)
        left -= len(part)
        time.sleep(pause_s)
    return b"".join(parts)


def test_who_does_not_read_makes_room_and_delays_nobody_else(
    server: Server, stack: ExitStack
) -> None:
    oldest, newest = (caller(server, stack, "127.0.0.1", request("large")) for _ in range(2))
    wait_until_served(server, stack, "127.0.0.2")
    health = caller(server, stack, "127.0.0.1", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b"ok" in read(health)
    wait_until_served(server, stack, "127.0.0.1")  # once the oldest answer is dropped
    assert len(read(oldest)) < WHOLE < len(read(newest))


def test_the_caller_with_most_loses_its_oldest_answer(server: Server, stack: ExitStack) -> None:
    modest = caller(server, stack, "127.0.0.3", request("large"))
    wait_until_served(server, stack, "127.0.0.3")
    oldest, newest = (caller(server, stack, "127.0.0.4", request("large")) for _ in range(2))
    wait_until_served(server, stack, "127.0.0.4")
    assert len(read(oldest)) < WHOLE
    assert len(read(modest)) > WHOLE
    assert len(read(newest)) > WHOLE


def wait_until_served(server: Server, stack: ExitStack, address: str) -> None:
    assert b'"small"' in read(caller(server, stack, address, request("small")))


def test_a_slow_reader_gets_its_whole_answer(server: Server, stack: ExitStack) -> None:
    slow = caller(server, stack, "127.0.0.5", request("large"))
    for _ in range(6):
        caller(server, stack, "127.0.0.6", request("large"))
    assert len(read(slow, pause_s=0.05)) > WHOLE


def test_many_large_answers_at_once_arrive_if_they_are_read(
    server: Server, stack: ExitStack
) -> None:
    clients = [
        caller(server, stack, "127.0.0.7", request("large"), buffer=1_000_000) for _ in range(8)
    ]
    with ThreadPoolExecutor(8) as threads:
        assert all(len(body) > WHOLE for body in threads.map(read, clients))


def test_requests_on_one_connection_wait_until_the_answer_before_is_read(
    server: Server, stack: ExitStack
) -> None:
    client = caller(server, stack, "127.0.0.8", request("large") * 3)
    for _ in range(3):
        assert len(read(client)) > WHOLE


@dataclass(eq=False)
class Fake:
    """A connection that says how much is unread."""

    caller: str
    unread_bytes: int
    is_aborted: bool = False

    def abort(self) -> None:
        self.is_aborted = True


async def test_a_request_does_not_wait_for_ever() -> None:
    answers = UnreadAnswers(1_000, wait_s=0.01)
    unread = Fake("one", 500)
    answers.add(unread)
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="max_unread_bytes"):
        await answers.turn(Fake("one", 0))
    await answers.turn(Fake("another", 0))
    answers.discard(unread)
    await answers.turn(Fake("one", 0))
    assert answers.is_idle


async def test_requests_beside_large_answers_take_turns() -> None:
    answers, order = UnreadAnswers(1_000_000, wait_s=60), list[int]()

    async def call(number: int) -> None:
        if not answers.is_idle:
            await answers.turn(Fake(str(number), 0))
        order.append(number)
        answers.add(Fake(str(number), 1))
        await asyncio.sleep(0)  # the others of this iteration, before the next
        assert order[-1] == number

    await asyncio.gather(*map(call, range(5)))
    assert order == list(range(5))


async def test_one_answer_may_be_larger_than_the_limit() -> None:
    answers, only = UnreadAnswers(1_000, wait_s=60), Fake("one", 5_000)
    answers.add(only)
    await asyncio.sleep(0)
    assert not only.is_aborted
    answers.add(Fake("two", 1))
    await asyncio.sleep(0)
    assert only.is_aborted
