"""Invocations of functions: boto3's client blocks, so each runs in a thread; errors are
`BackendError`s.

    throttled, not reached, not ready      the function did not start: retried, while there is time
    answer lost, error inside Lambda       it may have run: retried only if that does no harm
    no answer in time                      an error; the thread ends when its connection does

boto3's own retries are off, because boto3 cannot tell these cases apart.
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

from msgspec import Struct

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
from roundgate.errors import (
    BackendError,
    ConfigError,
    FunctionAway,
    Unavailable,
    UnexpectedAnswer,
)


class FunctionTarget(Struct, frozen=True):
    """A function to invoke."""

    function: str
    """Name or ARN, with the qualifier at its end if there is one."""
    region: str | None
    """The AWS region; `None` means the environment's region."""

    @property
    def name(self) -> str:
        """The function's name without account and region."""
        return self.function.rpartition(":function:")[2]


def target(function: str, qualifier: str | None, region: str | None) -> FunctionTarget:
    """Return the target of a configured function; an ARN's region takes precedence over
    `region`."""
    parts = function.split(":")
    own = parts[3] if function.startswith("arn:") else region
    if qualifier is None or is_qualified(function):
        return FunctionTarget(function, own)
    return FunctionTarget(f"{function}:{qualifier}", own)


def choose_target(tool: LambdaToolConfig, backend: LambdaBackendConfig) -> FunctionTarget:
    """Return the function of a tool, by default the back end's."""
    if tool.function is not None:
        return target(tool.function, tool.qualifier, backend.region)
    return target(str(backend.function), tool.qualifier or backend.qualifier, backend.region)


THROTTLED: Final = frozenset(
    {"TooManyRequestsException", "EC2ThrottledException", "ThrottlingException", "Throttling"}
)
NOT_READY: Final = frozenset(
    {
        *("CodeArtifactUserPendingException", "EFSMountConnectivityException"),
        *("EFSMountTimeoutException", "ENILimitReachedException", "ENINotReadyException"),
        *("ResourceConflictException", "ResourceNotReadyException", "SnapStartNotReadyException"),
        *("S3FilesMountConnectivityException", "S3FilesMountTimeoutException"),
        *("SnapStartTimeoutException", "SubnetIPAddressLimitReachedException"),
    }
)
NOT_BEGUN: Final = THROTTLED | NOT_READY
"""Error codes that mean that the function did not start and a retry may succeed."""

_TOO_LARGE: Final = "its payload is too large. Send less at once"
_SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ResourceNotFoundException": "it does not exist, or has no such version or alias. The operator of "
        "the gateway must correct its name, region or qualifier",
        "AccessDeniedException": "the gateway may not use it. Its role needs "
        "lambda:InvokeFunction, and for a durable function lambda:GetDurableExecution, and "
        "lambda:StopDurableExecution where `cancel` is set",
        "RecursiveInvocationException": "AWS Lambda detected a loop of invocations and stopped it",
        "DurableExecutionAlreadyStartedException": "it was started for this call with another "
        "payload",
        "ModeNotSupportedException": "it does not take this kind of invocation. Set or remove "
        "`asynchronous`",
        "RequestTooLargeException": _TOO_LARGE,
        "RequestEntityTooLargeException": _TOO_LARGE,
    }
)
"""The problem and remedy for each error code."""
_CREDENTIALS: Final = frozenset(
    {
        *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"),
        *("UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException"),
        *("InvalidClientTokenId", "IncompleteSignature", "MissingAuthenticationTokenException"),
    }
)


def passes(refused: Refusal) -> bool:
    """Return whether a retry may succeed."""
    if refused.code in NOT_BEGUN:
        return True
    if refused.status is not None:
        return refused.status >= 500
    return refused.was_sent or refused.message == ""


def pause_s(refused: Refusal, attempt: int) -> float:
    """Return the seconds to wait before the next attempt: AWS Lambda's `retryAfterSeconds`, or 0.2
    s doubled after each attempt."""
    retry_after = refused.response.get("retryAfterSeconds")
    try:
        return max(0.05, float(retry_after))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float(0.2 * 2 ** (attempt - 1))


