"""The server under test: a running server, or a server that is started for the run."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import urlsplit

from roundgate.errors import ConnectionLost, UsageError

_STOP_S: Final = 15.0
"""The seconds that a server gets to end after SIGTERM."""
_TAIL_BYTES: Final = 4_096
_ATTEMPTS: Final = 3
"""The number of ports to try, because another process may take a port before the server binds
it."""


@dataclass(frozen=True, slots=True)
class SuiteTarget:
    """A server's URL, and the command that starts it, if any."""

    url: str
    """The endpoint; `${port}` in it, in `command` and in `environment` stands for a free port."""
    command: Sequence[str] = ()
    """The command that starts the server; empty if the server is already running."""
    environment: Mapping[str, str] | None = None
    folder: Path = Path()
    start_timeout_s: float = 60.0
    described: str = ""

    @classmethod
    def of_gateway(
        cls, config: Path, environment: Mapping[str, str], timeout_s: float, described: str
    ) -> SuiteTarget:
        """Return a target that serves a gateway.yaml in a separate process."""
        command = (
            sys.executable, "-m", "roundgate.cli", "serve", str(config.resolve()), "--port", "${port}",
        )  # fmt: skip
        url = "http://127.0.0.1:${port}/mcp"
        return cls(url, command, environment, Path(), timeout_s, described)

    def __str__(self) -> str:
        return self.described or self.url


@asynccontextmanager
async def started(target: SuiteTarget) -> AsyncGenerator[SuiteTarget, None]:
    """Start a target, yield it once it listens, and stop it at the end of the block. Yield a target
    without a command immediately.

    Raises:
        UsageError: the command cannot be run.
        ConnectionLost: the server ended or did not listen in time. The message contains the end of
            its output.
    """
    if not target.command:
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="roundgate-test-") as folder:
        for attempt in range(1, _ATTEMPTS + 1):
            process = _Process(target, _free_port(), Path(folder))
            try:
                if not await process.is_started():
                    if attempt < _ATTEMPTS:
                        continue
                    raise ConnectionLost(
                        f"No free port was found for the server in {_ATTEMPTS} attempts"
                    )
                yield replace(target, url=process.url)
                return
            finally:
                await process.end()


class _Process:
    """A server process whose output goes to a file."""

    def __init__(self, target: SuiteTarget, port: int, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._output = folder / f"output-{port}"
        self._process: asyncio.subprocess.Process | None = None
        self._port = str(port)
        self.url = target.url.replace("${port}", self._port)

    async def is_started(self) -> bool:
        """Start the server and wait until it listens; return False if another process has taken its
        port. See `started` for the errors raised."""
        environment = {
            **os.environ,
            **{
                name: value.replace("${port}", self._port)
                for name, value in (self._target.environment or {}).items()
            },
        }
        # a separate store, so the server sees no tasks of other runs
        environment.setdefault("GATEWAY_STORE", f"sqlite:///{self._folder / 'store.sqlite3'}")
        words = [word.replace("${port}", self._port) for word in self._target.command]
        with self._output.open("wb") as output:
            self._process = await self._spawn(words, environment, output)
        try:
            async with asyncio.timeout(self._target.start_timeout_s):
                while not await self._listens():
                    if self._process.returncode is not None:
                        tail = self._tail()
                        if "address already in use" in tail.lower():
                            return False
                        raise ConnectionLost(
                            f"{words[0]} ended with status {self._process.returncode} before it listened:\n{tail}"
                        )
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise ConnectionLost(
                f"Nothing listens at {self.url} after {self._target.start_timeout_s:g} s "
                f"(start_timeout_s):\n{self._tail()}"
            ) from None
        return True

    async def _spawn(
        self, words: list[str], environment: Mapping[str, str], output: BinaryIO
    ) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *words,
                cwd=self._target.folder,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C must only reach the run, which stops the server
            )
        except OSError as error:
            raise UsageError(f"{words[0]} cannot be run: {error}") from None

    async def _listens(self) -> bool:
        place = urlsplit(self.url)
        try:
            _, writer = await asyncio.open_connection(place.hostname, place.port or 80)
        except OSError:
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    async def end(self) -> None:
        """Send SIGTERM to the server's process group, and SIGKILL once the server has ended or
        after `_STOP_S` seconds."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._process.wait()
                    if number == signal.SIGKILL:
                        return

    def _tail(self) -> str:
        with self._output.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - _TAIL_BYTES, 0))
            return file.read().decode(errors="replace").strip() or "(no output)"


def _free_port() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        return port
