"""`roundgate upstreams`, against servers of the official SDK and others that are down."""

from __future__ import annotations

import asyncio
import atexit
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from roundgate.cli import main
from tests.support.scripted import Asked, error, result, scripted
from tests.support.sdk_server import library, sdk_served
from tests.support.upstreams import Upstream, tool


def write(folder: Path, *backends: dict[str, Any]) -> str:
    path = folder / "gateway.yaml"
    path.write_text(json.dumps({"backends": list(backends)}))
    return str(path)


_NOWHERE = socket.socket()
_NOWHERE.bind(("127.0.0.1", 0))  # and it never listens, nor can another process
atexit.register(_NOWHERE.close)


def nowhere() -> str:
    return f"http://127.0.0.1:{_NOWHERE.getsockname()[1]}/mcp"


async def upstreams(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["upstreams", *arguments])


async def test_each_server_is_shown_with_its_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left_out = Upstream(tools=[tool("t"), tool("bad", inputSchema=5)])
    async with (
        sdk_served(library(), older=True) as older,
        sdk_served(library()) as modern,
        scripted(left_out) as odd,
    ):
        path = write(
            tmp_path,
            {"kind": "mcp", "name": "old", "url": older},
            {"kind": "mcp", "name": "new", "url": modern},
            {"kind": "mcp", "name": "odd", "url": odd.url},
            {"kind": "mcp", "name": "off", "url": nowhere()},
        )
        assert await upstreams(path) == 1
        old, new, _, off, *remarks = capsys.readouterr().out.splitlines()
        shown = "old up 2025-11-25 library 7 3 tools, 2 prompts, 3 resources"
        assert " ".join(old.split()) == shown
        assert new.split()[:3] == ["new", "up", "2026-07-28"]
        assert off.split() == ["off", "down"]
        assert remarks[0].startswith("odd: bad is left out: its inputSchema")
        assert remarks[1].startswith("off: off did not answer")
        assert await upstreams(path, "--json") == 1
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["status"] for line in lines] == ["up", "up", "up", "down"]
        assert lines[1]["prompts"] == 2
        assert lines[2]["left_out"].keys() == {"bad"}


async def test_definitions_that_differ_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Upstream()
    async with scripted(server) as at:
        backend = {"kind": "mcp", "name": "up", "url": at.url, "changes": "announce"}
        path = write(tmp_path, backend)
        assert await asyncio.to_thread(main, ["compile", path]) == 0
        server.tools = [tool("t", description="Another.")]
        capsys.readouterr()
        assert await upstreams(path) == 0
        assert "up: t differs from the lock file" in capsys.readouterr().out


async def test_a_gateway_without_servers_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tools.py").write_text("from roundgate import tool\n@tool()\ndef f() -> str: ...\n")
    path = write(tmp_path, {"kind": "python", "name": "p", "path": "tools.py"})
    assert await upstreams(path) == 0
    assert "no MCP server" in capsys.readouterr().out


def test_a_configuration_with_mistakes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upstreams", write(tmp_path, {"kind": "mcp", "name": "x"})]) == 1
    assert "set either url or command" in capsys.readouterr().err


async def test_the_text_of_a_server_does_not_act_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Acting(Upstream):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "server/discover":
                about = {"supportedVersions": ["2026-07-28"]}
                return result(asked, {**about, "capabilities": {"tools": {}, "prompts": {}}})
            if asked.rpc == "prompts/list" and self.is_broken:
                return error(asked, -32603, "broken \x1b[2J \x9b2J")
            if asked.rpc == "prompts/list":
                return result(asked, {"prompts": []})
            return super().__call__(asked)

        is_broken = False

    server = Acting(tools=[tool("t")])
    async with scripted(server) as at:
        backend = {"kind": "mcp", "name": "up", "url": at.url, "changes": "announce"}
        path = write(tmp_path, backend)
        assert await asyncio.to_thread(main, ["compile", path]) == 0
        server.tools.append(tool("a\x1b[2J\nb"))
        assert await asyncio.to_thread(main, ["compile", path]) == 0
        assert "added: tools a\\u001b[2J\\u000ab" in capsys.readouterr().out
        server.tools.pop()
        server.is_broken = True
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        assert await upstreams(path, "--json") == 0
        for command in ("check", "compile", "upstreams"):
            await asyncio.to_thread(main, [command, path])
        shown = "".join(capsys.readouterr())
        assert shown.count("broken \\u001b[2J \\u009b2J") == 4
        assert not {"\x1b", "\x9b"} & {*shown}
