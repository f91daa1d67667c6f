"""What `serve` says before it serves, who sees the text of an exception, and why a
call failed in the log."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from roundgate import tool
from roundgate.cli import main
from roundgate.errors import ConfigError, ToolError
from roundgate.settings.process import Settings
from tests.support import root_logger, wire
from tests.support.asgi import client, gateway
from tests.support.server import running

SHOWN = Settings(show_errors="on")


@tool
def buggy() -> str:
    """Fails unexpectedly."""
    raise KeyError("total")


@tool
def refuse(order: int) -> str:
    """Fails on purpose."""
    raise ToolError(f"there is no order {order}")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A configuration with a tool that fails."""
    (tmp_path / "tools.py").write_text(
        "from roundgate import tool\n\n\n@tool\ndef buggy(order: int) -> int:\n"
        '    """Fails."""\n    return {}[order]\n'
    )
    config = tmp_path / "gateway.yaml"
    config.write_text("backends:\n  - {kind: python, name: shop, path: tools.py}\n")
    return config


@pytest.mark.parametrize("port", ["70000", "http", "-1", "8_000", "²"])
def test_a_port_that_is_none_is_wrong_usage(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", f"--port={port}"])
    assert ended.value.code == 2
    assert "write a number from 0 to 65535" in capsys.readouterr().err


@pytest.fixture
def environment(own: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That of `serve` in this process, which writes into it, and sets up the log."""
    monkeypatch.setenv("GATEWAY_STORE", f"sqlite:///{own.parent}/g.sqlite3")
    for name in ("CONFIG", "SHOW_ERRORS", "ALLOW_ANONYMOUS"):
        monkeypatch.setenv(f"GATEWAY_{name}", "")
    with root_logger.lent():
        yield


@pytest.mark.usefixtures("environment")
def test_a_port_that_somebody_has_is_told_before_anything_is_served(
    own: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.INFO):
        port = taken.getsockname()[1]
        assert main(["serve", str(own), "--port", str(port)]) == 2
    assert f"--port {port}: it is not free at 127.0.0.1" in capsys.readouterr().err
    assert "serving" not in caplog.text


@pytest.mark.usefixtures("environment")
def test_so_is_an_address_that_is_none(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(own), "--host", "256.1.1.1", "--allow-anonymous"]) == 2
    assert "--host 256.1.1.1: this machine does not have this address" in capsys.readouterr().err


def test_the_log_for_people_shows_the_address_and_failures_and_callers_see_errors(
    own: Path,
) -> None:
    environment = {"GATEWAY_STORE": f"sqlite:///{own.parent}/g.sqlite3", "PYTHONPATH": ""}
    with running(own, environment, "--log-format", "text") as server:
        asked = wire.message("tools/call", {"name": "shop__buggy", "arguments": {"order": 4}})
        answer = httpx.post(
            f"{server.url}/mcp", json=asked, headers=wire.headers(asked), verify=False, timeout=60
        )
        server.stop()
        said = server.log.read_text()
    assert f"serving {server.url}/mcp" in said
    assert re.search(r"tools\.py:7 in buggy\n +return \{\}\[order\]\n +KeyError: 4\n", said)
    assert re.search(r"tools/call shop__buggy +200 tool_error .*reason=KeyError", said)
    text = answer.json()["result"]["content"][0]["text"]
    assert re.search(r"unexpectedly: KeyError: 4 \(\S*tools\.py:7\); .* reference \w+", text)


async def called(settings: Settings, name: str, **more: Any) -> str:
    async with client(gateway(buggy, refuse, using=settings, **more)) as mcp:
        return await mcp.text(name)


async def test_the_text_of_an_exception_is_shown_where_that_is_set_and_nowhere_by_default() -> None:
    assert "KeyError: 'total'" in await called(SHOWN, "buggy")
    assert "KeyError" not in await called(Settings(), "buggy")


@pytest.mark.parametrize(
    "others",
    [
        {"public_url": "https://mcp.example.com"},
        {"allow_anonymous": True},
        {"on_lambda": True, "queue": "sqs://q"},
    ],
    ids=["a public address", "anybody", "Lambda"],
)
def test_where_others_may_call_it_cannot_be_set(others: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="GATEWAY_SHOW_ERRORS: is on"):
        gateway(buggy, using=replace(SHOWN, **others))


def test_nor_with_authentication() -> None:
    auth = {"issuer": "https://issuer.example", "jwks_url": "https://issuer.example/jwks"}
    with pytest.raises(ConfigError, match="GATEWAY_SHOW_ERRORS: is on"):
        gateway(buggy, using=SHOWN, auth=auth)


async def test_the_line_of_a_request_says_why_a_tool_failed_and_nothing_of_what_was_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "roundgate.request"):
        async with client(gateway(buggy, refuse)) as mcp:
            await mcp.call("buggy")
            await mcp.call("refuse", {"order": 4711})
            await mcp.call("refuse", {"order": "no number"})
    lines = [vars(one)["fields"] for one in caplog.records if one.name == "roundgate.request"]
    assert [one["reason"] for one in lines] == ["KeyError", "ToolError", "invalid arguments"]
    assert "4711" not in str(lines)
