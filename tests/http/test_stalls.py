"""A blocked event loop is told of, with the line that blocks it: in a real server."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx
import pytest

from tests.http.test_bounds import configuration
from tests.support.asgi import Client
from tests.support.server import running


async def test_what_blocks_the_loop_is_named_and_when_it_goes_on(tmp_path: Path) -> None:
    with running(configuration(tmp_path, {})) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            assert await Client(http).text("stand_still", {"seconds": 1.8}) == "stood still"
        blocked = await asyncio.to_thread(server.logged, msg="the event loop is blocked")
        await asyncio.to_thread(server.logged, msg="the event loop runs again")
    assert blocked["at"].startswith("served.py:")
    assert blocked["at"].endswith(" in stand_still")
    assert blocked["seconds"] < 1.8


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP here")
async def test_a_process_that_was_stopped_as_a_whole_blames_no_line(tmp_path: Path) -> None:
    with running(configuration(tmp_path, {})) as server:
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.6)
        server.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(1)
        assert [line["msg"] for line in server.lines() if line["level"] == "warning"] == []
