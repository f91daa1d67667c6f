"""`/readyz`: when a load balancer should send requests to this process."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.postgresql import Server as Database
from roundgate.auth.jwks import FRESH_MS, RETRY_MS, KeySet
from roundgate.errors import Unavailable
from roundgate.http import routes
from roundgate.http.routes import Readiness, ReadinessStatus
from tests.support.asgi import STATE_KEY
from tests.support.clocks import FixedClock
from tests.support.issuer import jwks
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server
from tests.support.server import Server, configured, running
from tests.support.services import answer, service

TOOLS = '''
from roundgate import tool

@tool
async def greet() -> str:
    """Greets."""
    return "Hello"
'''


def ready(server: Server) -> tuple[int, str]:
    response = httpx.get(f"{server.url}/readyz", timeout=60)
    return response.status_code, response.json()["status"]


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_that_drains_still_serves_and_says_so(tmp_path: Path, workers: int) -> None:
    environment = {"GATEWAY_DRAIN_S": "999", "GATEWAY_STORE": f"sqlite:///{tmp_path}/s.sqlite3"}
    with running(configured(tmp_path, TOOLS), environment, "--workers", str(workers)) as server:
        wait_until(lambda: ready(server) == (200, "ready"))
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: ready(server) == (503, "draining"))
        assert httpx.get(f"{server.url}/healthz", timeout=60).json()["status"] == "ok"
        assert server.process.poll() is None
        assert server.stop() == 0  # the second signal does not wait


@pytest.mark.parametrize("workers", [1, 2])
def test_sigint_does_not_wait(tmp_path: Path, workers: int) -> None:
    environment = {"GATEWAY_DRAIN_S": "999", "GATEWAY_STORE": f"sqlite:///{tmp_path}/s.sqlite3"}
    with running(configured(tmp_path, TOOLS), environment, "--workers", str(workers)) as server:
        wait_until(lambda: ready(server) == (200, "ready"))
        assert server.stop(signal.SIGINT) == 0


def test_draining_ends_by_itself(tmp_path: Path) -> None:
    environment = {"GATEWAY_DRAIN_S": "1", "GATEWAY_STORE": f"sqlite:///{tmp_path}/s.sqlite3"}
    with running(configured(tmp_path, TOOLS), environment) as server:
        assert server.stop() == 0


def test_a_gateway_that_needs_its_database_is_ready_while_that_answers(
    postgresql: Database, tmp_path: Path
) -> None:
    environment = {"GATEWAY_STORE": postgresql.url, "GATEWAY_STATE_KEYS": STATE_KEY}
    with running(
        configured(tmp_path, TOOLS, http={"ready_needs_store": True}), environment
    ) as server:
        wait_until(lambda: ready(server) == (200, "ready"))
        postgresql.stop()
        try:
            wait_until(lambda: ready(server) == (503, "store unreachable"))
            assert httpx.get(f"{server.url}/healthz", timeout=60).status_code == 200
        finally:
            postgresql.start()
        wait_until(lambda: ready(server) == (200, "ready"))


class Sessions:
    """A store that answers, fails or hangs."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.reads = 0
        self.asked = asyncio.Event()

    async def read(self, key: str) -> None:
        self.reads += 1
        self.asked.set()
        if self.answer is not None:
            await self.answer()


async def hang() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise Unavailable("no")


def of(sessions: Sessions, *, refuses: bool = False) -> Readiness:
    return Readiness(sessions, lambda: refuses)  # type: ignore[arg-type]


async def test_any_number_of_probes_at_once_is_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "KEPT_S", 600.0)
    sessions = Sessions()
    subject = of(sessions)
    assert set(await asyncio.gather(*(subject.status() for _ in range(100)))) == {
        ReadinessStatus.READY
    }
    assert sessions.reads == 1


async def test_a_store_that_fails_or_hangs_is_unreachable_until_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "KEPT_S", 0.0)
    monkeypatch.setattr(routes, "CHECK_S", 0.01)
    sessions = Sessions(fail)
    subject = of(sessions)
    assert await subject.status() is ReadinessStatus.STORE_UNREACHABLE
    sessions.answer = hang
    assert await subject.status() is ReadinessStatus.STORE_UNREACHABLE
    monkeypatch.setattr(routes, "CHECK_S", 60.0)
    sessions.answer = None
    assert await subject.status() is ReadinessStatus.READY


async def test_a_probe_that_hangs_up_does_not_hold_others() -> None:
    sessions = Sessions(hang)
    subject = of(sessions)
    probe = asyncio.create_task(subject.status())
    await sessions.asked.wait()
    probe.cancel()
    sessions.answer = None
    assert await subject.status() is ReadinessStatus.READY


async def test_by_default_the_store_is_not_read() -> None:
    assert await Readiness(None, lambda: False).status() is ReadinessStatus.READY


async def test_a_gateway_that_never_read_the_keys_of_its_issuer_is_not_ready() -> None:
    async with service(
        answer(b"", "503 Down"), answer(jwks("ec")), answer(b"", "503 Down")
    ) as keys_server:
        clock = FixedClock()
        keys = KeySet(f"{keys_server.url}/jwks", clock)
        subject = Readiness(None, lambda: False, keys)
        assert await subject.status() is ReadinessStatus.KEYS_UNREAD
        assert "503" in str(keys.trouble)
        clock.skip(RETRY_MS / 1000 + 1)
        assert await subject.status() is ReadinessStatus.READY
        assert keys.trouble is None
        clock.skip(FRESH_MS / 1000 + 1)
        assert await keys.key("ec") is not None, "remembered keys stay in use"
        assert await subject.status() is ReadinessStatus.READY
        assert "503" in str(keys.trouble)


async def test_a_gateway_that_refuses_calls_is_not_ready() -> None:
    assert await of(Sessions(), refuses=True).status() is ReadinessStatus.AUDIT_UNWRITABLE
    subject = of(Sessions())
    subject.is_draining = True
    assert await subject.status() is ReadinessStatus.DRAINING
