"""One connection of a server: what is passed on to uvicorn, what is refused, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from roundgate.errors import TransportError
from roundgate.http import ConnectionMiddleware
from roundgate.http.connections import LINGER_S, LOOK_EVERY_S, Bounds, Connections
from roundgate.http.room import Stage
from roundgate.settings import HttpConfig
from tests.fuzz.targets import Wire
from tests.support.asgi import gateway
from tests.support.clocks import pass_time
from tests.support.functions import add

GET: Final = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n%b\r\n"
App = Callable[[Any, Any, Any], Awaitable[None]]


class Connection:
    """A connection to a server of one app."""

    def __init__(self, app: Any, **http: Any) -> None:
        bounds = HttpConfig.model_validate(http)
        config = Config(
            ConnectionMiddleware(app),
            http=cast("Any", Connections(Bounds.from_config(bounds))),
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=bounds.idle_timeout_s,
        )
        config.load()
        self._state = ServerState()
        make: Any = config.http_protocol_class
        self.protocol = make(config=config, server_state=self._state, app_state={})
        self.client = Wire()
        self.protocol.connection_made(self.client)

    async def send(self, data: bytes) -> bytes:
        """Return what the server writes in answer."""
        self.client.answer.clear()
        self.protocol.data_received(data)
        await self.ended()
        return bytes(self.client.answer)

    async def feed(self, data: bytes) -> None:
        """Have the server read these bytes, once it reads; in vain if it does not in time. Between
        two reads of a connection the event loop goes round."""
        for _ in range(200):
            await asyncio.sleep(0)
            if not self.client.is_paused:
                self.protocol.data_received(data)
                return

    async def ended(self) -> None:
        """Wait until no request is being served."""
        for _ in range(3):  # a request that was held back begins a moment later
            while self._state.tasks:
                await asyncio.gather(*self._state.tasks)
                await asyncio.sleep(0)
            await asyncio.sleep(0)

    def look(self, in_s: float) -> None:
        """Have the server look at the connection as it does after so many seconds."""
        self.protocol.look(asyncio.get_running_loop().time() + in_s)


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
        connection.protocol.data_received(part)
        await asyncio.sleep(0)
    await connection.ended()
    answers = bytes(connection.client.answer)
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert app.bodies == [whole, b"x"]
    assert not connection.client.is_over


async def test_a_body_has_to_arrive_in_time() -> None:
    connection = Connection(Refusing(Echo()))
    connection.protocol.data_received(
        GET.replace(b"GET", b"POST") % b"content-length: 5\r\n" + b"he"
    )
    await asyncio.sleep(0)
    connection.look(in_s=HttpConfig().body_timeout_s + 1)
    await connection.ended()
    answer = bytes(connection.client.answer)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nconnection: close\r\n" in answer


async def test_a_request_counts_as_slow_only_while_the_app_waits_for_its_body() -> None:
    """An honest client whose whole request has arrived must not lose its place to another client
    because the app has not read the body yet."""
    may_read = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await may_read.wait()
        while (await receive())["more_body"]:
            pass
        await answering(start((b"content-length", b"0")), body(b""))(scope, receive, send)

    asked = GET.replace(b"GET", b"POST") % b"content-length: 5\r\n"
    whole, part = Connection(app), Connection(app)
    whole.protocol.data_received(asked + b"hello")
    part.protocol.data_received(asked + b"he")
    for _ in range(3):
        await asyncio.sleep(0)
    assert whole.protocol.stage is Stage.ANSWERING
    may_read.set()
    await whole.ended()
    for _ in range(3):
        await asyncio.sleep(0)
    assert part.protocol.stage is Stage.RECEIVING
    assert bytes(whole.client.answer).startswith(b"HTTP/1.1 200 ")
    part.protocol.data_received(b"llo")
    await part.ended()
    assert bytes(part.client.answer).startswith(b"HTTP/1.1 200 ")


async def test_time_in_which_the_event_loop_is_blocked_does_not_count_against_a_client() -> None:
    connection = Connection(answering(start((b"content-length", b"0")), body(b"")))
    pass_time(HttpConfig().head_timeout_s + 5)
    for _ in range(5):
        await asyncio.sleep(0)
    assert bytes(connection.client.answer) == b""
    while not connection.client.answer:  # it counts while the loop runs
        pass_time(LOOK_EVERY_S / 4)
        await asyncio.sleep(0)
    assert bytes(connection.client.answer).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_sent_no_whole_body_is_not_told_to_continue() -> None:
    may_read = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await may_read.wait()
        await receive()

    connection = Connection(Refusing(app))
    asked = GET % b"content-length: 2\r\nexpect: 100-continue\r\n"
    waiting = asyncio.create_task(connection.send(asked))
    await asyncio.sleep(0)  # the bytes are read
    await asyncio.sleep(0)  # the app begins
    connection.look(in_s=HttpConfig().body_timeout_s + 1)
    may_read.set()
    answer = await waiting
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"100 Continue" not in answer


class Refusing:
    """Answers the errors of an app with their HTTP status."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._app(scope, receive, send)
        except TransportError as error:
            refused = start((b"content-length", b"0"), status=error.status)
            await answering(refused, body(b""))(scope, receive, send)


