"""Servers on the official Python SDK for tests: `sdk_program.py` under one of its versions."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from roundgate_aws.machine import reserved_port
from tests.support.forked import MEASURES, Forked

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("sdk_program.py")
NEW = sys.executable
"""The interpreter with the SDK 2.x, whose servers speak 2026-07-28."""
OLDER = ROOT / ".cache" / "servers" / "sdk-1.30" / "bin" / "python"
"""The interpreter with the SDK 1.30, if `scripts/servers` has installed it."""
needs_older = pytest.mark.skipif(
    not OLDER.exists(), reason="the Python SDK 1.30 is not installed; scripts/servers installs it"
)


@dataclass
class SdkServer:
    """A server, as a back end and by its effects."""

    entry: dict[str, Any]
    """The entry of `backends`, with the name `up`."""
    notes: Path
    command: Sequence[str] = ()
    process: subprocess.Popen[bytes] | Forked | None = None

    def noted(self) -> list[str]:
        """Return the effects in the order in which they happened."""
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    async def start(self) -> None:
        """Begin a life of the process, and wait until it listens."""
        self.process = await asyncio.to_thread(self._run)
        port = int(self.command[2])
        async with asyncio.timeout(60):
            while not await _listens(port):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.05)

    def _run(self) -> subprocess.Popen[bytes] | Forked:
        interpreter, program, *arguments = self.command
        if interpreter != NEW or MEASURES:
            return subprocess.Popen(self.command, stderr=subprocess.DEVNULL)
        return Forked(arguments, os.environ, ROOT, Path(os.devnull), program=Path(program))

    async def kill(self) -> None:
        """End the process, as a power cut would."""
        assert self.process is not None
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


def over_stdio(interpreter: Path | str, folder: Path, **settings: Any) -> SdkServer:
    """Return a server that each gateway starts."""
    notes = folder / "notes.txt"
    command = [str(interpreter), str(PROGRAM), "stdio", str(notes)]
    return SdkServer({"kind": "mcp", "name": "up", "command": command, **settings}, notes)


@asynccontextmanager
async def over_http(
    interpreter: Path | str, folder: Path, *options: str, **settings: Any
) -> AsyncIterator[SdkServer]:
    """Serve over Streamable HTTP; `options` are arguments of `sdk_program.py`."""
    with reserved_port() as port:
        notes = folder / "notes.txt"
        command = (str(interpreter), str(PROGRAM), str(port), str(notes), *options)
        entry = {"kind": "mcp", "name": "up", "url": f"http://127.0.0.1:{port}/mcp", **settings}
        server = SdkServer(entry, notes, command)
        try:
            await server.start()
            yield server
        finally:
            await server.kill()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