def error_from_refusal(refused: Refusal, target: FunctionTarget) -> BackendError:
    """Return the error that the caller receives for AWS's refusal."""
    code, name = refused.code[:100], target.name
    if code in THROTTLED:
        again_s = max(1, round(pause_s(refused, 1)))
        return FunctionAway(
            f"The function {name} is throttled: its concurrency limit is reached; nothing was "
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
            f"The gateway has no valid AWS credentials ({code}) to invoke the function {name};"
            " nothing was done"
        )
    if refused.status is None:
        return _not_answered(refused, name)
    if refused.status >= 500:
        return FunctionAway(
            f"AWS Lambda failed to run the function {name} ({code}); it may have "
            "run. Check whether its work was done before you call again"
        )
    sentence = _SENTENCES.get(code, f"it was refused with {code}")
    return BackendError(f"Nothing was done. AWS Lambda refuses the function {name}: {sentence}")


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
        "run. Check whether its work was done before you call again"
    )


def _too_slow(
    target: FunctionTarget, timeout_s: float, refused: Refusal | None, *, may_have_run: bool
) -> BackendError:
    """Return the error for a timeout: during an attempt, after the attempt that was refused, or
    before the first."""
    if may_have_run:
        return FunctionAway(
            f"The function {target.name} did not answer within {timeout_s:g} s (timeout_s), and may still be "
            "running. Check whether its work was done before you call again, or ask for less"
        )
    if refused is not None:
        return error_from_refusal(refused, target)
    return FunctionAway(
        f"The function {target.name} was not invoked within {timeout_s:g} s (timeout_s), because too many "
        "calls of functions are running; nothing was done. Try again later",
        reached=False,
    )


SPARE_S: Final = 5
"""Seconds that a connection stays open after its invocation's timeout."""
ATTEMPTS: Final = 4

log = logging.getLogger("roundgate.backends")