async def test_a_response_before_the_body_has_arrived_closes_the_connection_after_a_while() -> None:
    connection = Connection(answering(start((b"content-length", b"0")), body(b"")))
    answer = await connection.send(GET % b"content-length: 5\r\n")
    assert b"\r\nconnection: close\r\n" in answer
    assert connection.client.is_over
    assert not connection.client.is_closing()  # the client can still send, and read the response
    connection.protocol.data_received(b"hello")
    connection.look(in_s=LINGER_S + 1)
    assert connection.client.is_closing()


async def test_a_connection_keeps_no_large_head() -> None:
    connection = Connection(answering(start((b"content-length", b"0")), body(b"")))
    path = b"/" + b"a" * 9_000 + b"%F0%9F%98%80"
    answer = await connection.send((GET % b"").replace(b" / ", b" " + path + b" "))
    assert b"\r\nconnection: close\r\n" in answer
    assert connection.client.is_closing()


async def test_half_a_head_behind_a_request_has_to_arrive_in_time_once_that_is_answered() -> None:
    connection = Connection(answering(start((b"content-length", b"0")), body(b"")))
    await connection.feed(GET % b"")
    await asyncio.sleep(0)
    await connection.feed(b"GET / HT")
    await connection.ended()
    connection.client.answer.clear()
    connection.look(in_s=HttpConfig().head_timeout_s + 1)
    assert bytes(connection.client.answer).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_requests_in_one_stream_are_answered_in_order_however_the_bytes_are_cut(
    size: int,
) -> None:
    app = Echo()
    connection = Connection(app)
    sent = [b"%d" % number * 50 for number in range(20)]
    stream = b"".join(
        GET.replace(b"GET", b"POST") % (b"content-length: %d\r\n" % len(each)) + each
        for each in sent
    )
    for at in range(0, len(stream), size):
        await connection.feed(stream[at : at + size])
    for _ in range(100):
        await connection.ended()
    assert app.bodies == sent


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_pipelined_request_may_be_cut_anywhere(is_slow: bool) -> None:
    seen: list[Any] = []
    may_answer = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received = (await receive())["body"]
        while len(received) < int(dict(scope["headers"])[b"content-length"]):
            received += (await receive())["body"]
        seen.append((len(scope["headers"]), received))
        await may_answer.wait()
        await answering(start((b"content-length", b"0")), body(b""))(scope, receive, send)

    sent = GET.replace(b"GET", b"POST") % b"content-length: 17\r\n" + b"\r\nupgrade: x\r\n\r\nx"
    for cut in range(1, len(sent)):
        seen.clear()
        may_answer.clear()
        connection = Connection(app)
        await connection.feed(sent + sent[:cut])
        if not is_slow:
            may_answer.set()
            for _ in range(10):
                await asyncio.sleep(0)
        await connection.feed(sent[cut:])
        may_answer.set()
        await connection.ended()
        assert seen == [(2, sent[-17:])] * 2, cut


async def test_the_body_of_a_pipelined_upgrade_is_no_request() -> None:
    paths: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await answering(start((b"content-length", b"0")), body(b""))(scope, receive, send)

    hidden = b"GET /hidden HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    upgrade = b"connection: upgrade\r\nupgrade: x\r\ncontent-length: %d\r\n" % len(hidden)
    connection = Connection(app)
    answer = await connection.send(GET % b"" + GET.replace(b"GET", b"POST") % upgrade)
    assert answer.endswith(b"connection: close\r\n\r\n")
    await connection.send(hidden)
    assert paths == ["/", "/"]


@pytest.mark.parametrize(
    "begun",
    [
        b"\r\n\r\nGET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 2 + b"GET / HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\nxGET / HTTP/1.1\r\n",
    ],
    ids=["after line ends", "second", "third", "after a body"],
)
@pytest.mark.parametrize("piece", [b"x: y\r\n", b" 1\r\n", b"x" * 500])
@pytest.mark.parametrize("is_slow", [False, True])
async def test_no_head_is_without_bound(begun: bytes, piece: bytes, is_slow: bool) -> None:
    may_answer = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await may_answer.wait()
        await answering(start((b"content-length", b"0")), body(b""))(scope, receive, send)

    if not is_slow:
        may_answer.set()
    connection = Connection(app)
    connection.protocol.data_received(begun)
    sent = 0
    while not connection.client.is_over and sent < 300_000:
        await connection.feed(piece * 20)
        sent += len(piece) * 20
    assert connection.client.is_over or connection.client.is_paused
    may_answer.set()
    while not connection.client.is_over and sent < 600_000:
        await connection.feed(piece * 20)
        sent += len(piece) * 20
    await connection.ended()
    assert connection.client.is_over


@pytest.mark.parametrize("is_slow", [False, True])
async def test_trailers_never_become_headers(is_slow: bool) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        seen.append([name for name, _ in scope["headers"]])
        await answering(start((b"content-length", b"0")), body(b""))(scope, receive, send)

    head = GET % b"transfer-encoding: chunked\r\n"
    rest = b"2\r\nhi\r\n0\r\nauthorization: Bearer x\r\nX-CSRF-Token: x\r\n\r\n"
    connection = Connection(app)
    for part in (head, rest) if is_slow else (head + rest,):
        await connection.feed(part)
    await connection.send(GET % b"")
    first, second = seen
    assert b"authorization" not in first
    assert b"x-csrf-token" not in first
    assert b"authorization" not in second


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
