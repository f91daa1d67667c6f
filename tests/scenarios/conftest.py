"""An agency: gateways and workers that a scenario starts, stops and kills. They share a
store, keys and a diary."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.asgi import Client
from tests.support.rounds import KEYS
from tests.support.server import Server, running
from tests.support.task_client import TaskClient
from tests.support.worker import working

SERVED = Path(__file__).parent / "served"


@dataclass
class Agency:
    """What runs, and what it has done."""

    directory: Path
    more_yaml: str = ""
    """Appended to every gateway.yaml from now on."""
    change: Callable[[str], str] = str
    """The version of the tools from now on: their source, changed."""
    environment: dict[str, str] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _started: int = 0

    @property
    def shared(self) -> dict[str, str]:
        """The environment of every process."""
        store = f"sqlite:///{self.directory / 'shared.sqlite3'}"
        diary = str(self.directory / "diary.txt")
        return {
            "GATEWAY_STORE": store,
            "GATEWAY_STATE_KEYS": KEYS,
            "DIARY": diary,
            **self.environment,
        }

    def gateway(self, worker: str = "off") -> Server:
        """One more gateway that answers."""
        return self._stack.enter_context(
            running(self.files(), self.shared | {"GATEWAY_WORKER": worker})
        )

    def worker(self) -> Server:
        """One more worker that has begun."""
        config = self.files()
        return self._stack.enter_context(working(config, config.with_suffix(".log"), self.shared))

    def files(self) -> Path:
        """The gateway.yaml of one more process, beside its tools."""
        self._started += 1
        place = shutil.copytree(SERVED, self.directory / f"process-{self._started}")
        (place / "agency.py").write_text(
            self.change((SERVED / "agency.py").read_text("utf-8")), "utf-8"
        )
        config = place / "gateway.yaml"
        with config.open("a", encoding="utf-8") as file:
            file.write(self.more_yaml)
        return config

    @property
    def diary(self) -> list[str]:
        """What was done, in order."""
        return [line.partition(" ")[2] for line in self._lines()]

    @property
    def processes(self) -> list[int]:
        """Where it was done."""
        return [int(line.partition(" ")[0]) for line in self._lines()]

    async def has_done(self, what: str, within_s: float = 60) -> None:
        """Wait until something has been done."""
        until = time.monotonic() + within_s
        while what not in self.diary:
            assert time.monotonic() < until, self.diary
            await asyncio.sleep(0.02)

    def _lines(self) -> list[str]:
        file = self.directory / "diary.txt"
        return file.read_text().splitlines() if file.exists() else []

    def close(self) -> None:
        """End what still runs."""
        self._stack.close()


@pytest.fixture
def agency(tmp_path: Path) -> Iterator[Agency]:
    made = Agency(tmp_path)
    try:
        yield made
    finally:
        made.close()


@asynccontextmanager
async def clients(*servers: Server, **headers: Any) -> AsyncIterator[list[TaskClient]]:
    """A client of each, that can do everything; the headers go with every request."""
    async with AsyncExitStack() as stack:
        opened = [
            httpx.AsyncClient(base_url=server.url, timeout=60, verify=False) for server in servers
        ]
        yield [
            TaskClient(Client(await stack.enter_async_context(http)), headers=headers)
            for http in opened
        ]


def kill(server: Server) -> None:
    """As a power cut would."""
    server.process.kill()
    server.process.wait()
