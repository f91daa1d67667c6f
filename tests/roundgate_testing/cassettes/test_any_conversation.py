"""Whatever is said, by whoever: it can be recorded, written, read again, and answered from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roundgate.client import Client
from roundgate.json import encode
from roundgate_testing.cassettes import RULES, CassetteVerifier, Recorder, StandIn, read
from roundgate_testing.cassettes.files import as_text
from roundgate_testing.cassettes.normalize import make_cassette
from roundgate_testing.cassettes.recording import Recording
from tests.support.long import examples
from tests.support.scripted import STREAM_HEAD, Asked, event, modern, result, scripted, text

IDS = st.sampled_from([1, 2, "1", "q", None, True, 1.5, ["x"]])
TEXTS = st.sampled_from(["", "a", "${x}", "\x1b[2J", "2026-11-22T10:00:00Z", "\u202e", "0" * 40])
VALUES = st.recursive(
    IDS | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["requestState", "taskId", "_meta", "progressToken", "tools", "name", "pin"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0"]),
        "id": IDS,
        "method": st.sampled_from(["tools/call", "tasks/get", "initialize", "notifications/x"])
        | VALUES,
        "params": VALUES,
        "result": VALUES,
        "error": VALUES,
        "more": VALUES,
    },
)
BODIES = st.binary(max_size=20) | (MEMBERS | st.lists(MEMBERS, max_size=2) | VALUES).map(encode)
EXCHANGES = st.tuples(
    st.sampled_from(["POST", "GET", "DELETE"]),
    BODIES,
    st.sampled_from([200, 202, 307, 400, 401, 404, 503, None]),
    st.sampled_from(["application/json", "text/event-stream", "text/html", ""]),
    st.lists(BODIES, max_size=3),
    st.sampled_from(["server", "client", "cut"]),
)


def taped(said: list[Any]) -> Recording:
    recording = Recording()
    for http, body, status, kind, parts, end in said:
        exchange = recording.begin(http, [("Mcp-Param-X", "y")], body if http == "POST" else None)
        if status is not None:
            recording.head(exchange, status, {"content-type": kind, "mcp-session-id": "s"})
            for part in parts:
                is_stream = kind == "text/event-stream"
                recording.arrived(
                    exchange, b"id: e\ndata: " + part + b"\n\n" if is_stream else part
                )
        recording.end(exchange, end)
    return recording


@examples(40)
@given(st.lists(EXCHANGES, max_size=4))
@example(
    [("POST", b"{}", 200, "application/json", [encode({"x": {"progressToken": 1}})], "server")]
)
def test_any_exchanges_make_a_cassette_that_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, said: list[Any]
) -> None:
    cassette = make_cassette(taped(said), RULES, redact=("pin",))
    file: Path = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(as_text(cassette))
    assert as_text(read(file)) == as_text(cassette)
    asyncio.run(asked_again(read(file), said))


async def asked_again(cassette: Any, said: list[Any]) -> None:
    """A stand-in answers whatever it is asked, with what was recorded or an error."""
    found = StandIn(cassette)
    for http, body, *_ in said:
        reply = await asyncio.wait_for(answered(found, http, body), 60)
        assert reply is None or 200 <= reply.status <= 599


async def answered(found: StandIn, http: str, body: bytes) -> Any:
    task = asyncio.ensure_future(found.answer(http, {}, body))
    done, _ = await asyncio.wait({task}, timeout=0.05)
    if not done:  # it waits for an answer that is not going to come
        task.cancel()
        return None
    reply = task.result()
    if reply is not None and reply.stream is not None:
        await reply.stream.aclose()
    return reply


async def test_calls_at_once_are_recorded_in_the_order_in_which_they_were_sent() -> None:
    async def slow_first(asked: Asked) -> bytes:
        number = asked.params["arguments"]["number"]
        await asyncio.sleep(0.05 * (3 - number))
        return result(asked, text(f"done {number}"))

    written = set()
    async with scripted(modern(slow_first)) as server:
        for _ in range(2):
            recorder = Recorder(None, server.url)
            async with Client(server.url, transport=recorder) as client:
                await client.tools()
                await asyncio.gather(*(client.call("t", number=number) for number in range(3)))
            written.add(as_text(recorder.cassette))
        outcomes = [one async for one in CassetteVerifier(recorder.cassette, [server.url]).run()]
    assert len(written) == 1
    assert [one.title for one in outcomes[-3:]] == ["tools/call t"] * 3
    assert [one for one in outcomes if one.differences] == []


async def test_a_call_that_was_cancelled_is_sent_and_cancelled_again() -> None:
    async def never_ends(asked: Asked) -> Any:
        yield STREAM_HEAD
        progress = {"progressToken": asked.params["_meta"].get("progressToken"), "progress": 1}
        yield event({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        await asyncio.sleep(600)

    async with scripted(modern(never_ends)) as server:
        recorder = Recorder(None, server.url)
        async with Client(server.url, transport=recorder) as client:
            seen = asyncio.Event()
            call = asyncio.create_task(client.call("t", on_progress=lambda one: seen.set()))
            await asyncio.wait_for(seen.wait(), 60)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        cassette = recorder.cassette
        last = cassette.interactions[-1].response
        assert last is not None
        assert last.end == "client"
        verifier = CassetteVerifier(cassette, [server.url], timeout_s=60)
        assert [one async for one in verifier.run() if one.differences] == []
