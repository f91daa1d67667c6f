"""One answer on a connection: what is written, in how many pieces, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from roundgate.config import HttpConfig
from roundgate.http.cycle import LARGE
from roundgate.http.server import protocol
from tests.fuzz.targets import Wire
from tests.support.asgi import gateway
from tests.support.functions import add

GET: Final = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n%b\r\n"
App = Callable[[Any, Any, Any], Awaitable[None]]


class Counting(Wire):
    """A client that counts what it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))
        super().write(data)


class Connection:
    """A connection to a server of one app."""

    def __init__(self, app: Any) -> None:
        http: Any = protocol(HttpConfig())
        made: Any = Config(
            app,
            http=http,
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=HttpConfig().idle_timeout_s,
        )
        made.load()
        self._protocol = made.http_protocol_class(
            config=made, server_state=ServerState(), app_state={}, _loop=asyncio.get_running_loop()
        )
        self.client = Counting()
        self._protocol.connection_made(self.client)

    async def send(self, data: bytes) -> bytes:
        """What is written in answer."""
        self.client.writes.clear()
        self._protocol.data_received(data)
        for task in list(self._protocol.tasks):
            await task
        return b"".join(self.client.writes)

    async def ended(self) -> None:
        """Wait until no request is served any more."""
        while self._protocol.tasks:
            await asyncio.gather(*self._protocol.tasks)
            await asyncio.sleep(0)  # of those that had ended already, they are taken out now

    def look(self, in_s: float) -> None:
        """What the server does when so much time is over."""
        self._protocol.look(self._protocol.loop.time() + in_s)


def answering(*messages: dict[str, Any]) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    return app


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads before it answers."""
    await receive()
    await answering(start((b"content-length", b"0")), body(b""))(scope, receive, send)


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(text: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": more}


async def test_head_and_body_are_one_write() -> None:
    connection = Connection(answering(start((b"Content-Length", b"2")), body(b"ok")))
    assert await connection.send(GET % b"") == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    assert len(connection.client.writes) == 1


async def test_a_large_body_is_not_copied_behind_its_head() -> None:
    large = b"x" * (LARGE + 1)
    length = b"%d" % len(large)
    connection = Connection(answering(start((b"content-length", length)), body(large)))
    assert (await connection.send(GET % b"")).endswith(b"\r\n\r\n" + large)
    assert connection.client.writes[1] == large


async def test_a_body_of_unknown_length_comes_in_chunks() -> None:
    app = answering(start(), body(b"one", more=True), body(b"", more=True), body(b"two"))
    answer = await Connection(app).send(GET % b"")
    head, _, chunks = answer.partition(b"\r\n\r\n")
    assert head.endswith(b"transfer-encoding: chunked")
    assert chunks == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_the_answer_to_head_has_no_body() -> None:
    app = answering(start((b"content-length", b"2")), body(b"ok"))
    answer = await Connection(app).send(GET.replace(b"GET", b"HEAD") % b"")
    assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


@pytest.mark.parametrize(
    ("asked", "said", "lines"),
    [
        (b"", (), 0),
        (b"connection: close\r\n", (), 1),
        (b"connection: close\r\n", ((b"Connection", b"x, Close"),), 1),
        (b"", ((b"connection", b"close"),), 1),
        (b"connection: close\r\n", ((b"connection", b"keep-alive"),), 2),
    ],
)
async def test_a_connection_is_closed_where_either_side_says_so(
    asked: bytes, said: tuple[tuple[bytes, bytes], ...], lines: int
) -> None:
    connection = Connection(answering(start((b"content-length", b"0"), *said), body(b"")))
    answer = await connection.send(GET % asked)
    assert answer.lower().count(b"\r\nconnection: ") == lines
    assert connection.client.is_over == bool(lines)


@pytest.mark.parametrize(
    "messages",
    [
        (start((b"content-length", b"1")), body(b"ok")),
        (start((b"content-length", b"3")), body(b"ok")),
        (start((b"x", b"a\r\nset-cookie: b")), body(b"")),
        (start((b"x: y\r\nz", b"a")), body(b"")),
        (body(b""),),
        (start((b"content-length", b"0")), start()),
        (start(),),
        (),
    ],
)
async def test_an_answer_that_is_none_ends_the_connection(messages: Any) -> None:
    connection = Connection(answering(*messages))
    answer = await connection.send(GET % b"")
    assert b"set-cookie" not in answer
    assert connection.client.is_over


async def test_a_client_that_waits_to_be_told_to_go_on_is_told() -> None:
    head = GET.replace(b"GET", b"POST") % b"expect: 100-continue\r\ncontent-length: 1\r\n"
    answer = await Connection(reading).send(head + b"x")
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


async def test_a_client_of_http_1_0_is_not_told_to_go_on() -> None:
    """It would take the interim answer for the answer (RFC 9110, 10.1.1)."""
    asked = GET.replace(b"HTTP/1.1", b"HTTP/1.0") % b"expect: 100-continue\r\n"
    assert (await Connection(reading).send(asked)).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_client_of_http_1_0_gets_a_body_of_unknown_length_without_chunks() -> None:
    """It knows none (RFC 9112, 6.1): the end of the connection is that of the body."""
    connection = Connection(answering(start(), body(b"one ", more=True), body(b"two")))
    answer = await connection.send(GET.replace(b"HTTP/1.1", b"HTTP/1.0") % b"")
    head, _, sent = answer.partition(b"\r\n\r\n")
    assert sent == b"one two"
    assert b"transfer-encoding" not in head
    assert connection.client.is_over


UPGRADE: Final = (
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
)
"""As Java's own client asks with the first request of a connection."""


