"""Lambda functions: execution environments, each with a Runtime API of its own.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundgate_aws import machine
from roundgate_aws.stack.runtime_api import InvocationFailed, RuntimeApi, Streamed
from roundgate_aws.template import TemplateFunction

START_S = 20
MAX_PAYLOAD_BYTES = 6 * 1024 * 1024
"""The limit on an event as JSON, in bytes."""
WRAPPER = "AWS_LAMBDA_EXEC_WRAPPER"
LOOK_S = 0.05
"""The seconds between two checks whether the process of an invocation is alive."""


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
    python: Path
    """The functions' Python, with AWS's runtime client."""
    variables: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    invocations: int = 0
    starts: int = 0
    is_ended: bool = False
    api: RuntimeApi = field(default_factory=RuntimeApi)
    api_address: str = ""
    _ending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return f"{self.function.name}-{self.number}"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def listen(self) -> None:
        """Start a Runtime API for the next process: the former one may have an open request."""
        self.api.close()
        self.api = RuntimeApi()
        self.api_address = await self.api.start()

    def start(self) -> None:
        """Start the process, which begins the init phase. Raise InvocationFailed if the environment
        was ended meanwhile."""
        with self._ending, self.log.open("ab") as sink:
            if self.is_ended:
                raise InvocationFailed(f"{self.name} was ended and is not started again")
            runtime = [str(self.python), "-m", "awslambdaric", self.function.handler]
            self.process = subprocess.Popen(
                [*self._wrapper(), *runtime],
                cwd=self.code,
                env=self.environ(),
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        self.starts += 1

    def _wrapper(self) -> list[str]:
        script = self.function.environment.get(WRAPPER, "").removeprefix("/var/task/")
        return ["sh", str(self.code / script)] if script else []

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
            "AWS_LAMBDA_RUNTIME_API": self.api_address,
        }

    def kill(self) -> None:
        """Stop the environment's processes with SIGKILL, as a failing host would."""
        if self.process is not None and self.is_alive:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def end(self) -> None:
        """Stop the environment permanently, even while another thread starts it."""
        with self._ending:
            self.is_ended = True
        self.api.close()
        self.kill()


def why_not() -> str | None:
    """Return the reason why functions cannot run on this machine, or `None`."""
    if machine.interpreter() is None:
        return f"the functions need Python {machine.PYTHON}"
    return None if shutil.which("java") else "DynamoDB Local needs Java 17"


def environments(
    function: TemplateFunction,
    count: int,
    code: Path,
    python: Path,
    variables: Mapping[str, str],
    logs: Path,
) -> list[Environment]:
    """Return environments of a function, with a log in the folder `logs` for each."""
    return [
        Environment(
            function, number, code, python, variables, logs / f"{function.name}-{number}.log"
        )
        for number in range(1, count + 1)
    ]


@dataclass
class EnvironmentPool:
    """The environments of a function."""

    environments: list[Environment]
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
        streamed = await self.stream(event, client_context)
        answer = b"".join([chunk async for chunk in streamed.chunks()])
        return json.loads(answer or b"null")

    async def stream(self, event: Any, client_context: str = "") -> Streamed:
        """Begin an invocation whose response may stream; return it. Its errors are those of
        `invoke`, and come with its chunks, except PayloadTooLarge."""
        timeout_s = self.environments[0].function.timeout_s
        streamed = Streamed(_encoded(event), timeout_s, client_context=client_context)

        def end(done: asyncio.Task[None]) -> None:
            self._running.discard(done)
            error = None if done.cancelled() else done.exception()
            if not isinstance(error, InvocationFailed):
                error = InvocationFailed("the environment ended")
            streamed.end(error)  # no effect on a response that has ended

        running = asyncio.create_task(self._counted(streamed))
        self._running.add(running)
        running.add_done_callback(end)
        return streamed

    async def _counted(self, streamed: Streamed) -> None:
        try:
            with self.account.execution():
                self.counts["Invocations"] += 1
                await self._run(streamed)
        except Throttled:
            self.counts["Throttles"] += 1
            raise
        except InvocationFailed:
            self.counts["Errors"] += 1
            raise

    async def _run(self, streamed: Streamed) -> None:
        environment = await self._free.get()
        try:
            if not environment.is_alive:
                await environment.listen()
                await asyncio.to_thread(environment.start)
            environment.invocations += 1
            self.recent.append(environment.name)
            await self._invoke(environment, streamed)
        finally:
            self._free.put_nowait(environment)

    async def _invoke(self, environment: Environment, streamed: Streamed) -> None:
        streamed.ends_s = time.monotonic() + START_S
        environment.api.invoke(streamed)
        while not streamed.is_over.is_set():
            if not environment.is_alive:
                streamed.fail(environment.api.init_error or {"errorType": "Runtime.ExitError"})
            elif time.monotonic() > streamed.ends_s:
                environment.kill()
                late = f"Task timed out after {streamed.timeout_s:.2f} seconds"
                streamed.fail({"errorType": "Sandbox.Timedout", "errorMessage": late})
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
