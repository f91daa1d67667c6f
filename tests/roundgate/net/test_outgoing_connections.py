"""Connections to services and servers, against sockets that answer in ways that HTTP does not allow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from roundgate.net.http import make_client
from tests.support.authority import Authority
from tests.support.scripted import Asked, scripted, serving


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def chunked(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


async def interim(pause_s: float) -> AsyncGenerator[bytes, None]:
    while True:
        yield INTERIM
        await asyncio.sleep(pause_s)


async def test_interim_answers_without_end_are_refused() -> None:
    async with scripted(lambda asked: interim(0)) as server, make_client(timeout_s=60) as client:
        with pytest.raises(httpx.RemoteProtocolError, match="head"):
            await client.get(server.url)


async def test_interim_answers_do_not_extend_the_time_for_a_head() -> None:
    async with scripted(lambda asked: interim(0.05)) as server, make_client(timeout_s=1) as client:
        with pytest.raises(httpx.TimeoutException):
            await client.get(server.url)


async def test_a_few_interim_answers_are_skipped() -> None:
    async with (
        scripted(lambda asked: INTERIM * 20 + answer(b"final")) as server,
        make_client() as client,
    ):
        assert (await client.get(server.url)).text == "final"


@pytest.mark.parametrize("make", [answer, chunked])
async def test_a_long_body_has_no_bound_of_heads(make: object) -> None:
    body = b"x" * 3_000_000
    async with scripted(lambda asked: make(body)) as server, make_client() as client:  # type: ignore[operator]
        assert (await client.get(server.url)).content == body


FORGED = answer(b"forged")


@pytest.mark.parametrize("make", [answer, chunked])
@pytest.mark.parametrize(
    "behind",
    [FORGED, FORGED[:1], FORGED[:-1], b"HTTP/1.1 200 OK\r\nX-Start: ", b"\r\n", FORGED * 2_000],
    ids=["an answer", "a byte", "part of a body", "part of a head", "a blank line", "many"],
)
async def test_bytes_behind_an_answer_reach_no_other_request(make: object, behind: bytes) -> None:
    def script(asked: Asked) -> bytes:
        whole: bytes = make(asked.target.encode())  # type: ignore[operator]
        return whole + behind

    async with scripted(script) as server, make_client(max_connections=1) as client:
        for number in range(3):
            got = await client.get(f"{server.origin}/{number}")
            assert got.text == f"/{number}"


LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
READ = 65_536
"""The number of bytes that many clients read at once."""
TLS_OVERHEAD = 22
"""The number of bytes that a record of TLS 1.3 adds to at most 16,384 bytes of data."""


def answer_of_size(size: int) -> bytes:
    head = len(answer(b"x" * (size - 100))) - (size - 100)
    whole = answer(b"x" * (size - head))
    assert len(whole) == size
    return whole


@LOOPS
@pytest.mark.parametrize("size", [READ, 4 * READ])
def test_bytes_behind_an_answer_that_fills_a_read_reach_no_other_request(
    run: Callable[[Coroutine[Any, Any, None]], None], size: int
) -> None:
    async def check() -> None:
        whole = answer_of_size(size)
        async with (
            scripted(lambda asked: whole + FORGED) as server,
            make_client(max_connections=1) as client,
        ):
            for _ in range(6):
                assert (await client.get(server.url)).content != b"forged"

    run(check())


@LOOPS
def test_tls_records_behind_an_answer_that_fills_a_read_reach_no_other_request(
    run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    whole = answer_of_size(2 * READ - 8 * TLS_OVERHEAD)  # in eight records

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = iter([[answer(b"first")], [whole, FORGED]])
        while await reader.readuntil(b"\r\n\r\n"):
            writer.writelines(next(answers, [answer(b"late")]))
            await writer.drain()

    async def check() -> None:
        async with (
            serving(converse, authority.server("service", "127.0.0.1")) as url,
            make_client(tls=authority.trusting(), max_connections=1) as client,
        ):
            for _ in range(6):
                assert (await client.get(url)).content != b"forged"

    run(check())


@pytest.mark.parametrize("make", [answer, chunked])
async def test_a_connection_is_used_again_after_a_whole_answer(make: object) -> None:
    made = 0

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        made += 1
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(make(b"whole"))  # type: ignore[operator]

    async with serving(converse) as url, make_client() as client:
        for _ in range(3):
            assert (await client.get(url)).text == "whole"
    assert made == 1


async def test_nothing_of_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with scripted(lambda asked: answer(b"direct")) as server, make_client() as client:
        assert (await client.get(server.url)).text == "direct"


async def test_cookies_of_one_answer_are_not_sent_with_the_next_request() -> None:
    def script(asked: Asked) -> bytes:
        return answer(b"").replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=b\r\n\r\n")

    async with scripted(script) as server, make_client() as client:
        await client.get(server.url)
        await client.get(server.url)
    assert "cookie" not in server.asked[1].headers


async def test_errors_are_those_of_httpx() -> None:
    async with scripted(lambda asked: None) as server, make_client() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(server.url)
    async with make_client() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(server.url)
        with pytest.raises(httpx.UnsupportedProtocol):
            await client.get("ftp://127.0.0.1/")


async def test_an_answer_in_a_tls_record_of_its_own_reaches_no_other_request(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    asked: list[str] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            target = head.split(b" ")[1]
            asked.append(target.decode())
            writer.writelines([answer(target), FORGED])  # one segment with two records
            await writer.drain()

    async with (
        serving(converse, authority.server("service", "127.0.0.1")) as url,
        make_client(tls=authority.trusting(), max_connections=1) as client,
    ):
        for number in range(3):
            assert (await client.get(f"{url}{number}")).text == f"/{number}"
    assert asked == ["/0", "/1", "/2"]


async def test_a_cancelled_tls_handshake_closes_its_connection(tmp_path: Path) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):  # without an answer
            asked.set()
        ended.set()

    async with (
        serving(converse) as url,
        make_client(tls=Authority(tmp_path).trusting(), timeout_s=60) as client,
    ):
        call = asyncio.create_task(client.get(url.replace("http:", "https:")))
        await asked.wait()
        call.cancel()
        async with asyncio.timeout(60):
            await ended.wait()


@LOOPS
def test_a_tls_handshake_has_the_time_limit_of_its_connection(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async def check() -> None:
        async with serving(converse) as url, make_client(max_connections=1) as client:
            limits = httpx.Timeout(60, connect=0.1)
            for _ in range(2):  # the first one has freed its slot
                with pytest.raises(httpx.ConnectTimeout):
                    await client.get(url.replace("http:", "https:"), timeout=limits)

    run(check())


async def test_an_invalid_tls_record_is_an_error_of_httpx(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        record = b"\x17\x03\x03\x00\x20" + bytes(32)  # application data that nothing decrypts
        raw = writer.get_extra_info("socket").dup()
        os.write(raw.fileno(), record)
        raw.close()
        await reader.read()

    async with (
        serving(converse, authority.server("service", "127.0.0.1")) as url,
        make_client(tls=authority.trusting(), timeout_s=60) as client,
    ):
        with pytest.raises(httpx.ReadError, match=r"(?i)\bmac\b"):
            await client.get(url)
