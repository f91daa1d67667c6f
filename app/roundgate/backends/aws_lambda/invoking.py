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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, Final

from roundgate import aws
from roundgate.aio import Threads
from roundgate.auth import Principal
from roundgate.aws import Refusal, refusal
from roundgate.backends.aws_lambda.config import (
    LambdaBackendConfig,
    LambdaToolConfig,
    is_qualified,
)
from roundgate.clock import Clock
from roundgate.errors import BackendError, ConfigError, FunctionAway, Unavailable


@dataclass(frozen=True, slots=True)
class Target:
    """A function."""

    function: str
    """Name or ARN, with the qualifier at its end if there is one."""
    region: str | None
    """`None`: that of the environment."""

    @property
    def name(self) -> str:
        """As people know it: without account and region."""
        return self.function.rpartition(":function:")[2]


def target(function: str, qualifier: str | None, region: str | None) -> Target:
    """A function by what the configuration says; an ARN knows its region itself."""
    parts = function.split(":")
    own = parts[3] if function.startswith("arn:") else region
    if qualifier is None or is_qualified(function):
        return Target(function, own)
    return Target(f"{function}:{qualifier}", own)


def target_of(tool: LambdaToolConfig, backend: LambdaBackendConfig) -> Target:
    """The function of a tool: its own, or else the back end's."""
    if tool.function is not None:
        return target(tool.function, tool.qualifier, backend.region)
    return target(str(backend.function), tool.qualifier or backend.qualifier, backend.region)


THROTTLED: Final = frozenset(
    {"TooManyRequestsException", "EC2ThrottledException", "ThrottlingException", "Throttling"}
)
NOT_READY: Final = frozenset(
    {
        *(
            "CodeArtifactUserPendingException",
            "EFSMountTimeoutException",
            "ENILimitReachedException",
        ),
        *("ENINotReadyException", "ResourceConflictException", "ResourceNotReadyException"),
        *(
            "SnapStartNotReadyException",
            "SnapStartTimeoutException",
            "S3FilesMountTimeoutException",
        ),
        *("SubnetIPAddressLimitReachedException", "EFSMountConnectivityException"),
        *("S3FilesMountConnectivityException",),
    }
)
NOT_BEGUN: Final = THROTTLED | NOT_READY
"""After these the function has not been begun, and it may be another time."""

_TOO_LARGE: Final = "it takes no payload of this size. Give it less at once"
_SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ResourceNotFoundException": "it does not exist, or has no such version or alias. Whoever "
        "runs the gateway has to correct its name, region or qualifier",
        "AccessDeniedException": "the gateway may not use it. Its role needs "
        "lambda:InvokeFunction, and for a durable function lambda:GetDurableExecution, and "
        "lambda:StopDurableExecution where `cancel` is set",
        "RecursiveInvocationException": "AWS Lambda has found a loop of invocations, and ends it",
        "DurableExecutionAlreadyStartedException": "it was started for this call with another "
        "payload",
        "ModeNotSupportedException": "it does not take this kind of invocation. Set or remove "
        "`asynchronous`",
        "RequestTooLargeException": _TOO_LARGE,
        "RequestEntityTooLargeException": _TOO_LARGE,
    }
)
"""By code: what is wrong with the function, and the remedy."""
_CREDENTIALS: Final = frozenset(
    {
        *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"),
        *("UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException"),
        *("InvalidClientTokenId", "IncompleteSignature", "MissingAuthenticationTokenException"),
    }
)


def passes(refused: Refusal) -> bool:
    """Whether another attempt may go better."""
    if refused.code in NOT_BEGUN:
        return True
    if refused.status is not None:
        return refused.status >= 500
    return refused.was_sent or refused.message == ""


def pause_s(refused: Refusal, attempt: int) -> float:
    """Seconds before the next attempt: what AWS Lambda says, else twice as long after each."""
    said = refused.response.get("retryAfterSeconds")
    try:
        return max(0.05, float(said))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float(0.2 * 2 ** (attempt - 1))


def error_of(refused: Refusal, target: Target) -> BackendError:
    """What the caller is told of it."""
    code, name = refused.code[:100], target.name
    if code in THROTTLED:
        again_s = max(1, round(pause_s(refused, 1)))
        return FunctionAway(
            f"The function {name} is throttled: as many of its invocations run as may; nothing was "
            f"done. Try again in {again_s} s",
            reached=False,
        )
    if code in NOT_READY:
        return FunctionAway(
            f"The function {name} is not ready ({code}); nothing was done. Try again in a minute",
            reached=False,
        )
    if code in _CREDENTIALS:
        return BackendError(
            f"The gateway has no AWS credentials that hold ({code}) to invoke the function {name};"
            " nothing was done"
        )
    if refused.status is None:
        return _not_answered(refused, name)
    if refused.status >= 500:
        return FunctionAway(
            f"AWS Lambda has a trouble of its own with the function {name} ({code}); it may have "
            "run. Look whether it was done before you call again"
        )
    said = _SENTENCES.get(code, f"it was refused with {code}")
    return BackendError(f"Nothing was done, AWS Lambda refuses the function {name}: {said}")


def _not_answered(refused: Refusal, name: str) -> BackendError:
    if not passes(refused):
        return BackendError(
            f"The function {name} cannot be invoked ({refused.code}); nothing was done"
        )
    if not refused.was_sent:
        return FunctionAway(
            f"The function {name} could not be reached ({refused.code}); nothing was done. Try "
            "again later",
            reached=False,
        )
    return FunctionAway(
        f"The function {name} was invoked, and its answer was lost ({refused.code}); it may have "
        "run. Look whether it was done before you call again"
    )


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
