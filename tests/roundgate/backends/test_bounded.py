"""A bound on what a tool returns to the model: nothing is cut off without
saying where the rest is."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from roundgate import ImageContent, TextContent, ToolResult, tool
from roundgate.errors import ConfigError, Unavailable
from roundgate.main import build_app
from roundgate.runtime import loading
from roundgate.settings.process import Settings
from tests.support.asgi import NO_FALLBACK, STATE_KEY, Client, client, config_file, stoppable
from tests.support.clocks import SkippingClock
from tests.support.issuer import PUBLIC_URL, bearer, gateway_for, token
from tests.support.task_client import DECLARED, TaskClient, task_settings

TEXT = "".join(f"line {number}\n" for number in range(20_000))


@tool
def long(chars: int = 1_000) -> str:
    """Long."""
    return TEXT[:chars]


@tool
def members() -> dict[str, Any]:
    """A JSON value."""
    return {"numbers": list(range(200))}


@tool
def mixed() -> ToolResult:
    """Text and a picture."""
    return ToolResult(
        (TextContent("a" * 150), ImageContent(b"x", "image/png"), TextContent("b" * 150))
    )


@tool(task="required")
def slow() -> str:
    """A task."""
    return TEXT[:500]


@tool(scopes=["secrets"])
def secrets() -> str:
    """Needs a scope."""
    return TEXT[:500]


ALL = (long, members, mixed, slow, secrets)
BOUNDED = {"override": {one.__name__: {"max_result": 200} for one in ALL}}
_CURSOR = re.compile(r'call read_more with \{"cursor": "([^"]+)"\}\]$')


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(store=f"sqlite:///{folder / 'gateway.sqlite3'}", state_keys=STATE_KEY, **more)


@asynccontextmanager
async def gateway(folder: Path, **sections: Any) -> AsyncIterator[Client]:
    file = config_file(*ALL, backend=BOUNDED, fallback=NO_FALLBACK, **sections)
    app = build_app(file, settings(folder), clock=sections.pop("clock", None))
    async with client(app) as mcp:
        yield mcp


@pytest.fixture
async def mcp(tmp_path: Path) -> AsyncIterator[Client]:
    async with gateway(tmp_path) as made:
        yield made


def parted(text: str) -> tuple[str, str | None]:
    """A part, and the cursor of the next."""
    part, _, said = text.rpartition("\n\n[")
    found = _CURSOR.search(text)
    assert said.startswith("Characters ")
    return part, found and found[1]


async def read(mcp: Client, text: str) -> str:
    """The whole of a result."""
    whole, cursor = parted(text)
    while cursor is not None:
        part, cursor = parted(await mcp.text("read_more", {"cursor": cursor}))
        assert len(part) <= 200
        whole += part
    return whole


@pytest.mark.parametrize("chars", [201, 400, 401, 1_000])
async def test_the_rest_can_be_read_to_the_end(mcp: Client, chars: int) -> None:
    text = await mcp.text("long", {"chars": chars})
    assert text.startswith(TEXT[:200] + "\n\n[Characters 0 to 200 of")
    assert await read(mcp, text) == TEXT[:chars]


async def test_what_is_short_enough_stays_as_it_is(mcp: Client) -> None:
    assert await mcp.text("long", {"chars": 200}) == TEXT[:200]


async def test_a_json_value_is_read_on_in_as_text(mcp: Client) -> None:
    found = await mcp.call("members")
    assert "structuredContent" not in found
    whole = await read(mcp, found["content"][0]["text"])
    assert json.loads(whole) == {"numbers": list(range(200))}
    listed = {one["name"]: one for one in (await mcp.result("tools/list"))["tools"]}
    assert "outputSchema" not in listed["members"]
    assert "read_more" in listed


async def test_what_is_no_text_stays(mcp: Client) -> None:
    found = (await mcp.call("mixed"))["content"]
    assert [one["type"] for one in found] == ["text", "image"]
    assert await read(mcp, found[0]["text"]) == "a" * 150 + "\n" + "b" * 150


async def test_any_replica_reads_on(tmp_path: Path) -> None:
    async with gateway(tmp_path) as one, gateway(tmp_path) as other:
        assert await read(other, await one.text("long", {"chars": 700})) == TEXT[:700]


async def test_parts_go_across_rows(tmp_path: Path) -> None:
    override = {"override": {"long": {"max_result": 70_000}}}
    app = build_app(config_file(*ALL, backend=override), settings(tmp_path))
    async with client(app) as mcp:
        whole, cursor = parted(await mcp.text("long", {"chars": 180_000}))
        while cursor is not None:
            part, cursor = parted(await mcp.text("read_more", {"cursor": cursor}))
            whole += part
        assert whole == TEXT[:180_000]


async def test_what_is_not_kept_is_said_to_be_lost(tmp_path: Path) -> None:
    async with gateway(tmp_path, limits={"max_kept_chars": 1_000}) as mcp:
        text = await mcp.text("long", {"chars": 5_000})
        assert await read(mcp, text) == TEXT[:1_000]
        _, cursor = parted(text)
        assert cursor is not None
        last = await mcp.text("read_more", {"cursor": cursor.replace(".200", ".800")})
        assert last.endswith("of 5,000. The rest could not be kept; ask for less at once]")


async def test_a_store_that_is_away_does_not_lose_the_beginning(
    mcp: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roundgate.storage.sqlite import SqliteSessions

    async def away(*given: Any) -> bool:
        raise Unavailable("away")

    monkeypatch.setattr(SqliteSessions, "put", away)
    text = await mcp.text("long")
    assert text.startswith(TEXT[:200])
    assert text.endswith("of 1,000. The rest could not be kept; ask for less at once]")


async def test_a_cursor_that_is_none_is_a_tool_error(mcp: Client) -> None:
    cursors = (
        "",
        "x",
        "x.0",
        ".5",
        "1-x.-1",
        "1-x.99999999999",
        "1-x.²",
        "0-x.0",
        "1-x.0",
        "²-x.0",
    )
    for cursor in cursors:
        found = await mcp.call("read_more", {"cursor": cursor})
        assert found["isError"], cursor
        assert "nothing to read under this cursor" in found["content"][0]["text"]


async def test_it_is_forgotten_after_a_time(tmp_path: Path) -> None:
    clock = SkippingClock()
    file = config_file(*ALL, backend=BOUNDED, limits={"kept_results_s": 60})
    async with client(build_app(file, settings(tmp_path), clock=clock)) as mcp:
        _, cursor = parted(await mcp.text("long"))
        assert not (await mcp.call("read_more", {"cursor": cursor})).get("isError")
        clock.skip(61)
        assert (await mcp.call("read_more", {"cursor": cursor}))["isError"]


async def test_a_caller_has_so_many_kept_and_the_oldest_is_gone(tmp_path: Path) -> None:
    async with gateway(tmp_path, limits={"max_kept_results": 3}) as mcp:
        cursors = [parted(await mcp.text("long", {"chars": 1_000 + n}))[1] for n in range(10)]
        for cursor in cursors[-3:]:
            assert not (await mcp.call("read_more", {"cursor": cursor})).get("isError")
        for cursor in cursors[:-3]:
            found = await mcp.call("read_more", {"cursor": cursor})
            assert found["isError"]
            assert "Newer long results have replaced this result" in found["content"][0]["text"]
    with closing(sqlite3.connect(tmp_path / "gateway.sqlite3")) as db:
        rows = db.execute("select count(*) from sessions where key like 'texts.%.%'").fetchone()
    assert rows == (3,)


async def test_a_text_of_a_longer_one_s_place_ends_where_it_ends(tmp_path: Path) -> None:
    override = {"override": {"long": {"max_result": 30_000}}}
    file = config_file(*ALL, backend=override, limits={"max_kept_results": 1})
    async with client(build_app(file, settings(tmp_path))) as mcp:
        await mcp.text("long", {"chars": 180_000})
        text = await mcp.text("long", {"chars": 60_000})
        _, cursor = parted(text)
        assert cursor is not None
        part, last = parted(await mcp.text("read_more", {"cursor": cursor}))
        assert (part, last) == (TEXT[30_000:60_000], None)
        behind = cursor.replace(".30000", ".120000")
        assert (await mcp.call("read_more", {"cursor": behind}))["isError"]


async def test_texts_of_many_calls_at_once_do_not_mix(mcp: Client) -> None:
    sizes = range(500, 540)
    texts = await asyncio.gather(*(mcp.text("long", {"chars": size}) for size in sizes))
    assert [await read(mcp, text) for text in texts] == [TEXT[:size] for size in sizes]


async def test_control_characters_fit_into_the_rows(tmp_path: Path) -> None:
    @tool
    def controls() -> str:
        return "\x01" * 120_000

    file = config_file(controls, backend={"override": {"controls": {"max_result": 60_000}}})
    async with client(build_app(file, settings(tmp_path))) as mcp:
        _, cursor = parted(await mcp.text("controls"))
        part, last = parted(await mcp.text("read_more", {"cursor": cursor}))
        assert (part, last) == ("\x01" * 60_000, None)


async def test_a_view_does_not_read_what_another_has_kept(tmp_path: Path) -> None:
    async with gateway(tmp_path, views=[{"name": "few"}, {"name": "plain", "search": {}}]) as mcp:
        few, plain = Client(mcp.http, "/few/mcp"), Client(mcp.http, "/plain/mcp")
        _, cursor = parted(await few.text("long"))
        for other in (mcp, plain):
            assert (await other.call("read_more", {"cursor": cursor}))["isError"]
        assert not (await few.call("read_more", {"cursor": cursor})).get("isError")
        names = [one["name"] for one in (await plain.result("tools/list"))["tools"]]
        assert names == ["search_tools", "describe_tool", "call_tool", "read_more"]


async def test_only_its_caller_reads_on_and_with_the_scopes_of_the_tool(tmp_path: Path) -> None:
    using = settings(tmp_path, public_url=PUBLIC_URL)
    async with gateway_for(*ALL, backend=BOUNDED, using=using) as (mcp, _):

        async def called(name: str, arguments: dict[str, Any], **claims: Any) -> dict[str, Any]:
            headers = bearer(token(**claims))
            params = {"name": name, "arguments": arguments}
            response = await mcp.post("tools/call", params, headers=headers)
            result: dict[str, Any] = response.json()["result"]
            return result

        kept = await called("secrets", {}, scope="secrets")
        cursor = {"cursor": parted(kept["content"][0]["text"])[1]}
        for claims, is_refused in (
            ({"scope": "secrets"}, False),
            ({"scope": "other"}, True),
            ({"scope": "secrets", "sub": "eve"}, True),
            ({"scope": "secrets", "client_id": "other"}, True),
        ):
            assert (await called("read_more", cursor, **claims)).get("isError", False) is is_refused


async def test_without_authentication_nobody_needs_scopes_to_read_on(mcp: Client) -> None:
    assert await read(mcp, await mcp.text("secrets")) == TEXT[:500]


async def test_a_task_has_a_rest_too(tmp_path: Path) -> None:
    tasks = {"poll_interval_ms": 100}
    file = config_file(*ALL, backend=BOUNDED, tasks=tasks, views=[{"name": "few"}])
    async with stoppable(build_app(file, task_settings(tmp_path))) as app, client(app) as mcp:
        for one in (mcp, Client(mcp.http, "/few/mcp")):
            knows = TaskClient(one, DECLARED)
            text = await knows.text(await knows.begin("slow"))
            assert await read(one, text) == TEXT[:500]


async def test_the_rest_of_a_task_is_there_as_long_as_its_result(tmp_path: Path) -> None:
    clock = SkippingClock()
    tasks, limits = {"poll_interval_ms": 100, "ttl_s": 3_600}, {"kept_results_s": 60}
    file = config_file(*ALL, backend=BOUNDED, tasks=tasks, limits=limits)
    app = build_app(file, task_settings(tmp_path), clock=clock)
    async with stoppable(app), client(app) as mcp:
        knows = TaskClient(mcp, DECLARED)
        task_id = await knows.begin("slow")
        await knows.text(task_id)
        clock.skip(600)
        assert await read(mcp, await knows.text(task_id)) == TEXT[:500]


def test_a_tool_of_that_name_is_a_problem() -> None:
    @tool
    def read_more() -> None: ...

    with pytest.raises(ConfigError, match="a tool is called 'read_more'"):
        loading.load(config_file(*ALL, read_more, backend=BOUNDED))
