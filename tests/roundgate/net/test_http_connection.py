"""One connection of `net.connection`: its bounds, and the ends of answers that HTTP/1.1 knows."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import httpx
import pytest
import uvloop

from roundgate.net.connection import MAX_HEAD_BYTES, HttpAnswer, HttpConnection, connect
from roundgate.net.http import PooledTransport, make_client, read_url, trust_store
from roundgate.net.request import WireRequest
from tests.support.authority import Authority
from tests.support.listening import Converse
from tests.support.scripted import serving

PATIENCE_S = 60
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


def answering(*answers: bytes, ends: bool = False) -> Converse:
    """Return a server that sends one answer for each request of a connection, and closes the
    connection after the last one if it `ends`."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        if not ends:
            await reader.read()

    return converse


async def test_a_connection_stops_to_receive_while_much_is_unread() -> None:
    size, sent = 50_000_000, 0

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000
        await reader.read()  # the end of a conversation drops what is not yet sent

    async with (
        serving(converse) as url,
        make_client(timeout_s=PATIENCE_S) as client,
        client.stream("GET", url) as response,
    ):
        await asyncio.sleep(0.5)  # time in which a connection without a bound receives all
        assert sent < size
        received = 0
        async for part in response.aiter_raw():
            received += len(part)
        assert received == size


