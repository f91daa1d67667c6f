"""Answers that nobody reads: they have one limit, and whoever reads is served."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from roundgate.errors import AnswersUnread, Unavailable
from roundgate.http.unread import UnreadAnswers
from tests.support.server import Server, configured, running
from tests.support.telemetry import recorded
from tests.support.wire import call, raw

TOOLS = """
import asyncio, time
from roundgate import tool

go = asyncio.Event()
began = 0

@tool
async def large() -> str:
    return "x" * 8_000_000

@tool
async def small() -> str:
    return "small"

@tool
async def nearly_sent() -> str:
    return "x" * 4_000_000

@tool
async def together() -> str:
    global began
    began += 1
    await go.wait()
    return "x" * 8_000_000

@tool
async def release() -> str:
    go.set()
    return "released"

@tool
def plain() -> str:
    global began
    began += 1
    time.sleep(0.2)
    return "x" * 8_000_000

@tool
async def how_many() -> str:
    return f"{began} began"
"""
WHOLE = 8_000_000
HTTP = {
    "max_unread_bytes": 20_000_000,
    "send_timeout_s": 600,
    "max_connections_per_address": 500,
}


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    config = configured(folder, TOOLS, http=HTTP, limits={"threads": 2})
    with running(config, {"GATEWAY_STORE": f"sqlite:///{folder}/store.sqlite3"}) as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as started:
        yield started


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


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
    oldest, newest = (caller(server, stack, "127.0.0.1", raw(call("large"))) for _ in range(2))
    wait_until_served(server, stack, "127.0.0.2")
    health = caller(server, stack, "127.0.0.1", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b"ok" in read(health)
    wait_until_served(server, stack, "127.0.0.1")  # once the oldest answer is dropped
    assert len(read(oldest)) < WHOLE < len(read(newest))


def test_the_caller_with_most_loses_its_oldest_answer(server: Server, stack: ExitStack) -> None:
    modest = caller(server, stack, "127.0.0.3", raw(call("large")))
    wait_until_served(server, stack, "127.0.0.3")
    oldest, newest = (caller(server, stack, "127.0.0.4", raw(call("large"))) for _ in range(2))
    wait_until_served(server, stack, "127.0.0.4")
    assert len(read(oldest)) < WHOLE
    assert len(read(modest)) > WHOLE
    assert len(read(newest)) > WHOLE


def wait_until_served(server: Server, stack: ExitStack, address: str) -> None:
    assert b'"small"' in read(caller(server, stack, address, raw(call("small"))))


def test_a_slow_reader_gets_its_whole_answer(server: Server, stack: ExitStack) -> None:
    slow = caller(server, stack, "127.0.0.5", raw(call("large")))
    for _ in range(6):
        caller(server, stack, "127.0.0.6", raw(call("large")))
    assert len(read(slow, pause_s=0.05)) > WHOLE


def test_many_large_answers_at_once_arrive_if_they_are_read(
    server: Server, stack: ExitStack
) -> None:
    clients = [
        caller(server, stack, "127.0.0.7", raw(call("large")), buffer=1_000_000) for _ in range(8)
    ]
    with ThreadPoolExecutor(8) as threads:
        assert all(len(body) > WHOLE for body in threads.map(read, clients))


def test_requests_on_one_connection_wait_until_the_answer_before_is_read(
    server: Server, stack: ExitStack
) -> None:
    client = caller(server, stack, "127.0.0.8", raw(call("large")) * 3)
    for _ in range(3):
        assert len(read(client)) > WHOLE


def most_memory(server: Server) -> int:
    """The most memory that the process has had, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1_024


def wait_for_number(server: Server, stack: ExitStack, expected: int) -> None:
    """Wait until so many handlers have begun."""
    while b'"%d began"' % expected not in read(
        caller(server, stack, "127.0.0.20", raw(call("how_many")))
    ):
        time.sleep(0.02)


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


@needs_proc
def test_an_answer_counts_until_its_last_byte_is_sent(new_server: Server, stack: ExitStack) -> None:
    wait_until_served(new_server, stack, "127.0.0.10")
    before = most_memory(new_server)
    # the kernel takes all but a few kilobytes of 4 MB, and the event loop keeps them whole
    for _ in range(60):
        caller(new_server, stack, "127.0.0.9", raw(call("nearly_sent")))
    for _ in range(20):
        wait_until_served(new_server, stack, "127.0.0.10")
    assert most_memory(new_server) - before < 100_000_000


@needs_proc
def test_results_that_are_finished_together_are_bounded_and_their_callers_told(
    new_server: Server, stack: ExitStack
) -> None:
    clients = [caller(new_server, stack, "127.0.0.11", raw(call("together"))) for _ in range(30)]
    wait_for_number(new_server, stack, 30)
    before = most_memory(new_server)
    assert b"released" in read(caller(new_server, stack, "127.0.0.12", raw(call("release"))))
    answers = [read(client) for client in clients]
    told = [body for body in answers if b"dropped" in body and b"max_unread_bytes" in body]
    whole = [body for body in answers if len(body) > WHOLE]
    assert len(whole) >= 2
    assert len(told) + len(whole) == 30
    assert all(json.loads(body)["result"]["isError"] for body in told)
    assert most_memory(new_server) - before < 100_000_000
    lines = [
        line
        for line in new_server.lines()
        if line["msg"] == "answers that nobody reads are dropped"
    ]
    assert [line["limit"] for line in lines] == [20_000_000]


def test_plain_functions_begin_only_while_there_is_room(
    new_server: Server, stack: ExitStack
) -> None:
    for _ in range(12):
        caller(new_server, stack, "127.0.0.13", raw(call("plain")))
    # the threads would be free for this call only after the twelve
    assert len(read(caller(new_server, stack, "127.0.0.14", raw(call("plain"))))) > WHOLE
    counted = read(caller(new_server, stack, "127.0.0.14", raw(call("how_many"))))
    assert any(b'"%d began"' % number in counted for number in range(2, 12)), counted


@dataclass(eq=False)
class Fake:
    """A connection that says how much is unread."""

    caller: str
    unread_bytes: int
    is_aborted: bool = False
    address: str = "127.0.0.1"

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


async def test_results_beyond_the_limit_are_dropped_until_older_answers_can_be() -> None:
    answers, oldest = UnreadAnswers(1_000, wait_s=60), Fake("one", 600)
    answers.add(oldest)
    with pytest.raises(AnswersUnread, match="may have taken effect"):
        answers.admit(Fake("one", 0), 600)
    answers.admit(Fake("another", 0), 300)
    await asyncio.sleep(0)
    assert not oldest.is_aborted
    answers.admit(Fake("one", 0), 600)
    await asyncio.sleep(0)
    assert oldest.is_aborted


async def test_each_dropped_answer_is_counted() -> None:
    with recorded() as seen:
        answers = UnreadAnswers(1_000, wait_s=60)
        for _ in range(3):
            answers.add(Fake("one", 600))
        (point,) = seen.points("roundgate.answers.dropped")
        assert point.value == 2
