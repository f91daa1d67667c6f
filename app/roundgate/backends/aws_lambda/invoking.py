"""Invocations of functions: boto3's client blocks, so each runs in a thread; what goes
wrong is a `BackendError`.

    throttled, not reached, not ready      the function was not begun: again, while there is time
    answer lost, trouble inside Lambda     it may have run: again only if that does no harm
    no answer in time                      told so; the thread ends when its connection does

boto3 itself tries nothing again here: it cannot know which of these an error is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final

from roundgate import aws
from roundgate.aio import Threads
from roundgate.auth import Principal
from roundgate.aws import Refusal, refusal
from roundgate.backends.aws_lambda.refusals import NOT_BEGUN, error_of, passes, pause_s
from roundgate.backends.aws_lambda.target import Target
from roundgate.clock import Clock
from roundgate.errors import BackendError, ConfigError, FunctionAway, Unavailable

SPARE_S: Final = 5
"""By how much a connection outlasts the time that its invocation has: the invocation ends first."""
ATTEMPTS: Final = 4

log = logging.getLogger("roundgate.backends")


@dataclass(frozen=True, slots=True)
class Invocation:
    """One, complete."""

    target: Target
    payload: bytes = field(repr=False)
    client_context: str | None = field(default=None, repr=False)
    """In base64."""
    is_event: bool = False
    """Whether AWS Lambda only takes it."""
    execution_name: str | None = None
    """Of the execution that it starts of a durable function, which is started once under a name."""
    is_repeatable: bool = False
    """Whether it does no harm to invoke twice."""

    def parameters(self) -> dict[str, Any]:
        """Of boto3's `invoke`."""
        given = {
            "FunctionName": self.target.function,
            "InvocationType": "Event" if self.is_event else "RequestResponse",
            "Payload": self.payload,
            "ClientContext": self.client_context,
            "DurableExecutionName": self.execution_name,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Invoked:
    """What AWS Lambda answered."""

    payload: bytes = field(repr=False)
    has_failed: bool
    """Whether the payload is the error of a function."""
    request_id: str
    execution_arn: str | None = None


class Functions:
    """Invokes functions, for as many callers at once as there may be connections."""

    def __init__(self, max_connections: int, max_response_bytes: int) -> None:
        """Nothing is connected yet.

        Args:
            max_connections: invocations at once; one caller has half of them at most.
            max_response_bytes: of an answer.
        """
        self._threads = Threads(max_connections)
        self._connections = max_connections
        self._max_bytes = max_response_bytes
        self._clients: dict[tuple[str | None, float], Any] = {}
        self._clock = Clock()

    async def invoke(self, invocation: Invocation, timeout_s: float, caller: Principal) -> Invoked:
        """Invoke a function; returns what it said, be it an error of its own.

        Args:
            invocation: what is sent.
            timeout_s: seconds within which the answer has to be here, whatever is tried again.
            caller: whose share of the threads it takes.

        Raises:
            FunctionAway: throttled, not reached, not ready, too slow: another time may go better.
            BackendError: anything else that AWS Lambda refuses.
        """
        work = partial(self._invoke, invocation, timeout_s)
        repeatable = invocation.is_repeatable or invocation.execution_name is not None
        done: Invoked = await self._do(
            work, invocation.target, timeout_s, caller, is_repeatable=repeatable
        )
        return done

    async def execution(
        self, arn: str, target: Target, timeout_s: float, caller: Principal
    ) -> dict[str, Any]:
        """What AWS Lambda says of an execution of a durable function (`GetDurableExecution`).

        Raises:
            FunctionAway, BackendError: as `invoke`.
        """

        def look() -> dict[str, Any]:
            client = self._client(target.region, timeout_s)
            _check_knows_durable(client)
            found: dict[str, Any] = client.get_durable_execution(DurableExecutionArn=arn)
            return found

        said: dict[str, Any] = await self._do(look, target, timeout_s, caller, is_repeatable=True)
        return said

    async def stop(self, arn: str, target: Target, timeout_s: float, caller: Principal) -> None:
        """Stop an execution of a durable function (`StopDurableExecution`); one that is
        over or gone is left alone.

        Raises:
            FunctionAway, BackendError: as `invoke`.
        """

        def stop() -> None:
            client = self._client(target.region, timeout_s)
            _check_knows_durable(client)
            with suppress(client.exceptions.ResourceNotFoundException):
                client.stop_durable_execution(DurableExecutionArn=arn)

        await self._do(stop, target, timeout_s, caller, is_repeatable=True)

    async def aclose(self) -> None:
        """Let go of the connections."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await asyncio.to_thread(client.close)

    async def _do(
        self,
        work: Callable[[], Any],
        target: Target,
        timeout_s: float,
        caller: Principal,
        *,
        is_repeatable: bool,
    ) -> Any:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                for attempt in count(1):
                    begun_ms = self._clock.monotonic_ms()
                    done = await self._threads.run(partial(_tried, work), caller)
                    _tell(target, done, self._clock.monotonic_ms() - begun_ms)
                    if not isinstance(done, Refusal):
                        return done
                    pause = pause_s(done, attempt)
                    left_s = (limit.when() or 0.0) - asyncio.get_running_loop().time()
                    may_repeat = is_repeatable or done.code in NOT_BEGUN or not done.was_sent
                    if not (may_repeat and passes(done)) or attempt == ATTEMPTS or pause >= left_s:
                        raise error_of(done, target)
                    await asyncio.sleep(pause)
        except TimeoutError:
            raise FunctionAway(
                f"The function {target.name} did not answer within {timeout_s:g} s, and may still be at work."
                " Look whether it was done before you call again, or ask for less"
            ) from None

    def _invoke(self, invocation: Invocation, timeout_s: float) -> Invoked:
        """In a thread."""
        client = self._client(invocation.target.region, timeout_s)
        if invocation.execution_name is not None:
            _check_knows_durable(client)
        said = client.invoke(**invocation.parameters())
        payload = _read(said["Payload"], self._max_bytes)
        if payload is None:
            raise BackendError(
                f"The function {invocation.target.name} answered more than {self._max_bytes} bytes; ask for less"
            )
        request_id = said.get("ResponseMetadata", {}).get("RequestId", "")
        has_failed = "FunctionError" in said
        return Invoked(payload, has_failed, request_id, said.get("DurableExecutionArn"))

    def prepare(self, region: str | None, timeout_s: float) -> None:
        """Make the client of a region, which opens no connection.

        Raises:
            ConfigError: boto3 is not installed, or there is no region.
        """
        self._client(region, timeout_s)

    def _client(self, region: str | None, timeout_s: float) -> Any:
        """boto3's client, made once for a region and a time-out; two threads may both make
        one, of which one stays."""
        key = (region, timeout_s)
        if key not in self._clients:
            made = aws.client(
                "lambda",
                region=region,
                read_timeout=timeout_s + SPARE_S,
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=self._connections,
            )
            self._clients.setdefault(key, made)
        return self._clients[key]


def _tell(target: Target, done: Any, took_ms: float) -> None:
    """A line for each call of AWS Lambda, as there is one for each HTTP request:
    nothing of what was said."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    status: Any = 200
    if isinstance(done, Refusal):
        status = done.code
    elif isinstance(done, Invoked) and done.has_failed:
        status = "FunctionError"
    fields = {"function": target.name, "status": status, "ms": round(took_ms, 2)}
    log.debug("call of AWS Lambda", extra={"fields": fields})


def _tried(work: Callable[[], Any]) -> Any:
    """What the work returns, or why AWS refused it; in a thread.

    Raises:
        BackendError: the gateway is not set up for it.
    """
    try:
        return work()
    except ConfigError as error:
        said = "; ".join(problem.message for problem in error.problems)
        raise BackendError(f"The gateway cannot invoke functions: it {said}") from None
    except Unavailable as error:
        raise FunctionAway(str(error)) from None
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            raise
        return refused


def _check_knows_durable(client: Any) -> None:
    """Before anything is sent: an older boto3 knows neither the parameter nor the operation."""
    if not hasattr(client, "get_durable_execution"):
        raise BackendError(
            "The gateway's boto3 knows no durable functions; whoever runs it has to install a newer one"
        )


def _read(body: Any, limit: int) -> bytes | None:
    """All of an answer; `None` if that is more than the limit. The last read finds
    out whether it is whole."""
    read = bytearray()
    while piece := body.read(limit + 1 - len(read)):
        read += piece
        if len(read) > limit:
            body.close()
            return None
    return bytes(read)
