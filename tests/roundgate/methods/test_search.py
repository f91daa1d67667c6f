"""Search in place of a list: three tools stand for the catalog, and a call through one
is a call of the tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, tool
from roundgate.errors import ConfigError
from roundgate.main import build_app
from roundgate.runtime import loading
from tests.support import asgi, wire
from tests.support.asgi import NO_FALLBACK, Client, client, config_file, stoppable
from tests.support.issuer import bearer, gateway_for, token
from tests.support.rounds import CAPABILITIES, accept, ask, retry
from tests.support.task_client import DECLARED, TaskClient, task_settings

gateway = partial(asgi.gateway, fallback=NO_FALLBACK)

ran: list[str] = []


@tool(destructive=True)
def wipe_disk(disk: str) -> str:
    """Wipe a disk."""
    ran.append(disk)
    return f"wiped {disk}"


@tool(read_only=True)
def list_disks(owner: str = "") -> str:
    """List all disks.

    Also those that are asleep.
    """
    return "c, d"


@tool(task="required")
def check_disk(disk: str) -> str:
    """Check a disk for errors."""
    return f"checked {disk}"


@tool(destructive=False)
async def copy_disk(ctx: Context, disk: str) -> str:
    """Copy a disk."""
    await ctx.progress(1, 2, "half")
    return f"copied {disk}"


@tool(scopes=["keys"])
def unlock_disk(disk: str) -> str:
    """Unlock a disk."""
    return f"unlocked {disk}"


ALL = (wipe_disk, list_disks, check_disk, copy_disk, unlock_disk)
OWN = ["search_tools", "describe_tool", "call_tool"]


def through(name: str, **arguments: Any) -> dict[str, Any]:
    """The params of a call through `call_tool`."""
    return {"name": "call_tool", "arguments": {"name": name, "arguments": arguments}}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return gateway(*ALL, search={"pinned": ["list_*"]}, backend={"approve": "destructive"})


@pytest.fixture
async def mcp(app: FastAPI) -> AsyncIterator[Client]:
    async with client(app) as made:
        yield made


async def names(mcp: Client) -> list[str]:
    return [one["name"] for one in (await mcp.result("tools/list"))["tools"]]


async def test_three_tools_and_those_that_are_pinned_are_listed(mcp: Client) -> None:
    assert await names(mcp) == [*OWN, "list_disks"]


async def test_a_short_list_stays_a_list() -> None:
    async with client(gateway(*ALL, search={"above": 5})) as mcp:
        assert len(await names(mcp)) == 5
    async with client(gateway(*ALL, search={"above": 4})) as mcp:
        assert await names(mcp) == OWN


async def test_a_view_has_a_search_of_its_own() -> None:
    view = {"name": "few", "exclude": [{"name": "wipe*"}], "search": {}}
    async with client(gateway(*ALL, views=[view])) as mcp:
        few = Client(mcp.http, "/few/mcp")
        assert await names(few) == OWN
        assert len(await names(mcp)) == 5
        assert "wipe_disk" not in await few.text("search_tools", {"query": "wipe a disk"})
        result = await few.result("tools/call", through("wipe_disk", disk="c"))
        assert result["isError"]


async def test_a_search_returns_names_arguments_and_first_lines(mcp: Client) -> None:
    found = await mcp.text("search_tools", {"query": "show the disks", "limit": 1})
    assert found == "list_disks([owner]): List all disks."
    assert await mcp.text("search_tools", {"query": "xylophone"}) == (
        "No tool has any of these words. Try others: the action and its object, such as 'cancel order',"
        " in the language of the tools."
    )


async def test_a_description_is_the_definition(mcp: Client) -> None:
    described = json.loads(await mcp.text("describe_tool", {"name": "wipe_disk"}))
    assert described["inputSchema"]["required"] == ["disk"]
    assert described["annotations"]["destructiveHint"] is True
    unknown = await mcp.call("describe_tool", {"name": "nil"})
    assert unknown["isError"]


async def test_an_approval_shows_the_tool_that_is_called(mcp: Client) -> None:
    ran.clear()
    params = through("wipe_disk", disk="c")
    asked = await ask(mcp, "tools/call", params)
    message = asked["inputRequests"]["approve"]["params"]["message"]
    assert message.startswith("Run wipe_disk?")
    assert "call_tool" not in message
    assert not ran
    done = await mcp.result(
        "tools/call",
        retry(params, asked, approve=accept(approve=True)),
        clientCapabilities=CAPABILITIES,
    )
    assert done["content"][0]["text"] == "wiped c"


async def test_an_approval_is_for_what_was_shown(mcp: Client) -> None:
    ran.clear()
    asked = await ask(mcp, "tools/call", through("wipe_disk", disk="c"))
    other = retry(through("wipe_disk", disk="d"), asked, approve=accept(approve=True))
    _, error = await mcp.error("tools/call", other, clientCapabilities=CAPABILITIES)
    assert error["code"] == -32602
    assert not ran


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "nil"}, "There is no tool 'nil'; search_tools finds the names"),
        ({"name": "call_tool"}, "There is no tool 'call_tool'"),
        ({}, "Invalid arguments"),
        ({"name": "wipe_disk", "arguments": {}}, "Invalid arguments"),
        ({"name": "wipe_disk", "arguments": 1}, "Invalid arguments"),
        ({"name": "wipe_disk", "disk": "c"}, "Invalid arguments"),
    ],
)
async def test_what_is_wrong_with_a_call_the_model_reads(
    mcp: Client, arguments: dict[str, Any], said: str
) -> None:
    result = await mcp.call("call_tool", arguments)
    assert result["isError"]
    assert said in result["content"][0]["text"]


async def test_progress_comes_through(mcp: Client) -> None:
    response = await mcp.post("tools/call", through("copy_disk", disk="c"), progressToken="p")
    told = wire.events(response.text)
    assert [one.get("method") for one in told] == ["notifications/progress", None]
    assert told[1]["result"]["content"][0]["text"] == "copied c"


async def test_a_task_comes_through(tmp_path: Path) -> None:
    tasks = {"poll_interval_ms": 100}
    file = config_file(*ALL, search={}, tasks=tasks, fallback=NO_FALLBACK)
    async with (
        stoppable(build_app(file, task_settings(tmp_path))) as app,
        client(app) as mcp,
    ):
        knows = TaskClient(mcp, DECLARED)
        task_id = await knows.begin("call_tool", name="check_disk", arguments={"disk": "c"})
        assert await knows.text(task_id) == "checked c"
        _, error = await mcp.error("tools/call", through("check_disk", disk="c"))
        assert error["code"] == -32021


async def test_a_client_without_tasks_gets_what_there_is_for_it_here_too(tmp_path: Path) -> None:
    file = config_file(*ALL, search={}, fallback={"without_tasks": "wait"})
    async with (
        stoppable(build_app(file, task_settings(tmp_path))) as app,
        client(app) as mcp,
    ):
        done = await mcp.result("tools/call", through("check_disk", disk="c"))
        assert done["content"][0]["text"] == "checked c"


async def test_own_tools_for_clients_that_can_do_less_are_listed_beside_the_search() -> None:
    async with client(gateway(*ALL, search={}, fallback={"without_tasks": "tools"})) as mcp:
        assert (await names(mcp))[:4] == [*OWN, "task_status"]


async def test_only_what_the_scopes_allow_is_found_described_and_called() -> None:
    async with gateway_for(*ALL, search={}) as (mcp, _):
        for scope, is_allowed in (("keys", True), ("other", False)):
            headers = bearer(token(scope=scope))

            async def text(name: str, given: dict[str, Any], sent: Any = headers) -> str:
                params = {"name": name, "arguments": given}
                response = await mcp.post("tools/call", params, headers=sent)
                said: str = response.json()["result"]["content"][0]["text"]
                return said

            found = await text("search_tools", {"query": "unlock disk", "limit": 20})
            assert ("unlock_disk" in found) is is_allowed
            described = await text("describe_tool", {"name": "unlock_disk"})
            assert described.startswith("There is no tool") is not is_allowed
            called = await mcp.post("tools/call", through("unlock_disk", disk="c"), headers=headers)
            assert called.status_code == (200 if is_allowed else 403)


async def test_without_authentication_all_is_found(mcp: Client) -> None:
    assert "unlock_disk" in await mcp.text("search_tools", {"query": "unlock"})


async def test_many_may_search_at_once(mcp: Client) -> None:
    found = await asyncio.gather(*(mcp.text("search_tools", {"query": "copy"}) for _ in range(5)))
    assert set(found) == {"copy_disk(disk): Copy a disk."}


def test_a_tool_with_the_name_of_one_of_the_search_is_a_problem() -> None:
    @tool
    def call_tool() -> None: ...

    with pytest.raises(
        ConfigError, match="a back end has a tool 'call_tool', which is the name of a search tool"
    ):
        loading.load(config_file(*ALL, call_tool, search={}))
