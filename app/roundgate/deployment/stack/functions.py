"""Lambda functions: execution environments under the Runtime Interface Emulator, as
many as are wanted of each.

An environment runs one invocation at a time, to its end: a caller that does not wait so long
changes nothing. One that has died is replaced when it is needed again, as AWS does it. All
functions share the executions that the account may have at once; an invocation beyond them is
throttled. Unlike AWS, one that finds no environment free waits for it, for there are not so many
here; and memory is not limited.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import threading
import time
import zipfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from roundgate.deployment.ports import reserved_port
from roundgate.deployment.stack.loops import new_trace
from roundgate.deployment.stack.template import Function
from roundgate.errors import InvocationFailed, PayloadTooLarge, Throttled

START_S = 20
MAX_PAYLOAD_BYTES = 6 * 1024 * 1024
"""Of an event, as JSON; the emulator itself refuses answers of 100 bytes more, as AWS does."""
RUNTIME = Path(__file__).with_name("runtime.py")
INVOCATION = "/2015-03-31/functions/function/invocations"


@dataclass
class Account:
    """What the functions of an account share: how many of them may run at once."""

    executions: int
    running: int = 0
    most: int = 0
    """Of those that ran at once."""

    @contextmanager
    def execution(self) -> Iterator[None]:
        """One of them, for as long as this lasts.

        Raises:
            Throttled: there is none left.
        """
        if self.running >= self.executions:
            raise Throttled(f"{self.executions} functions run already")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            yield
        finally:
            self.running -= 1


@dataclass
class Environment:
    """One execution environment, in all its lives."""

    function: Function
    number: int
    code: Path
    tools: Tools
    variables: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    invocations: int = 0
    starts: int = 0
    is_ended: bool = False
    _ending: threading.Lock = field(default_factory=threading.Lock)
    _ports: ExitStack = field(default_factory=ExitStack)

    @property
    def name(self) -> str:
        return f"{self.function.name}-{self.number}"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """A fresh environment; its init phase begins with the first
        invocation, as the emulator has it.

        Raises:
            InvocationFailed: it was killed meanwhile, or cannot be started.
        """
        with self._ending, self.log.open("ab") as sink:
            if self.is_ended:
                raise InvocationFailed(f"{self.name} is not to be started again")
            self.process = subprocess.Popen(
                [*self._emulator(), str(self.tools.python), str(RUNTIME), self.function.handler],
                cwd=self.code,
                env=self.variables_of_the_process(),
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        until = time.monotonic() + START_S
        while not answers(self.port):
            if time.monotonic() > until or not self.is_alive:
                raise InvocationFailed(
                    f"{self.name} did not start; its log:\n{self.log.read_text()[-2000:]}"
                )
            time.sleep(0.01)
        self.starts += 1

    def _emulator(self) -> list[str]:
        """Its command; both ports are held for as long as it lives."""
        self._ports.close()
        self.port, api = (self._ports.enter_context(reserved_port()) for _ in range(2))
        return [
            str(self.tools.emulator),
            *("--runtime-interface-emulator-address", f"127.0.0.1:{self.port}"),
            *("--runtime-api-address", f"127.0.0.1:{api}"),
            *("--log-level", "error"),
        ]

    def variables_of_the_process(self) -> dict[str, str]:
        function = self.function
        return {
            "PATH": os.environ["PATH"],
            "AWS_EXECUTION_ENV": f"AWS_Lambda_{function.runtime}",
            "AWS_LAMBDA_FUNCTION_NAME": function.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
            "AWS_LAMBDA_FUNCTION_TIMEOUT": str(function.timeout_s),
            "LAMBDA_TASK_ROOT": str(self.code),
            "PYTHONPATH": str(self.code),
            "PYTHONDONTWRITEBYTECODE": "1",
            **function.environment,
            **self.variables,
        }

    def kill(self) -> None:
        """End it, with everything in it, as a host that fails would."""
        if self.process is not None and self.is_alive:
            for pid in family(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def end(self) -> None:
        """Kill it for good, also while it is being started in another thread."""
        with self._ending:
            self.is_ended = True
            self._ports.close()
        self.kill()


@dataclass(frozen=True)
class Tools:
    """What environments are made with."""

    emulator: Path
    python: Path


@dataclass
class Pool:
    """The environments of one function; an invocation waits for one that is free."""

    environments: list[Environment]
    http: httpx.AsyncClient
    account: Account
    counts: Counter[str] = field(default_factory=Counter)
    """Invocations, Errors and Throttles, as AWS counts them."""
    _free: asyncio.Queue[Environment] = field(default_factory=asyncio.Queue)
    _running: set[asyncio.Task[Any]] = field(default_factory=set)
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=1000))

    def __post_init__(self) -> None:
        for environment in self.environments:
            self._free.put_nowait(environment)

    async def invoke(
        self, event: Any, trace: str | None = None, client_context: str | None = None
    ) -> Any:
        """What the function returns; `trace` is the header of what led to this,
        `client_context` is JSON.

        Raises:
            PayloadTooLarge, Throttled, InvocationFailed
        """
        payload = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLarge(f"{len(payload)} bytes")
        told = json.dumps({"trace": trace or new_trace(), "client": client_context})
        running = asyncio.create_task(self._counted(payload, told))
        self._running.add(running)
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def _ended(self, running: asyncio.Task[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # whoever asked may not be there any more

    async def _counted(self, payload: bytes, told: str) -> Any:
        try:
            with self.account.execution():
                self.counts["Invocations"] += 1
                return await self._run(payload, told)
        except Throttled:
            self.counts["Throttles"] += 1
            raise
        except InvocationFailed:
            self.counts["Errors"] += 1
            raise

    async def _run(self, payload: bytes, told: str) -> Any:
        environment = await self._free.get()
        try:
            if not environment.is_alive:
                await asyncio.to_thread(environment.start)
            environment.invocations += 1
            self.recent.append(environment.name)
            return await self._invoke(environment, payload, told)
        finally:
            self._free.put_nowait(environment)

    async def _invoke(self, environment: Environment, payload: bytes, told: str) -> Any:
        url = f"http://127.0.0.1:{environment.port}{INVOCATION}"
        headers = {"X-Amz-Client-Context": base64.b64encode(told.encode()).decode()}
        timeout_s = environment.function.timeout_s + START_S
        try:
            response = await self.http.post(
                url, content=payload, headers=headers, timeout=timeout_s
            )
        except httpx.HTTPError as error:
            raise InvocationFailed(f"{environment.name}: {type(error).__name__}") from None
        try:
            result = response.json()
        except ValueError:  # it is the emulator who speaks, such as "Task timed out after …"
            environment.kill()  # after a time-out or a crash of the runtime AWS begins with a fresh one
            said = {"errorType": "Sandbox.Timedout", "errorMessage": response.text[:500]}
            raise InvocationFailed(f"{environment.name}: {response.text[:500]}", said) from None
        if isinstance(result, dict) and "errorMessage" in result and "errorType" in result:
            raise InvocationFailed(
                f"{environment.name}: {result['errorType']}: {result['errorMessage']}", result
            )
        return result

    def close(self) -> None:
        """End all of them."""
        for running in self._running:
            running.cancel()
        for environment in self.environments:
            environment.end()


def unpack(source: Path, directory: Path) -> Path:
    """The code of a function, as AWS unpacks it: once, read by all its environments."""
    directory.mkdir(parents=True)
    with zipfile.ZipFile(source) as archive:
        archive.extractall(directory)
    return directory


def family(pid: int) -> list[int]:
    """A process and all that it has begun; the emulator gives the runtime a
    process group of its own."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [
        pid,
        *(
            one
            for children in tasks
            for child in children.read_text().split()
            for one in family(int(child))
        ),
    ]


def free_port() -> int:
    """A port that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether something listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