class Echo:
    """An app that answers with what it was sent, and notes it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        whole, more = b"", True
        while more:
            message = await receive()
            assert message["type"] == "http.request", message
            whole, more = whole + message["body"], message["more_body"]
        self.bodies.append(whole)
        length = b"%d" % len(whole)
        await answering(start((b"content-length", length)), body(whole))(scope, receive, send)


@pytest.mark.parametrize(
    ("framing", "sent", "whole"),
    [
        (b"content-length: 5\r\n", b"hello", b"hello"),
        (b"transfer-encoding: chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"content-length: 0\r\n", b"", b""),
        (b"", b"", b""),
    ],
)
@pytest.mark.parametrize("pieces", ["one", "head and body", "bytes"])
async def test_who_asks_for_another_protocol_is_served_in_this_one(
    framing: bytes, sent: bytes, whole: bytes, pieces: str
) -> None:
    app = Echo()
    connection = Connection(app)
    head = GET.replace(b"GET", b"POST") % (UPGRADE + framing)
    asked = head + sent + GET % b"content-length: 1\r\n" + b"x"
    match pieces:
        case "one":
            parts = [asked]
        case "head and body":
            parts = [head, asked.removeprefix(head)]
        case _:
            parts = [bytes([byte]) for byte in asked]
    for part in parts:
        connection._protocol.data_received(part)
        await asyncio.sleep(0)
    await connection.ended()
    answers = b"".join(connection.client.writes)
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert app.bodies == [whole, b"x"]
    assert not connection.client.is_over


async def test_several_in_one_piece_that_ask_for_another_protocol_are_all_served() -> None:
    app = Echo()
    connection = Connection(app)
    one = GET.replace(b"GET", b"POST") % (UPGRADE + b"content-length: 1\r\n")
    await connection.send(one + b"a" + one + b"b" + one + b"c")
    await connection.ended()
    assert app.bodies == [b"a", b"b", b"c"]


async def test_a_body_behind_such_a_head_has_to_come_in_time() -> None:
    connection = Connection(Echo())
    connection._protocol.data_received(
        GET.replace(b"GET", b"POST") % (UPGRADE + b"content-length: 5\r\n") + b"he"
    )
    await asyncio.sleep(0)
    connection.look(in_s=HttpConfig().body_timeout_s + 1)
    assert b"".join(connection.client.writes).startswith(b"HTTP/1.1 408 ")


async def test_nobody_is_told_to_go_on_behind_a_refusal() -> None:
    may_read, heard = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await may_read.wait()
        heard.set_result(await receive())

    connection = Connection(app)
    asked = GET % b"content-length: 2\r\nexpect: 100-continue\r\n"
    waiting = asyncio.create_task(connection.send(asked))
    await asyncio.sleep(0)
    connection.look(in_s=HttpConfig().body_timeout_s + 1)
    may_read.set()
    answer = await waiting + bytes(connection.client.written_too_late)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"100 Continue" not in answer
    assert await heard == {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("sent", "seen"), [(b"", "127.0.0.1"), (b"x-forwarded-for: 10.1.2.3\r\n", "10.1.2.3")]
)
async def test_a_proxy_on_this_machine_may_say_who_is_calling(sent: bytes, seen: str) -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await answering(start((b"content-length", b"0")), body(b""))(scope, receive, send)

    await Connection(app).send(GET % sent)
    assert scopes[0]["client"][0] == seen


async def test_an_idle_connection_is_closed_when_its_time_is_over() -> None:
    connection = Connection(answering(start((b"content-length", b"0")), body(b"")))
    await connection.send(GET % b"")
    connection.look(HttpConfig().idle_timeout_s - 1)
    assert not connection.client.is_over
    await connection.send(b"GET / HTTP/1.1\r\n")  # what comes in between ends the idle time
    connection.look(2)
    assert not connection.client.is_over
    await connection.send(b"\r\n")
    connection.look(HttpConfig().idle_timeout_s + 1)
    assert connection.client.is_over


async def test_an_answered_call_leaves_nothing_for_the_garbage_collector() -> None:
    asked = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "add",
            "arguments": {"a": 1, "b": 2},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }
    said = json.dumps(asked).encode()
    head = b"content-type: application/json\r\nmcp-protocol-version: 2026-07-28\r\n"
    head += b"mcp-method: tools/call\r\nmcp-name: add\r\ncontent-length: %d\r\n" % len(said)
    call = (GET % head).replace(b"GET / ", b"POST /mcp ") + said
    connection = Connection(gateway(add))
    assert b'"text":"3"' in await connection.send(call)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            await connection.send(call)
        assert gc.collect() < 20  # not even one for each
    finally:
        gc.enable()
