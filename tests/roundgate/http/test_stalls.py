"""A blocked event loop is told of, with the line that blocks it: in a real server."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import httpx
import pytest

from roundgate.http import replica
from tests.support.asgi import Client
from tests.support.server import configured, running

SERVED = Path(__file__).with_name("served.py")


async def test_what_blocks_the_loop_is_named_and_when_it_goes_on(tmp_path: Path) -> None:
    with running(configured(tmp_path, SERVED)) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            file = tmp_path / "goes on"
            asked = asyncio.create_task(Client(http).text("stand_still", {"file": str(file)}))
            blocked = await asyncio.to_thread(server.logged, msg="the event loop is blocked")
            file.touch()
            assert await asked == "stood still"
        await asyncio.to_thread(server.logged, msg="the event loop runs again")
    assert blocked["at"].startswith("served.py:")
    assert blocked["at"].endswith(" in stand_still")


class Watched:
    """The time that the watch of an event loop reads, and how often it has read it."""

    def __init__(self) -> None:
        self.now_s, self.reads = 0.0, 0

    def monotonic(self) -> float:
        self.reads += 1
        return self.now_s

    def let_pass(self, seconds: float) -> None:
        """Let time pass at once, and wait until the watch has looked twice more."""
        self.now_s += seconds
        reads = self.reads + 3
        while self.reads < reads:
            time.sleep(0.01)


async def test_a_loop_is_not_blamed_for_the_time_in_which_its_process_was_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched()
    monkeypatch.setattr(replica, "time", watched)
    with replica.reported_stalls(asyncio.get_running_loop()):
        watched.let_pass(100)
        assert caplog.messages == []
        for _ in range(5):
            watched.let_pass(replica.STALL_S / 4)
    assert caplog.messages[0] == "the event loop is blocked"
    assert caplog.records[0].__dict__["fields"]["seconds"] < 2 * replica.STALL_S


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP here")
async def test_a_process_that_was_stopped_as_a_whole_blames_no_line(tmp_path: Path) -> None:
    with running(configured(tmp_path, SERVED)) as server:
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.6)
        server.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(1)
        assert [line["msg"] for line in server.lines() if line["level"] == "warning"] == []
