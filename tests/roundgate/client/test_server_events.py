"""Events are the same however their bytes arrive, and no stream makes the reader
hold more than it may."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.client import Client
from roundgate.client.messages import EventReader
from roundgate.errors import BadAnswer
from roundgate.net.serving import served

STREAM = (
    b'\xef\xbb\xbf: hello\r\nid: 1\r\ndata: {"a":\r\ndata:  1}\r\n\r\n'
    b"retry: 500\rid: 2\rdata:\r\rdata: last\nevent: x\n\n"
)
EVENTS = [(b'{"a":\n 1}', "1", None), (b"", "2", 500), (b"last", "2", None)]


def read(pieces: list[bytes], bound: int = 1000) -> list[tuple[bytes, str | None, int | None]]:
    reader = EventReader(bound)
    return [(one.data, one.id, one.retry_ms) for piece in pieces for one in reader.feed(piece)]


@given(st.lists(st.integers(1, 9)))
def test_a_stream_gives_the_same_events_however_it_arrives(sizes: list[int]) -> None:
    rest, pieces = STREAM, []
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert read([*pieces, rest]) == EVENTS


def test_an_event_is_handed_out_with_the_byte_that_ends_it() -> None:
    reader = EventReader(1000)
    assert reader.feed(b"data: 1\n") == []
    assert [one.data for one in reader.feed(b"\n")] == [b"1"]


def test_comments_and_unknown_fields_are_no_events() -> None:
    assert read([b": keep alive\n\nnonsense\nevent: ping\n\n"]) == []


@pytest.mark.parametrize(
    "flood", [b"x" * 2000, b"data: " + b"x" * 2000 + b"\n", b"data: abcdefgh\n" * 200]
)
def test_an_event_without_end_is_refused(flood: bytes) -> None:
    with pytest.raises(BadAnswer, match="max_message"):
        read([flood])


def test_a_long_event_in_small_pieces_takes_time_in_proportion() -> None:
    reader = EventReader(32 * 1024 * 1024)
    piece, began = b"x" * 2048, time.process_time()
    for _ in range(8_000):  # minutes, if what came before is read again with each piece
        reader.feed(piece)
    assert time.process_time() - began < 20


@pytest.mark.parametrize("is_older", [False, True])
async def test_a_stream_that_ends_after_its_result_leaves_its_connection_usable(
    is_older: bool,
) -> None:
    connections: set[int] = set()
    found: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "protocolVersion": "2025-11-25"}
    results: dict[str, Any] = {
        "server/discover": found | {"capabilities": {"tools": {}}, "ttlMs": 0},
        "initialize": found | {"capabilities": {"tools": {}}},
        "tools/list": {
            "tools": [{"name": "t", "inputSchema": {"type": "object"}}],
            "ttlMs": 60_000,
        },
        "tools/call": {"content": [{"type": "text", "text": "x"}]},
    }

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = json.loads((await receive())["body"] or b"{}")
        method = message.get("method")
        is_known = method in results and not (is_older and method == "server/discover")
        about = {"serverInfo": {"name": "s", "version": "1"}, "cacheScope": "public"}
        if is_known:
            done = {"result": results[method] | about | {"resultType": "complete"}}
        else:
            done = {"error": {"code": -32601, "message": "Method not found"}}
        body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **done}).encode()
        is_call = method == "tools/call"
        kind, body = (
            ("text/event-stream", b"data: %b\n\n" % body) if is_call else ("application/json", body)
        )
        headers = [(b"content-type", kind.encode())]
        await send(
            {
                "type": "http.response.start",
                "status": 200 if "id" in message else 202,
                "headers": headers,
            }
        )
        await send({"type": "http.response.body", "body": body, "more_body": True})
        if is_call:
            connections.add(scope["client"][1])
            await asyncio.sleep(0.005)
        await send({"type": "http.response.body", "body": b""})

    async with served(app) as port, Client(f"http://127.0.0.1:{port}/mcp") as client:
        for _ in range(10):
            assert (await client.call("t")).value == "x"
            await asyncio.sleep(0.02)
    assert len(connections) < 8