async def test_the_event_loop_rests_after_a_request_without_a_body() -> None:
    """With asyncio of Python 3.12 and later, `writelines` with an empty body keeps it busy."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.5)
        writer.write(WHOLE)
        await reader.read()

    async with serving(converse) as url, make_client(timeout_s=PATIENCE_S) as client:
        since = time.process_time()
        assert (await client.get(url)).text == "ok"
        assert time.process_time() - since < 0.3


async def test_bytes_that_the_event_loop_has_not_read_make_a_connection_unusable() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await answering(*[WHOLE] * 3)(reader, writer)

    async with serving(converse) as url, make_client(max_connections=1) as client:
        assert (await client.get(url)).text == "ok"
        assert (await client.get(url)).text == "ok"
        assert len(writers) == 1
        # the event loop does not run between this and the look at the connection
        os.write(writers[0].get_extra_info("socket").fileno(), WHOLE.replace(b"ok", b"no"))
        assert (await client.get(url)).text == "ok"
        assert len(writers) == 2


async def test_bytes_on_an_idle_connection_close_it() -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"H")
        await reader.read()
        ended.set()

    ended = asyncio.Event()
    async with serving(converse) as url, make_client(keep_alive_s=PATIENCE_S) as client:
        assert (await client.get(url)).text == "ok"
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()


@LOOPS
def test_bytes_before_a_tls_handshake_are_not_taken_for_encrypted_ones(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(WHOLE)
        await reader.read()

    async def check() -> None:
        async with serving(converse) as url, make_client(timeout_s=PATIENCE_S) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(url.replace("http:", "https:"))

    run(check())


async def test_an_answer_without_a_length_is_not_complete_when_its_client_is_closed() -> None:
    async with serving(answering(b"HTTP/1.1 200 OK\r\n\r\npart")) as url:
        client = make_client(timeout_s=PATIENCE_S)
        async with client.stream("GET", url) as response:
            reading = asyncio.create_task(response.aread())
            await asyncio.sleep(0.05)
            await client.aclose()
            with pytest.raises(httpx.ReadError):
                await reading


async def test_a_request_that_the_service_does_not_take_times_out() -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(PATIENCE_S)

    async with serving(converse) as url, make_client() as client:
        with pytest.raises(httpx.WriteTimeout):
            await client.post(url, content=bytes(50_000_000), timeout=httpx.Timeout(60, write=0.1))


async def test_a_long_answer_that_comes_before_the_request_is_read_arrives() -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 413 Too Large\r\nContent-Length: 20000000\r\n\r\n" + bytes(20_000_000)
        )
        await writer.drain()
        await reader.read()

    async with serving(converse) as url:
        transport, (origin, target) = PooledTransport(), read_url(url)
        request = WireRequest("POST", origin, target, [], bytes(20_000_000), write_s=PATIENCE_S)
        answer = await transport.send(request)
        assert (answer.status, sum([len(part) async for part in answer])) == (413, 20_000_000)
        await transport.aclose()


async def test_an_answer_that_comes_before_the_whole_request_is_read() -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE.replace(b"200 OK", b"413 Content Too Large"))
        await writer.drain()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(PATIENCE_S)

    async with serving(converse) as url, make_client(timeout_s=PATIENCE_S) as client:
        assert (await client.post(url, content=bytes(50_000_000))).status_code == 413


async def test_the_next_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    lookup = loop.getaddrinfo
    ports = [1]  # refuses

    async def two_addresses(host: str, port: int, **options: Any) -> list[Any]:
        return [each for port in ports for each in await lookup("127.0.0.1", port, **options)]

    monkeypatch.setattr(loop, "getaddrinfo", two_addresses)
    async with serving(answering(WHOLE)) as url, make_client() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://service.example/")
        ports.append(httpx.URL(url).port or 0)
        assert (await client.get("http://service.example/")).text == "ok"


@pytest.mark.parametrize("first", [b"220 ready", b""], ids=["a greeting", "its end"])
async def test_a_request_is_not_sent_on_a_connection_that_ended_meanwhile(first: bytes) -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        writer.close()

    async with serving(converse) as url:
        origin, target = read_url(url)
        connection = await connect(origin, trust_store(), PATIENCE_S, lambda _: None)
        await asyncio.sleep(0.1)
        with pytest.raises(httpx.ConnectError):
            await connection.send(WireRequest("GET", origin, target, []))
        connection.close()


async def test_a_long_head_is_refused() -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while True:
            writer.write(bytes(10_000).replace(b"\0", b"x"))
            await writer.drain()

    async with serving(converse) as url, make_client(timeout_s=PATIENCE_S) as client:
        with pytest.raises(httpx.RemoteProtocolError, match=str(MAX_HEAD_BYTES)):
            await client.get(url)


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (b"2\r\nok\r\n0\r\n", b"X-Trailer: x\r\n"),
        (b"2\r\nok\r\n0\r\nX-Trailer: ", b"x"),
        (b"2;name=", b"x"),
    ],
)
async def test_data_of_a_chunked_body_that_is_no_part_of_it_has_a_limit(
    begun: bytes, piece: bytes
) -> None:
    sent = 0

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + begun)
        while sent < 50_000_000:
            writer.write(piece * 1000)
            await writer.drain()
            sent += len(piece) * 1000

    async with serving(converse) as url, make_client(timeout_s=PATIENCE_S) as client:
        with pytest.raises(httpx.RemoteProtocolError, match=str(MAX_HEAD_BYTES)):
            await client.get(url)


async def test_small_chunks_of_a_long_body_exceed_no_limit() -> None:
    chunks = b"1;name=value\r\nx\r\n" * 40_000
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % chunks
    async with serving(answering(answer)) as url, make_client(timeout_s=PATIENCE_S) as client:
        assert (await client.get(url)).content == b"x" * 40_000


async def test_a_head_that_arrives_byte_by_byte_takes_little_time() -> None:
    answer = HttpAnswer(cast("HttpConnection", None), None, has_body=True)
    answer.feed(b"HTTP/1.1 200 OK\n" + b"a:\n" * 40_000)
    begun_s = time.process_time()
    for _ in range(4_000):
        answer.feed(b"x")
    assert time.process_time() - begun_s < 1  # 6 s if each byte counts the headers


async def test_whitespace_around_the_value_of_a_header_is_no_part_of_it() -> None:
    answer = b"HTTP/1.1 200 OK\r\nX-Kind: \t a b \t\r\nContent-Length: 0\r\n\r\n"
    async with serving(answering(answer)) as url, make_client(timeout_s=PATIENCE_S) as client:
        assert (await client.get(url)).headers.raw[0] == (b"X-Kind", b"a b")


async def test_a_trailer_is_not_a_header() -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Kind: head\r\n\r\n"
        b"2\r\nok\r\n0\r\nX-Kind: trailer\r\nLocation: http://service.example/\r\n\r\n"
    )
    async with serving(answering(answer)) as url, make_client(timeout_s=PATIENCE_S) as client:
        headers = (await client.get(url)).headers
    assert dict(headers) == {"transfer-encoding": "chunked", "x-kind": "head"}


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example"])
async def test_a_host_that_no_name_service_can_know_is_unknown(host: str) -> None:
    async with make_client(timeout_s=PATIENCE_S) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://{host}/")


async def test_a_head_that_arrives_in_pieces_has_one_time_limit() -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)

    async with serving(converse) as url, make_client(timeout_s=0.5) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get(url)


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", b"/", {b"x-a": b"b\r\nx-forged: c"}),
        ("GET", b"/", {b"x-a": b"b\nx-forged: c"}),
        ("GET", b"/", {b"x-a": b"b\0"}),
        ("GET", b"/", {b"x-a: b\r\nx-forged": b"c"}),
        ("GET", b"/", {b"x a": b"b"}),
        ("GET", b"/ HTTP/1.1\r\nx-forged: c\r\n\r\n", {}),
        ("GET", b"/a b", {}),
        ("GET / HTTP/1.1\r\n\r\n", b"/", {}),
    ],
)
async def test_a_part_of_a_head_cannot_add_lines(
    method: str, target: bytes, headers: dict[bytes, bytes]
) -> None:
    async with serving(answering(WHOLE)) as url:
        transport = PooledTransport(max_connections=1)
        sent = [(b"Host", b"service.example"), *headers.items()]
        request = httpx.Request(method, url, headers=sent, extensions={"target": target})
        with pytest.raises(httpx.LocalProtocolError):
            await transport.handle_async_request(request)
        request = httpx.Request("GET", url, headers={b"x-a": b"t\xc3\xa4glich"})
        answer = await transport.handle_async_request(request)
        assert await answer.aread() == b"ok"
        await transport.aclose()


@pytest.mark.parametrize("length", [3, 5])
async def test_a_body_has_its_own_length_whatever_a_header_says(length: int) -> None:
    received = bytearray()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(4))
        writer.write(WHOLE)

    async with serving(converse) as url, make_client() as client:
        await client.post(url, content=b"body", headers={"Content-Length": str(length)})
    assert received.lower().count(b"content-length") == 1
    assert b"Content-Length: 4\r\n" in received
    assert received.endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2  \r\nok\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\nX: y\r\n\r\n", b"ok"),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)  # fmt: skip
async def test_an_answer_ends_as_its_head_says(answer: bytes, body: bytes) -> None:
    async with (
        serving(answering(answer, ends=True)) as url,
        make_client(timeout_s=PATIENCE_S) as client,
    ):
        assert (await client.get(url)).content == body


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n14\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked \r\n\r\n2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nA header: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
)
async def test_an_answer_that_is_not_whole_is_an_error(answer: bytes) -> None:
    async with (
        serving(answering(answer, ends=True)) as url,
        make_client(timeout_s=PATIENCE_S) as client,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(url)


async def test_the_answer_to_head_has_no_body_whatever_its_head_says() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
    async with serving(answering(head)) as url, make_client(timeout_s=PATIENCE_S) as client:
        for _ in range(2):
            response = await client.head(url)
            assert (response.headers["content-length"], response.content) == ("100", b"")


@LOOPS
def test_a_large_body_arrives_and_leaves_over_tls(
    run: Callable[[Coroutine[Any, Any, None]], None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    body = bytes(index % 251 for index in range(3_000_000))

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            echoed = await reader.readexactly(len(body))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), echoed))
            await writer.drain()

    async def check() -> None:
        tls = authority.server("service", "127.0.0.1")
        async with (
            serving(converse, tls) as url,
            make_client(tls=authority.trusting(), timeout_s=PATIENCE_S) as client,
        ):
            for _ in range(2):
                assert (await client.post(url, content=body)).content == body

    run(check())


async def test_no_object_of_an_answer_waits_for_the_garbage_collector() -> None:
    async with serving(answering(*[WHOLE] * 20)) as url:
        transport = PooledTransport()
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                request = httpx.Request("GET", url)
                response = await transport.handle_async_request(request)
                assert [part async for part in response.stream] == [b"ok"]  # type: ignore[union-attr]
                await response.aclose()
            kept = [each for each in gc.get_objects() if isinstance(each, HttpAnswer)]
        finally:
            gc.enable()
            await transport.aclose()
    assert len(kept) == 1
