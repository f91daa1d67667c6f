"""The outcome of a tool's call in the protocol's terms, for requests and for tasks.

A tool's own failure is a result with `isError`. So is an unexpected exception, whose result
contains only a reference to the log. Only errors with a code in the protocol become JSON-RPC
errors.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from roundgate.auth import Principal
from roundgate.backends import Returned
from roundgate.clock import Clock
from roundgate.errors import (
    ArgumentsRefused,
    BackendError,
    CallTimeout,
    Draining,
    GatewayError,
    ProtocolError,
    RoundgateError,
    ServerRefused,
    StateTooLarge,
    TaskTimeout,
    ToolError,
    Unavailable,
    Unrepeatable,
)
from roundgate.observability import place_of
from roundgate.observability.metrics import CallOutcome, Metrics
from roundgate.protocol import NEWEST, Status, ToolResult, without_none
from roundgate.protocol.tasks import TaskView
from roundgate.replay import Completed, Failed, find_failed_steps
from roundgate.storage import Ending

REFUSAL: Final = "roundgate/error"
"""The member of `_meta` with the code and data of a server's JSON-RPC error."""

log = logging.getLogger("roundgate.methods")


def tool_result(
    outcome: Completed[Returned] | Failed, tool: str, clock: Clock, *, shows_errors: bool = False
) -> ToolResult:
    """Return the result of a call. With `shows_errors` the result contains the messages of
    unexpected exceptions.

    Raises:
        ProtocolError, Draining: the call ended with this error.
    """
    match outcome:
        case Completed(ToolResult() as result):
            return result
        case Completed(returned):
            return tool_result(Failed(_unusable(returned)), tool, clock, shows_errors=shows_errors)
        case Failed(ProtocolError() | Draining() as error):
            raise error
        case Failed(ServerRefused() as error):
            refusal = without_none(code=error.code, data=error.details)
            return replace(ToolResult.error(str(error)), meta={REFUSAL: refusal})
        case Failed(ToolError() as error):
            return ToolResult.error(str(error))
        case Failed(StateTooLarge() as error):
            reference = log_failure(f"tool {tool}", error, clock)
            return ToolResult.error(
                "The call remembers too much (state.max_bytes), so it asked no further question and "
                "ended. Ask for less in one call, or let it become a task; "
                f"the server's log has the details under reference {reference}"
            )
        case Failed(Unrepeatable() as error):
            reference = log_failure(f"tool {tool}", error, clock)
            return ToolResult.error(
                f"The tool cannot run as it is written: {error}; "
                f"the server's log has the details under reference {reference}"
            )
        case Failed(error):
            reference = log_failure(f"tool {tool}", error, clock)
            shown = f": {said_by(error)}" if shows_errors else ""
            return ToolResult.error(
                f"The tool failed unexpectedly{shown}; "
                f"the server's log has the details under reference {reference}"
            )


_MAX_SAID: Final = 1_000
"""The maximum number of characters of an exception's message in a result."""


def said_by(error: Exception) -> str:
    """Return the message of an exception, and the line of the user's code that raised it."""
    place = place_of(error)
    return f"{type(error).__name__}: {error}"[:_MAX_SAID] + (f" ({place})" if place else "")


def failure_reason(outcome: Completed[Returned] | Failed) -> str | None:
    """Return the reason of a tool error in a few words for the log, without any text of the tool;
    `None` if the tool succeeded."""
    match outcome:
        case Completed(ToolResult(is_error=True)):
            return "result"
        case Failed(CallTimeout() | TaskTimeout()):
            return "timeout"
        case Failed(BackendError(reason=str() as reason)) if reason:
            return reason
        case Failed(ArgumentsRefused() as error):
            return refusal_reason(error.rule)
        case Failed(error):
            return type(error).__name__
    return None


_OF_THE_SERVICE: Final = re.compile("upstream 4(?!01|29)|tool error|error -")
"""The beginning of the reason of a `BackendError` whose service works, but refused this call."""