@dataclass(frozen=True, slots=True)
class FunctionInvocation:
    """One invocation of a function."""

    target: FunctionTarget
    payload: bytes = field(repr=False)
    client_context: str | None = field(default=None, repr=False)
    """The client context in base64."""
    is_event: bool = False
    """Whether the invocation is asynchronous."""
    execution_name: str | None = None
    """The name of the durable execution to start; AWS Lambda starts each name once."""
    is_repeatable: bool = False
    """Whether invoking twice does no harm."""

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of boto3's `invoke`."""
        parameters = {
            "FunctionName": self.target.function,
            "InvocationType": "Event" if self.is_event else "RequestResponse",
            "Payload": self.payload,
            "ClientContext": self.client_context,
            "DurableExecutionName": self.execution_name,
        }
        return {name: value for name, value in parameters.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Invoked:
    """The result of an invocation."""

    payload: bytes = field(repr=False)
    has_failed: bool
    """Whether the payload is the function's error."""
    request_id: str
    execution_arn: str | None = None


class Functions:
    """Invokes functions, at most `max_connections` at once."""

    def __init__(self, max_connections: int, max_response_bytes: int) -> None:
        """Set the limits; open no connection.

        Args:
            max_connections: invocations at once; one caller has at most half of them.
            max_response_bytes: the limit on an answer.
        """
        self._threads = Threads(max_connections)
        self._connections = max_connections
        self._max_bytes = max_response_bytes
        self._clients: dict[tuple[str | None, float], Any] = {}
        self._clock = Clock()

    async def invoke(
        self, invocation: FunctionInvocation, timeout_s: float, caller: Principal
    ) -> Invoked:
        """Return the function's result or its own error.

        Args:
            timeout_s: seconds for all attempts.
            caller: the caller; its share of the threads is limited.

        Raises:
            FunctionAway: throttled, not reached, not ready or too slow; a later call may succeed.
            BackendError: AWS Lambda refuses the invocation for another reason.
        """
        work = partial(self._invoke, invocation, timeout_s)
        repeatable = invocation.is_repeatable or invocation.execution_name is not None
        done: Invoked = await self._do(
            work, invocation.target, timeout_s, caller, is_repeatable=repeatable
        )
        return done

    async def execution(
        self, arn: str, target: FunctionTarget, timeout_s: float, caller: Principal
    ) -> dict[str, Any]:
        """Return the state of a durable execution (`GetDurableExecution`).

        Raises:
            FunctionAway, BackendError: see `invoke`.
        """

        def look() -> dict[str, Any]:
            client = self._client(target.region, timeout_s)
            _check_knows_durable(client)
            execution: dict[str, Any] = client.get_durable_execution(DurableExecutionArn=arn)
            return execution

        response: dict[str, Any] = await self._do(
            look, target, timeout_s, caller, is_repeatable=True
        )
        return response

    async def stop(
        self, arn: str, target: FunctionTarget, timeout_s: float, caller: Principal
    ) -> None:
        """Stop a durable execution (`StopDurableExecution`) unless it has ended.

        Raises:
            FunctionAway, BackendError: see `invoke`.
        """

        def stop() -> None:
            client = self._client(target.region, timeout_s)
            _check_knows_durable(client)
            with suppress(client.exceptions.ResourceNotFoundException):
                client.stop_durable_execution(DurableExecutionArn=arn)

        await self._do(stop, target, timeout_s, caller, is_repeatable=True)

    async def aclose(self) -> None:
        """Close the connections."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await asyncio.to_thread(client.close)

    async def _do(
        self,
        work: Callable[[], Any],
        target: FunctionTarget,
        timeout_s: float,
        caller: Principal,
        *,
        is_repeatable: bool,
    ) -> Any:
        refused, may_have_run = None, False

        def attempt() -> Any:
            nonlocal refused, may_have_run
            may_have_run = True
            done = _tried(work)
            if isinstance(done, Refusal):
                refused, may_have_run = done, False
            return done

        try:
            async with asyncio.timeout(timeout_s) as limit:
                for number in count(1):
                    begun_ms = self._clock.monotonic_ms()
                    done = await self._threads.run(attempt, caller)
                    _log_call(target, done, self._clock.monotonic_ms() - begun_ms)
                    if not isinstance(done, Refusal):
                        return done
                    pause = pause_s(done, number)
                    left_s = (limit.when() or 0.0) - asyncio.get_running_loop().time()
                    may_repeat = is_repeatable or done.code in NOT_BEGUN or not done.was_sent
                    if not (may_repeat and passes(done)) or number == ATTEMPTS or pause >= left_s:
                        raise error_from_refusal(done, target)
                    await asyncio.sleep(pause)
        except TimeoutError:
            raise _too_slow(target, timeout_s, refused, may_have_run=may_have_run) from None

    def _invoke(self, invocation: FunctionInvocation, timeout_s: float) -> Invoked:
        """Return the result of an invocation. Blocks, so it runs in a thread. Raise
        UnexpectedAnswer if the result is too large, BackendError if boto3 is too old."""
        client = self._client(invocation.target.region, timeout_s)
        if invocation.execution_name is not None:
            _check_knows_durable(client)
        response = client.invoke(**invocation.parameters())
        payload = _read(response["Payload"], self._max_bytes)
        if payload is None:
            raise UnexpectedAnswer(
                f"The function {invocation.target.name} answered more than {self._max_bytes} bytes "
                "(max_response_bytes); ask for less"
            )
        request_id = response.get("ResponseMetadata", {}).get("RequestId", "")
        has_failed = "FunctionError" in response
        return Invoked(payload, has_failed, request_id, response.get("DurableExecutionArn"))

    def prepare(self, region: str | None, timeout_s: float) -> None:
        """Make the client of a region without opening a connection.

        Raises:
            ConfigError: boto3 is not installed, or there is no region.
        """
        self._client(region, timeout_s)

    def _client(self, region: str | None, timeout_s: float) -> Any:
        """Return boto3's client for a region and a timeout. If two threads create it concurrently,
        keep one."""
        key = (region, timeout_s)
        if key not in self._clients:
            client = aws.client(
                "lambda",
                region=region,
                read_timeout=timeout_s + SPARE_S,
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=self._connections,
            )
            self._clients.setdefault(key, client)
        return self._clients[key]


def _log_call(target: FunctionTarget, done: Any, took_ms: float) -> None:
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
    """Run the work in this thread; return its result or AWS's refusal.

    Raises:
        BackendError: the gateway is not configured for AWS.
        FunctionAway: AWS is unavailable.
    """
    try:
        return work()
    except ConfigError as error:
        messages = "; ".join(problem.message for problem in error.problems)
        raise BackendError(f"The gateway cannot invoke functions: it {messages}") from None
    except Unavailable as error:
        raise FunctionAway(str(error)) from None
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            raise
        return refused


def _check_knows_durable(client: Any) -> None:
    if not hasattr(client, "get_durable_execution"):
        raise BackendError(
            "The gateway's boto3 does not support durable functions; the operator must install a newer version"
        )


def _read(body: Any, limit: int) -> bytes | None:
    """Return all of an answer, or `None` if it exceeds the limit."""
    read = bytearray()
    while piece := body.read(limit + 1 - len(read)):
        read += piece
        if len(read) > limit:
            body.close()
            return None
    return bytes(read)
