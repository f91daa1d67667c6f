"""What AWS Lambda refuses, and what that means for the caller: codes of errors as a table
(API `Invoke`, Errors)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from roundgate.aws import Refusal
from roundgate.backends.aws_lambda.target import Target
from roundgate.errors import BackendError, FunctionAway

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
