"""Processes that are killed without warning and started again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.postgresql import Server
from roundgate_aws.machine import reserved_port

ROOT = Path(__file__).parents[2]
DATABASE_PART = 1 / 3
"""Of all deaths, those of the database, if there is one."""


@dataclass
class Member:
    """One process, in all its lives."""

    name: str
    arguments: list[str]
    environment: Mapping[str, str]
    log: Path
    port: int | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin a life."""
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "roundgate.cli", *self.arguments],
                cwd=self.log.parent,
                env={**os.environ, **self.environment},
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it, as a power cut would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclass
class Fleet:
    """Gateways and workers that share a store."""

    config: Path
    directory: Path
    environment: Mapping[str, str]
    gateways: int
    workers: int
    database: Server | None = None
    """A server that dies as the others do."""
    members: list[Member] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    _ports: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        for number in range(self.gateways):
            port = self._ports.enter_context(reserved_port())
            arguments = ["serve", str(self.config), "--port", str(port), "--log-level", "warning"]
            self._add(f"gateway-{number}", arguments, {"GATEWAY_WORKER": "off"}, port)
        for number in range(self.workers):
            self._add(
                f"worker-{number}", ["worker", str(self.config), "--log-level", "info"], {}, None
            )

    def _add(
        self, name: str, arguments: list[str], more: Mapping[str, str], port: int | None
    ) -> None:
        log = self.directory / f"{name}.log"
        self.members.append(Member(name, arguments, {**self.environment, **more}, log, port))

    def __enter__(self) -> Fleet:
        for member in self.members:
            member.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._ports:
            for member in self.members:
                member.kill()

    @property
    def urls(self) -> list[str]:
        """Where the gateways are, those that are just dead too."""
        return [
            f"http://127.0.0.1:{member.port}/mcp"
            for member in self.members
            if member.port is not None
        ]

    async def haunt(self, every_s: float, dice: random.Random) -> None:
        """Kill one member after another, for ever; each begins its next life at once."""
        while True:
            await asyncio.sleep(every_s)
            if self.database is not None and dice.random() < DATABASE_PART:
                await asyncio.to_thread(self.database.kill)
                await asyncio.sleep(dice.uniform(0, 3))
                await asyncio.to_thread(self.database.start)
                self.kills["database"] += 1
                continue
            member = dice.choice(self.members)
            member.kill()
            member.start()
            self.kills[member.name.partition("-")[0]] += 1