def call_outcome(outcome: Completed[Returned] | Failed) -> CallOutcome:
    """Return how a call ended, in one word for metrics."""
    match outcome:
        case Completed(ToolResult(is_error=False)):
            return "ok"
        case Failed(CallTimeout() | TaskTimeout()):
            return "timeout"
        case Failed(ArgumentsRefused()):
            return "refused"
        case Failed(ServerRefused()):
            return "tool_error"
        case Failed(Draining()):
            return "draining"
        case Failed(BackendError(reason=reason)):
            return "tool_error" if _OF_THE_SERVICE.match(reason or "") else "unavailable"
        case Failed(Unavailable()):
            return "unavailable"
        case Completed(ToolResult()) | Failed(ToolError() | ProtocolError()):
            return "tool_error"
    return "fault"


def refusal_reason(rule: str) -> str:
    """Return the reason of a refusal by a rule of `policy`, for the log and the audit log."""
    return f"refused by {rule}"


def tell_refused(rule: str, principal: Principal, metrics: Metrics) -> None:
    """Count and log a request that a rule of `policy` refuses."""
    metrics.refused(rule)
    fields = {"rule": rule, **principal.names}
    log.info("the policy refuses a call", extra={"fields": fields})


def log_failure(what: str, error: Exception, clock: Clock) -> str:
    """Log an error with its traceback. Return its reference in the log, which a step's error has from
    the line of the step."""
    known = error.reference if isinstance(error, RoundgateError) else None
    reference = known or clock.new_id()
    log.error("%s failed", what, exc_info=error, extra={"fields": {"reference": reference}})
    return reference


class Ended(Struct, frozen=True):
    """The end of a task: a terminal status, its outcome and its message."""

    status: Status
    outcome: bytes
    status_message: str | None = None
    ending: Ending = Ending.OK
    failed_steps: Sequence[str] = ()
    """The places of the steps whose failure ended the task."""

    def to_json(self) -> Any:
        """Return the outcome as JSON, for a client whose task could not be written. Failed steps
        are omitted, because such a task cannot be retried."""
        return [self.status.value, self.outcome.decode(), self.status_message, self.ending.value]

    @classmethod
    def from_json(cls, value: Any) -> Ended:
        """Return the `Ended` that `to_json` wrote. Only values that the gateway itself has sealed
        are accepted."""
        status, outcome, message, ending = value
        return cls(Status(status), outcome.encode(), message, Ending(ending))


def ended(
    outcome: Completed[Returned] | Failed,
    tool: str,
    clock: Clock,
    max_bytes: int,
    *,
    shows_errors: bool = False,
) -> Ended:
    """Return the end of a task whose handler has ended."""
    try:
        result = tool_result(outcome, tool, clock, shows_errors=shows_errors)
        data = _encoded(result, tool, clock)
        if len(data) > max_bytes:
            result = ToolResult.error(
                f"The result is too large: {len(data)} bytes; the maximum is {max_bytes} "
                "(tasks.max_result_bytes)"
            )
            data = _encoded(result, tool, clock)
    except ProtocolError as error:
        return failed(error)
    if not result.is_error:
        return Ended(Status.COMPLETED, data)
    failed_steps = find_failed_steps(outcome.error) if isinstance(outcome, Failed) else ()
    ending = Ending.STEP_FAILED if failed_steps else Ending.TOOL_ERROR
    return Ended(Status.COMPLETED, data, "The tool reported an error", ending, failed_steps)


def _encoded(result: ToolResult, tool: str, clock: Clock) -> bytes:
    try:
        return NEWEST.kept_result(result.to_wire())
    except (TypeError, ValueError, RecursionError) as error:
        reference = log_failure(f"writing the result of tool {tool}", error, clock)
        message = (
            "The tool returned a value without a JSON form; "
            f"the server's log has the details under reference {reference}"
        )
        return _encoded(ToolResult.error(message), tool, clock)


def failed(error: GatewayError) -> Ended:
    """Return the end of a task that failed with a JSON-RPC error."""
    return Ended(Status.FAILED, NEWEST.kept_error(error), str(error), Ending.ERROR)


def _unusable(returned: object) -> Exception:
    """Return the error of a call that returned another object than a result."""
    if isinstance(returned, TaskView):
        return RuntimeError(
            "the tool returned a task of its service for a call that cannot become a task"
        )
    kind = type(returned).__name__
    return TypeError(f"the tool returned {kind}; a back end's tool must return a ToolResult")
