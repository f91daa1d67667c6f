"""Servers that want the client's time, memory or processor: each is stopped by a
bound that the error names."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from roundgate.client import Client, Limits
from roundgate.client.transport import Url
from roundgate.errors import BadAnswer, ClientError, TimedOut
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    Script,
    event,
    http,
    modern,
    notice,
    result,
    scripted,
    text,
)


async def called(script: Script, limits: Limits = Limits(), *, over_httpx: bool = False) -> Any:  # noqa: B008 — frozen
    async with (
        scripted(modern(script)) as server,
        asyncio.timeout(60),
        httpx.AsyncClient(trust_env=False, timeout=60) as http_client,
        Client(server.url, limits=limits, http=http_client if over_httpx else None) as client,
    ):
        return await client.call("t")


async def drip(head: bytes, piece: bytes, pause_s: float = 0.01) -> AsyncGenerator[bytes, None]:
    yield head
    while True:
        yield piece
        await asyncio.sleep(pause_s)


@pytest.mark.parametrize(
    "drops",
    [
        lambda asked: drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        lambda asked: drip(b"HTTP/1.1 200 OK\r\n", b"X"),
        lambda asked: drip(b"", b"HTTP/1.1 200 OK\r\nX-Long: "),
        lambda asked: drip(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b" "
        ),
        lambda asked: drip(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\n \r\n",
        ),
        lambda asked: drip(STREAM_HEAD, b"data: x\n"),
        lambda asked: drip(STREAM_HEAD, notice("x")),
    ],
    ids=["interim", "head", "header", "body", "chunks", "event", "notifications"],
)  # fmt: skip
async def test_an_answer_that_comes_drop_by_drop_ends_in_time(drops: Script) -> None:
    with pytest.raises(TimedOut, match="request_s"):
        await called(drops, Limits(request_s=1))


async def test_interim_answers_without_end_are_refused() -> None:
    with pytest.raises(BadAnswer, match="sent an invalid HTTP response"):
        await called(lambda asked: drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000, 0))


async def test_interim_answers_do_not_extend_the_time_for_an_answer() -> None:
    with pytest.raises(TimedOut, match="idle_s"):
        await called(lambda asked: drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), Limits(idle_s=1))


async def test_a_few_interim_answers_are_passed_over() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 3
    assert (await called(lambda asked: hints + result(asked, text("there")))).text == "there"


@pytest.mark.parametrize("over_httpx", [False, True])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_what_is_compressed_is_unpacked_up_to_the_limit(kind: str, over_httpx: bool) -> None:
    def bomb(asked: Asked) -> bytes:
        message = {"jsonrpc": "2.0", "id": asked.message["id"], "result": text("x" * 2_000_000)}
        plain = json.dumps(message).encode() if kind.endswith("json") else event(message)
        return http(200, gzip.compress(plain), kind, Content_Encoding="gzip")

    with pytest.raises(BadAnswer, match="more than 1000000 bytes"):
        await called(bomb, Limits(max_message=1_000_000), over_httpx=over_httpx)


@pytest.mark.parametrize("depth", [500, 100_000])
async def test_json_that_is_nested_without_end_is_refused(depth: int) -> None:
    with pytest.raises(BadAnswer, match="not JSON"):
        await called(lambda asked: http(200, b'{"a":' * depth + b"1" + b"}" * depth))


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example", "a b", "x" * 300])
def test_a_host_that_cannot_be_is_refused(host: str) -> None:
    with pytest.raises(ClientError, match="host"):
        Client(f"https://{host}/mcp")


def test_a_host_in_other_letters_is_shown_as_it_is_asked_for() -> None:
    assert str(Url.parse("https://раypal.example/mcp")) == "https://xn--ypal-43d9g.example/mcp"
