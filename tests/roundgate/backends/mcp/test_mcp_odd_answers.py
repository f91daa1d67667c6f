"""Servers that write JSON loosely: what can be read is read, and what cannot be read ends its own
call at once."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.support import odd_answers
from tests.support.asgi import Client
from tests.support.odd_answers import EXPECTED, NAMES
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    http,
    notice,
    result,
    result_event,
    scripted,
    text,
)
from tests.support.task_client import TaskClient
from tests.support.upstreams import Upstream, fronted, gateway_of, health, names, state, tool, until

BROKEN = ("half_an_answer", "a_tab_in_a_text", "id_last")


def program(*arguments: str, **settings: Any) -> dict[str, Any]:
    """An entry of `backends` for the program, whose calls may take a minute."""
    command = [sys.executable, odd_answers.__file__, *arguments]
    return {"kind": "mcp", "name": "up", "command": command, **settings}


def by_url(url: str, **settings: Any) -> dict[str, Any]:
    return {"kind": "mcp", "name": "up", "url": url, **settings}


def body(asked: Asked) -> bytes:
    return odd_answers.answer(asked.params["name"], asked.message["id"])


def in_one_object(asked: Asked) -> bytes:
    return http(200, body(asked))


async def in_a_stream(asked: Asked) -> AsyncGenerator[bytes, None]:
    yield STREAM_HEAD + b": comment\n\nevent: ping\ndata: 2026-11-28\n\ndata: still here\n\n"
    yield b"data: " + body(asked) + b"\n\n"
    await asyncio.sleep(60)


async def assert_answers(mcp: Client) -> None:
    for name in NAMES:
        async with asyncio.timeout(30):  # half of the limit of a call
            found = await mcp.call(f"up__{name}")
        shown = found["content"][0]["text"]
        if name in EXPECTED:
            assert (shown, found["structuredContent"]["n"]) == EXPECTED[name], name
            assert None not in found["content"][0].values(), name
        elif name in BROKEN:
            assert found["isError"], name
            assert "not JSON" in shown, name
            assert "the call may have taken effect" in shown, name
        else:
            assert "20000 bytes (max_response_bytes)" in shown, name


async def test_a_process_may_write_json_loosely(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway_of(program(max_response_bytes=20_000)) as mcp:
        await until(True, lambda: is_listed(mcp))
        await assert_answers(mcp)
        assert await is_listed(mcp)
        state = await health(mcp)
        assert state["status"] == "up"
        assert state["skipped"] == len(NAMES) + len(BROKEN) + 1
    told = [one for one in caplog.records if one.msg == "a server sends what is no message"]
    assert [one.__dict__["fields"]["of"] for one in told] == ["up"]
    assert all("line of a log" not in str(one.__dict__) for one in caplog.records)


@pytest.mark.parametrize("call", [in_one_object, in_a_stream])
async def test_a_server_at_a_url_may_write_json_loosely(
    call: Any, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = Upstream(call=call, tools=odd_answers.tools())
    async with scripted(upstream) as server:
        entry = {**by_url(server.url), "name": "up", "max_response_bytes": 20_000}
        async with gateway_of(entry) as mcp:
            await assert_answers(mcp)
            assert (await health(mcp))["status"] == "up"


async def is_listed(mcp: Client) -> bool:
    return "up__nan" in await names(mcp)


async def test_each_repair_is_logged_once_for_a_server(caplog: pytest.LogCaptureFixture) -> None:
    upstream = Upstream(call=in_one_object, tools=odd_answers.tools())
    async with (
        scripted(upstream) as server,
        gateway_of({**by_url(server.url), "name": "logged"}) as mcp,
    ):
        for name in ("nan", "infinity", "a_name_twice", "half_an_emoji", "nan"):
            await mcp.call(f"logged__{name}")
    told = [
        one.__dict__["fields"]["repair"]
        for one in caplog.records
        if one.msg == "answers are not valid JSON; they are repaired"
    ]
    assert told == [
        "NaN and infinite numbers became null",
        "of members with one name the last was taken",
        "characters that are not Unicode became U+FFFD",
    ]


async def test_a_call_that_cannot_be_read_ends_no_other_call() -> None:
    async with gateway_of(program()) as mcp:
        await until(True, lambda: is_listed(mcp))
        calls = [mcp.call(f"up__{name}") for name in ("half_an_answer", "nan", "id_last", "nan")]
        broken, read, last, again = await asyncio.gather(*calls)
    assert (broken["isError"], last["isError"]) == (True, True)
    assert read["content"] == again["content"] == [{"type": "text", "text": odd_answers.CAFE}]


async def test_the_charset_that_the_header_names_is_decoded() -> None:
    def call(asked: Asked) -> bytes:
        value = {"jsonrpc": "2.0", "id": asked.message["id"]}
        value["result"] = {"resultType": "complete", **text(odd_answers.CAFE)}
        written = json.dumps(value, ensure_ascii=False).encode(charset)
        return http(200, written, kind=f'application/json; charset="{charset}"')

    async with fronted(Upstream(call=call)) as (_, mcp):
        for charset in ("latin-1", "UTF-16", "utf-16le", "windows-1252"):
            assert await mcp.text("up__t") == odd_answers.CAFE, charset


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_is_compressed_unasked_is_unpacked(
    encoding: str, is_stream: bool
) -> None:
    pack = gzip.compress if encoding == "gzip" else zlib.compress

    def compressed(asked: Asked) -> bytes:
        plain = Upstream()(asked).partition(b"\r\n\r\n")[2]
        kind = "application/json"
        if is_stream and asked.rpc == "tools/call":
            plain, kind = b"data: " + plain + b"\n\n", "text/event-stream"
        return http(200, pack(plain), kind=kind, Content_Encoding=encoding)

    async with fronted(compressed) as (_, mcp):
        assert await mcp.text("up__t") == "done"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_bomb_is_unpacked_to_the_limit_only(is_stream: bool) -> None:
    kind = "text/event-stream" if is_stream else "application/json"
    bomb = gzip.compress(b"data: " + b"x" * 50_000_000)

    def call(asked: Asked) -> bytes:
        return http(200, bomb, kind=kind, Content_Encoding="gzip")

    async with fronted(Upstream(call=call), max_response_bytes=100_000) as (_, mcp):
        found = await mcp.call("up__t")
    assert "100000 bytes" in found["content"][0]["text"]
    assert "may have taken effect" in found["content"][0]["text"]


NULLS: dict[str, Any] = {
    "name": "nulls",
    "title": None,
    "description": None,
    "inputSchema": {
        "type": "object",
        "description": None,
        "required": None,
        "properties": {"a": {"type": ["string", "null"], "default": None, "title": None}},
    },
    "outputSchema": None,
    "annotations": {"readOnlyHint": None, "title": None, "destructiveHint": False},
    "icons": None,
    "_meta": None,
}


async def test_null_stands_for_a_member_that_is_missing() -> None:
    bare = {**tool("bare"), "annotations": None}
    bare["inputSchema"] = {"type": "object", "properties": None}
    async with fronted(Upstream(tools=[NULLS, bare])) as (_, mcp):
        listed = {one["name"]: one for one in (await mcp.result("tools/list"))["tools"]}
        assert "left_out" not in await health(mcp)
    assert listed["up__nulls"]["inputSchema"] == {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"], "default": None}},
    }
    assert listed["up__nulls"]["annotations"] == {"destructiveHint": False}
    assert "outputSchema" not in listed["up__nulls"]
    assert listed["up__bare"]["inputSchema"] == {"type": "object"}


HUGE: int = 10**400
"""A whole number that no float can hold."""


async def test_a_list_whose_time_is_no_usable_number_is_read_again() -> None:
    upstream = Upstream(ttl_ms=HUGE)
    async with fronted(upstream, refresh_s=5) as (_, mcp):
        upstream.tools = [tool("other")]
        await until(["up__other"], lambda: names(mcp))


async def test_progress_that_is_no_usable_number_costs_no_result() -> None:
    async def call(asked: Asked) -> AsyncGenerator[bytes, None]:
        token = asked.params["_meta"]["progressToken"]
        yield STREAM_HEAD
        for numbers in ({"progress": HUGE}, {"progress": 1, "total": HUGE}):
            yield notice("progress", progressToken=token, **numbers)
        yield result_event(asked, text("done"))

    override = {"t": {"task": "required"}}
    async with fronted(Upstream(call=call), override=override) as (_, mcp):
        task = await TaskClient(mcp).over(await TaskClient(mcp).begin("up__t"))
    assert task["result"]["content"] == text("done")["content"]


async def test_a_result_that_no_journal_can_hold_is_one_clear_error() -> None:
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"name of a person": deep}
    call = {**text("done"), "structuredContent": deep}
    override = {"t": {"task": "required"}}
    async with fronted(Upstream(call=lambda asked: result(asked, call)), override=override) as (
        server,
        mcp,
    ):
        task = await TaskClient(mcp).over(await TaskClient(mcp).begin("up__t"))
        assert server.methods().count("tools/call") == 1
    assert task["result"]["content"][0]["text"] == (
        "up answered with JSON that is nested too deeply; the call may have taken effect, so check before"
        " you repeat it"
    )


async def test_an_empty_cursor_ends_a_list() -> None:
    async with fronted(Upstream(hints={"nextCursor": ""})) as (server, mcp):
        assert await names(mcp) == ["up__t"]
    assert server.methods().count("tools/list") < 4


def page_by_page(first: list[Any], second: Any) -> Any:
    """A server with two pages of tools; `second` answers for the second."""

    def script(asked: Asked) -> Any:
        if asked.rpc != "tools/list":
            return Upstream()(asked)
        if "cursor" in asked.params:
            return second(asked)
        return result(asked, {"tools": first, "nextCursor": "2"})

    return script


def broken_page(asked: Asked) -> bytes:
    return http(200, b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{')


async def test_pages_that_were_read_are_served_and_the_rest_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fronted(
        page_by_page([tool("a"), None, 3, tool("b")], broken_page), timeout_s=60
    ) as (_, mcp):
        assert await names(mcp) == ["up__a", "up__b"]
        state = await health(mcp)

        async def is_logged() -> bool:
            told = [one.msg for one in caplog.records]
            return "lists of a server cannot be read" in told

        await until(True, is_logged)
    assert state["status"] == "up"
    assert "not JSON" in state["left_out"]["tools/list"]
    assert "its name is not text" in state["left_out"]["None"]


async def left_out(mcp: Client) -> list[str]:
    return [*(await state(mcp, "left_out") or {})]


async def test_entries_of_a_page_that_fails_later_stay() -> None:
    is_broken = False

    def second(asked: Asked) -> bytes:
        return broken_page(asked) if is_broken else result(asked, {"tools": [tool("c")]})

    pages = page_by_page([tool("a"), tool("b")], second)
    async with fronted(pages, refresh_s=5) as (_, mcp):
        assert await names(mcp) == ["up__a", "up__b", "up__c"]
        is_broken = True

        await until(["tools/list"], lambda: left_out(mcp))
        assert "up__c" in await names(mcp)
