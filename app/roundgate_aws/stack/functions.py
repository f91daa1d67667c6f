"""Lambda functions: execution environments that run under the Runtime Interface Emulator.

An environment runs one invocation at a time, to its end, even if its caller stops waiting. A dead
environment is restarted for the next invocation, as at AWS. All functions share the account's
concurrency; an invocation beyond it is throttled. Unlike at AWS, an invocation waits for a free
environment, and memory is not limited.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import zipfile
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from roundgate_aws import machine
from roundgate_aws.stack.runtime_api import InvocationFailed, RuntimeApi, Streamed
from roundgate_aws.template import TemplateFunction

START_S = 20
MAX_PAYLOAD_BYTES = 6 * 1024 * 1024
"""The limit on an event as JSON, in bytes. The emulator itself limits answers to 100 bytes more, as
AWS does."""
INVOCATION = "/2015-03-31/functions/function/invocations"
WRAPPER = "AWS_LAMBDA_EXEC_WRAPPER"
LOOK_S = 0.05
"""The seconds between two checks whether the process of a streamed invocation is alive."""


class PayloadTooLarge(InvocationFailed):
    """The event is larger than AWS Lambda accepts; nothing was invoked."""


class Throttled(InvocationFailed):
    """The account's concurrency limit is reached; nothing was invoked."""


@dataclass
class Account:
    """The concurrency that the functions of an account share."""

    executions: int
    running: int = 0
    most: int = 0
    """The highest number of concurrent executions."""

    @contextmanager
    def execution(self) -> Iterator[None]:
        """Use an execution until the block ends; raise Throttled if none is free."""
        if self.running >= self.executions:
            raise Throttled(f"{self.executions} functions are already running")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            yield
        finally:
            self.running -= 1


