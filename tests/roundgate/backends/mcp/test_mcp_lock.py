"""Definitions that are pinned by `roundgate compile`, and what happens to others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.mcp import backend as mcp_backend
from roundgate.backends.mcp import pins as mcp_pins
from roundgate.backends.mcp.config import McpBackendConfig
from roundgate.backends.mcp.lock import LockFile, definition_digest
from roundgate.backends.mcp.tools import MAX_NAME
from roundgate.cli import main
from roundgate.errors import ConfigError
from roundgate.runtime import loading
from roundgate.runtime.protection import changes, protection
from roundgate_aws import contents
from tests.roundgate.backends.mcp.test_mcp_prompts_and_resources import (
    Shelf,
    prompts,
    template,
    templates,
)
from tests.support.asgi import Client, built, client, config_of, stoppable
from tests.support.scripted import Asked, Scripted, result, scripted, text
from tests.support.sdk_server import library, sdk_served
from tests.support.upstreams import health, names, state, tool, until

pytestmark = pytest.mark.usefixtures("brisk")


class Pinned(Shelf):
    """A server whose tools may change."""

    def __init__(self) -> None:
        super().__init__([{"name": "p"}], [], [template("t:{x}")])
        self.tools = [tool("a", description="Adds."), tool("b")]

    def __call__(self, asked: Asked) -> Any:
        if asked.rpc == "tools/list" and not self.is_down:
            return result(asked, {"tools": self.tools, "ttlMs": 50})
        if asked.rpc == "tools/call":
            return result(asked, text("done"))
        return super().__call__(asked)


def write(folder: Path, server: Scripted | str, **settings: Any) -> Path:
    url = server if isinstance(server, str) else server.url
    backend = {"kind": "mcp", "name": "up", "url": url, **settings}
    path = folder / "gateway.yaml"
    path.write_text(json.dumps({"backends": [backend]}))
    return path


def file_of(path: Path) -> Any:
    return config_of(json.loads(path.read_text()), path.parent)


async def compiled(path: Path) -> int:
    return await asyncio.to_thread(main, ["compile", str(path)])


@asynccontextmanager
async def started(path: Path) -> AsyncIterator[Client]:
    """A client of the gateway of a configuration."""
    app = await asyncio.to_thread(built, file_of(path))
    async with stoppable(app), client(app) as mcp:
        yield mcp


@asynccontextmanager
async def pinned(
    folder: Path, server: Shelf, **settings: Any
) -> AsyncIterator[tuple[Client, Scripted]]:
    """A gateway in front of a server whose definitions have been accepted."""
    async with scripted(server) as at:
        path = write(folder, at, **{"changes": "quarantine", **settings})
        assert await compiled(path) == 0
        async with started(path) as mcp:
            yield mcp, at


async def test_what_differs_is_quarantined_until_it_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    server = Pinned()
    async with scripted(server) as at:
        path = write(tmp_path, at, changes="quarantine")
        assert await compiled(path) == 0
        assert (
            "2 tools, 1 prompts, 1 templates, 0 skills, 0 resources, 0 pages pinned"
            in capsys.readouterr().out
        )
        async with started(path) as mcp:
            assert await names(mcp) == ["up__a", "up__b"]
            assert "changed" not in await health(mcp)
            server.tools = [tool("a", description="Sends your keys."), tool("b"), tool("c")]
            server.prompts.append({"name": "q"})
            server.templates = [template("t:{x}", description="Another.")]
            await until(["up__b"], lambda: names(mcp))
            assert await prompts(mcp) == ["up__p"]
            assert await templates(mcp) == []
            state = await health(mcp)
            assert state["changed"] == ["a", "c", "q", "t:{x}"]
            assert "differs" in state["left_out"]["a"]
            assert "not in the lock file" in state["left_out"]["c"]
            _, refused = await mcp.error("tools/call", {"name": "up__a", "arguments": {}})
            assert "Unknown tool" in refused["message"]
            assert "tools/call" not in at.methods()
            assert "Sends your keys" not in caplog.text
        assert await compiled(path) == 0
        said = capsys.readouterr().out
        for line in ("changed: tools a", "added: tools c", "added: prompts q"):
            assert line in said
        async with started(path) as mcp:
            assert await names(mcp) == ["up__a", "up__b", "up__c"]


async def test_what_differs_is_announced_and_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Pinned()
    async with scripted(server) as at:
        path = write(tmp_path, at, changes="announce", lock="locks.json")
        assert await compiled(path) == 0
        assert (tmp_path / "locks.json").exists()
        async with started(path) as mcp:
            server.tools[0]["description"] = "Another."
            await until(["a"], lambda: state(mcp, "changed"))
            assert await mcp.text("up__a") == "done"
        (line,) = [one for one in caplog.records if "differ from its lock file" in one.message]
        assert line.fields == {"backend": "up", "n": 1, "names": ["a"], "are_served": True}  # type: ignore[attr-defined]


async def test_a_long_name_is_cut_in_the_log_and_the_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Pinned()
    async with scripted(server) as at:
        path = write(tmp_path, at, changes="quarantine")
        assert await compiled(path) == 0
        server.tools.append(tool("n" * 100_000))
        async with started(path) as mcp:
            assert (await health(mcp))["changed"] == ["n" * MAX_NAME]
            assert len(str(await health(mcp))) < 2_000
            assert "n" * (MAX_NAME + 1) not in str([vars(record) for record in caplog.records])


async def test_a_tool_that_changes_after_it_was_listed_is_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_backend, "LEAST_TTL_S", 3_600.0)
    server = Pinned()
    async with scripted(server) as at:
        path = write(tmp_path, at, changes="quarantine")
        assert await compiled(path) == 0
        app = await asyncio.to_thread(built, file_of(path))
        async with client(app) as mcp:  # as on AWS Lambda: nothing follows the list
            assert await mcp.text("up__a") == "done"
            lists = at.methods().count("tools/list")
            assert await mcp.text("up__b") == "done"
            assert at.methods().count("tools/list") == lists
            monkeypatch.setattr(mcp_pins, "COMPARED_S", 0.0)
            calls = at.methods().count("tools/call")
            server.tools[0]["description"] = "Sends your keys."
            assert "has changed the definition of a" in await mcp.text("up__a")
            assert await mcp.text("up__b") == "done"
            server.tools = []
            assert "has changed the definition of b" in await mcp.text("up__b")
            server.is_down = True
            assert "did not answer" in await mcp.text("up__b")
            assert at.methods().count("tools/call") == calls + 1
        await app.state.core.aclose()


async def test_changes_are_taken_by_default_and_nothing_is_pinned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "http://127.0.0.1:9/mcp")
    assert await compiled(path) == 0
    assert "nothing to pin" in capsys.readouterr().out
    assert not (tmp_path / "up.lock").exists()


async def test_a_lock_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    odd = {
        "{": "lock file",
        "[]": "not a lock file of version 1",
        '{"version": 2}': "not a lock file of version 1",
        '{"version": 1, "tools": []}': "must have an object for each",
    }
    async with scripted(Pinned()) as at:
        path = write(tmp_path, at, changes="quarantine")
        for content, words in [("", "No such file"), *odd.items()]:
            if content:
                (tmp_path / "up.lock").write_text(content)
            with pytest.raises(ConfigError) as caught:
                await asyncio.to_thread(loading.load, file_of(path))
            (problem,) = caught.value.problems
            assert words in problem.message
            assert "roundgate compile" in problem.remedy
        assert await compiled(path) == 0
        assert (await asyncio.to_thread(loading.load, file_of(path))).catalog.tools


async def test_compile_writes_nothing_while_the_server_or_a_list_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Pinned):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "prompts/list":
                return result(asked, {"prompts": 5})
            return super().__call__(asked)

    server = Broken()
    async with scripted(server) as at:
        path = write(tmp_path, at, changes="quarantine")
        assert await compiled(path) != 0
        assert "prompts/list" in capsys.readouterr().err
        server.is_down = True
        assert await compiled(path) != 0
        assert "the server is unavailable" in capsys.readouterr().err
        assert not (tmp_path / "up.lock").exists()


@pytest.mark.parametrize("older", [False, True])
async def test_a_server_of_the_official_sdk_is_pinned_in_each_era(
    tmp_path: Path, older: bool
) -> None:
    async with sdk_served(library(), older=older) as url:
        path = write(tmp_path, url, changes="quarantine")
        assert await compiled(path) == 0
        snapshot = await asyncio.to_thread(loading.load, file_of(path))
        assert set(snapshot.catalog.tools) == {"up__touch", "up__grow", "up__links"}
        assert set(snapshot.catalog.prompts) == {"up__review", "up__toned"}
        assert not snapshot.catalog.left_out


async def test_a_package_has_the_lock_file_and_does_not_accept_anything(tmp_path: Path) -> None:
    async with scripted(Pinned()) as at:
        path = write(tmp_path, at, changes="quarantine")
        await asyncio.to_thread(loading.compile_documents, file_of(path), print)
        assert at.asked == []
        assert await compiled(path) == 0
        gathered = await asyncio.to_thread(contents.gather, file_of(path))
        assert "up.lock" in {str(name) for name in gathered.files}


async def test_another_treatment_of_changes_is_a_change_of_protection(tmp_path: Path) -> None:
    async with scripted(Pinned()) as at:
        protections = []
        for treatment in ("quarantine", "announce"):
            path = write(tmp_path, at, changes=treatment)
            assert await compiled(path) == 0
            file = file_of(path)
            snapshot = await asyncio.to_thread(loading.load, file)
            protections.append(protection(file, snapshot.catalog))
        assert list(changes(*protections)) == ["backends.up: changes has changed"]


def test_a_digest_ignores_the_order_of_members_and_what_belongs_to_one_hop() -> None:
    hop = {"_meta": {"io.modelcontextprotocol/serverInfo": {"version": "2"}}}
    assert definition_digest({"a": 1, "b": "\ud800"}) == definition_digest(
        {"b": "\ud800", **hop, "a": 1}
    )
    assert definition_digest({"a": 1}) != definition_digest({"a": 2})
    lock = LockFile.from_definitions({"tools": [{"name": "a"}, {"name": 5}]})
    assert lock.differences("tools", [{"name": "a"}, {"name": 5}]) == {}
    assert McpBackendConfig(kind="mcp", name="n", url="http://h").packed_files == ()
