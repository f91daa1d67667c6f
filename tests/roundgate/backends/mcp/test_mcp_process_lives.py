"""The life of processes: slow starts, ends, hangs, and what is logged of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.mcp import backend as mcp_backend
from roundgate.backends.mcp import server as mcp_server
from roundgate.client import stdio
from tests.support import odd_answers
from tests.support.asgi import Client
from tests.support.scripted import scripted
from tests.support.upstreams import Upstream, entry, gateway_of, health, names, until

UNAVAILABLE = "a server is unavailable"
MISSING = "cannot serve a back end; the others are served"


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(mcp_server, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(stdio, "STOP_S", 0.5)


def program(*arguments: str, name: str = "up", **settings: Any) -> dict[str, Any]:
    command = [sys.executable, odd_answers.__file__, *arguments]
    return {"kind": "mcp", "name": name, "command": command, **settings}


async def is_listed(mcp: Client) -> bool:
    return "up__nan" in await names(mcp)


def told(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    return [one.__dict__["fields"] for one in caplog.records if one.msg == message]


async def test_a_slow_start_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mcp_backend, "START_S", 0.2)
    async with gateway_of(program("slow", "1")) as mcp:
        await until(True, lambda: is_listed(mcp))
    assert [one.getMessage() for one in caplog.records if one.levelname != "INFO"] == []


async def test_a_server_that_is_too_slow_is_called_slow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mcp_backend, "START_S", 0.2)
    monkeypatch.setattr(mcp_backend, "POLL_S", 0.2)
    async with gateway_of(program("slow", "600")) as mcp:
        await until(True, lambda: bool(told(caplog, UNAVAILABLE)))
        assert (await health(mcp))["status"] == "down"
    (first,) = told(caplog, UNAVAILABLE)
    assert first["error"] == "it was slow: it did not answer within 0.2 s"
    assert told(caplog, MISSING) == []


async def test_a_process_that_ends_is_named_with_its_status_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mcp_backend, "START_S", 60)  # a busy machine starts it slowly
    async with gateway_of(program("leaves")):
        await until(True, lambda: bool(told(caplog, UNAVAILABLE)))
        for _ in range(20):  # further attempts
            await asyncio.sleep(0.05)
    (first,) = told(caplog, UNAVAILABLE)
    assert "ended with status 2" in first["error"]


async def test_a_server_that_comes_up_logs_no_other_server_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    down = Upstream(is_down=True)
    late = [Upstream(is_down=True) for _ in range(3)]
    async with (
        scripted(lambda asked: ([*late, down])[int(asked.target[-1])](asked)) as server,
        gateway_of(
            *({"kind": "mcp", "name": f"n{n}", "url": f"{server.origin}/{n}"} for n in range(4))
        ) as mcp,
    ):
        for number, upstream in enumerate(late):
            upstream.is_down = False
            listed = [f"n{n}__t" for n in range(number + 1)]
            await until(listed, lambda: names(mcp))
    lines = [*told(caplog, MISSING), *told(caplog, UNAVAILABLE)]
    backends = [one["backend"] for one in lines]
    assert backends.count("n3") == 1
    assert len(backends) == len(set(backends))


async def test_a_module_that_is_missing_is_still_logged_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = {"kind": "python", "name": "ill", "module": str(tmp_path / "ill.py")}
    async with scripted(Upstream()) as server:
        up = entry(server)
        async with gateway_of(up, module) as mcp:
            await until(["up__t"], lambda: names(mcp))
    assert [one["backend"] for one in told(caplog, MISSING)] == ["ill"]


async def test_a_process_that_hangs_is_replaced_after_some_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "PROBE_S", 2.0)
    async with gateway_of(program(timeout_s=5)) as mcp:
        await until(True, lambda: is_listed(mcp))
        await mcp.call("up__nan")  # the process of the calls
        (pid,) = await children()
        os.kill(pid, signal.SIGSTOP)
        calls = [mcp.call("up__nan") for _ in range(stdio.MAX_UNANSWERED)]
        for unanswered in await asyncio.gather(*calls):
            assert "did not answer" in unanswered["content"][0]["text"]

        await until(False, lambda: has_failed(mcp))
        assert pid not in await children()


async def has_failed(mcp: Client) -> bool:
    return bool((await mcp.call("up__nan")).get("isError"))


async def children() -> list[int]:
    """The ids of the processes of the program that this process has started."""
    found = await asyncio.create_subprocess_exec(
        *("pgrep", "-P", str(os.getpid()), "-f", odd_answers.__file__), stdout=-1
    )
    output, _ = await found.communicate()
    return [int(line) for line in output.split()]