@dataclass
class Environment:
    """An execution environment, which may be restarted."""

    function: TemplateFunction
    number: int
    code: Path
    tools: EmulatorPrograms
    variables: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    invocations: int = 0
    starts: int = 0
    is_ended: bool = False
    api: RuntimeApi | None = None
    """The Runtime API of an environment that streams; others have the emulator's."""
    api_address: str = ""
    _ending: threading.Lock = field(default_factory=threading.Lock)
    _ports: ExitStack = field(default_factory=ExitStack)

    @property
    def name(self) -> str:
        return f"{self.function.name}-{self.number}"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def streams(self) -> bool:
        """Return whether the function replaces AWS's runtime by a loop of its own."""
        return WRAPPER in self.function.environment

    async def listen(self) -> None:
        """Start a Runtime API for the next process: the former one may have an open request."""
        if self.api is not None:
            self.api.close()
        self.api = RuntimeApi()
        self.api_address = await self.api.start()

    def start(self) -> None:
        """Start the process. The emulator begins the init phase with the first invocation.

        Raises:
            InvocationFailed: the environment was ended meanwhile, or cannot be started.
        """
        with self._ending, self.log.open("ab") as sink:
            if self.is_ended:
                raise InvocationFailed(f"{self.name} was ended and is not started again")
            runtime = [str(self.tools.python), "-m", "awslambdaric", self.function.handler]
            self.process = subprocess.Popen(
                [*(self._wrapper() if self.streams else self._emulator()), *runtime],
                cwd=self.code,
                env=self.environ(),
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        until = time.monotonic() + START_S
        while not self.streams and not machine.is_listening(self.port):
            if time.monotonic() > until or not self.is_alive:
                raise InvocationFailed(
                    f"{self.name} did not start; its log:\n{self.log.read_text()[-2000:]}"
                )
            time.sleep(0.01)
        self.starts += 1

    def _wrapper(self) -> list[str]:
        script = self.function.environment[WRAPPER].removeprefix("/var/task/")
        return ["sh", str(self.code / script)]

    def _emulator(self) -> list[str]:
        self._ports.close()
        self.port, api = (self._ports.enter_context(machine.reserved_port()) for _ in range(2))
        return [
            str(self.tools.emulator),
            *("--runtime-interface-emulator-address", f"127.0.0.1:{self.port}"),
            *("--runtime-api-address", f"127.0.0.1:{api}"),
            *("--log-level", "error"),
        ]

    def environ(self) -> dict[str, str]:
        """Return the variables of the process."""
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
            **({"AWS_LAMBDA_RUNTIME_API": self.api_address} if self.streams else {}),
        }

    def kill(self) -> None:
        """Stop the environment's processes with SIGKILL, as a failing host would."""
        if self.process is not None and self.is_alive:
            for pid in family(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def end(self) -> None:
        """Stop the environment permanently, even while another thread starts it."""
        with self._ending:
            self.is_ended = True
            self._ports.close()
        if self.api is not None:
            self.api.close()
        self.kill()


@dataclass(frozen=True)
class EmulatorPrograms:
    """The programs that run environments."""

    emulator: Path
    python: Path

    @classmethod
    def find(cls) -> EmulatorPrograms:
        """Return the programs; install them if necessary.

        Raises:
            UsageError: a program cannot be installed.
        """
        return cls(*machine.emulator())


def why_not() -> str | None:
    """Return the reason why functions cannot run on this machine, or `None`."""
    if machine.interpreter() is None:
        return f"the functions need Python {machine.PYTHON}"
    return None if shutil.which("java") else "DynamoDB Local needs Java 17"


def environments(
    function: TemplateFunction,
    count: int,
    code: Path,
    tools: EmulatorPrograms,
    variables: Mapping[str, str],
    logs: Path,
) -> list[Environment]:
    """Return environments of a function, with a log in the folder `logs` for each."""
    return [
        Environment(
            function, number, code, tools, variables, logs / f"{function.name}-{number}.log"
        )
        for number in range(1, count + 1)
    ]


@dataclass
class EnvironmentPool:
    """The environments of a function."""

    environments: list[Environment]
    http: httpx.AsyncClient
    account: Account
    counts: Counter[str] = field(default_factory=Counter)
    """The metrics Invocations, Errors and Throttles, as AWS counts them."""
    _free: asyncio.Queue[Environment] = field(default_factory=asyncio.Queue)
    _running: set[asyncio.Task[Any]] = field(default_factory=set)
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=1000))

    def __post_init__(self) -> None:
        for environment in self.environments:
            self._free.put_nowait(environment)

    async def invoke(self, event: Any, client_context: str = "") -> Any:
        """Return the result of an invocation. It continues if the caller is cancelled.

        Args:
            event: the payload, to be encoded as JSON.
            client_context: the client context as JSON, in base64.

        Raises:
            PayloadTooLarge: the event is too large.
            Throttled: the account's concurrency limit is reached.
            InvocationFailed: the function failed.
        """
        payload = _encoded(event)
        return await asyncio.shield(
            self._begun(lambda environment: self._invoke(environment, payload, client_context))
        )

    async def stream(self, event: Any) -> Streamed:
        """Begin an invocation whose response streams; return it. Its errors are those of `invoke`,
        and come with its chunks, except PayloadTooLarge."""
        streamed = Streamed(_encoded(event), self.environments[0].function.timeout_s)

        def end(done: asyncio.Task[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            if not isinstance(error, InvocationFailed):
                error = InvocationFailed("the environment ended")
            streamed.end(error)  # no effect on a response that has ended

        running = self._begun(lambda environment: self._stream(environment, streamed))
        running.add_done_callback(end)
        return streamed

    def _begun(self, run: Run) -> asyncio.Task[Any]:
        running = asyncio.create_task(self._counted(run))
        self._running.add(running)
        running.add_done_callback(self._ended)
        return running

    def _ended(self, running: asyncio.Task[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # mark it as retrieved: the caller may be cancelled

    async def _counted(self, run: Run) -> Any:
        try:
            with self.account.execution():
                self.counts["Invocations"] += 1
                return await self._run(run)
        except Throttled:
            self.counts["Throttles"] += 1
            raise
        except InvocationFailed:
            self.counts["Errors"] += 1
            raise

    async def _run(self, run: Run) -> Any:
        environment = await self._free.get()
        try:
            if not environment.is_alive:
                if environment.streams:
                    await environment.listen()
                await asyncio.to_thread(environment.start)
            environment.invocations += 1
            self.recent.append(environment.name)
            return await run(environment)
        finally:
            self._free.put_nowait(environment)

    async def _invoke(self, environment: Environment, payload: bytes, context: str) -> Any:
        url = f"http://127.0.0.1:{environment.port}{INVOCATION}"
        headers = {"X-Amz-Client-Context": context} if context else {}
        timeout_s = environment.function.timeout_s + START_S
        try:
            response = await self.http.post(
                url, content=payload, headers=headers, timeout=timeout_s
            )
        except httpx.HTTPError as error:
            raise InvocationFailed(f"{environment.name}: {type(error).__name__}") from None
        try:
            result = response.json()
        except ValueError:  # text of the emulator, such as "Task timed out after …"
            environment.kill()  # as AWS does after a time-out or a crash of the runtime
            details = {"errorType": "Sandbox.Timedout", "errorMessage": response.text[:500]}
            raise InvocationFailed(f"{environment.name}: {response.text[:500]}", details) from None
        if isinstance(result, dict) and "errorMessage" in result and "errorType" in result:
            raise InvocationFailed(
                f"{environment.name}: {result['errorType']}: {result['errorMessage']}", result
            )
        return result

    async def _stream(self, environment: Environment, streamed: Streamed) -> None:
        """Run an invocation to the end of its response."""
        assert environment.api is not None
        environment.api.invoke(streamed)
        while not streamed.is_over.is_set():
            if not environment.is_alive:
                streamed.fail(environment.api.init_error or {"errorType": "Runtime.ExitError"})
            elif time.monotonic() > streamed.ends_s:
                environment.kill()
                streamed.fail({"errorType": "Sandbox.Timedout"})
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await streamed.is_over.wait()
        if streamed.error is not None:
            raise streamed.error

    def close(self) -> None:
        """End all environments."""
        for running in self._running:
            running.cancel()
        for environment in self.environments:
            environment.end()


Run: TypeAlias = Callable[[Environment], Awaitable[Any]]


def _encoded(event: Any) -> bytes:
    """Return an event as Lambda gets it; raise PayloadTooLarge if it does not accept it."""
    payload = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"the event has {len(payload)} bytes")
    return payload


def unpack(source: Path, directory: Path) -> Path:
    """Extract a function's zip into a new directory; return the directory."""
    directory.mkdir(parents=True)
    with zipfile.ZipFile(source) as archive:
        archive.extractall(directory)
    return directory


def family(pid: int) -> list[int]:
    """Return the ids of a process and its descendants. The runtime has a process group of its own,
    so killing the emulator's group is not enough."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [
        pid,
        *(
            descendant
            for children in tasks
            for child in children.read_text().split()
            for descendant in family(int(child))
        ),
    ]
