"""How a tool's call ended, in the protocol's terms: the same for a request and for a task.

A tool's own failure is a result with `isError`. So is an unexpected exception, of which the caller learns only a
reference to the log. Only an error for which the protocol has a code becomes a JSON-RPC error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from roundgate.backends import Returned
from roundgate.clock import Clock
from roundgate.errors import GatewayError, ProtocolError, ToolError
from roundgate.protocol import NEWEST, Status, ToolResult
from roundgate.replay import Completed, Failed

log = logging.getLogger("roundgate.methods")


def tool_result(outcome: Completed[Returned] | Failed, tool: str, clock: Clock) -> ToolResult:
    """The result of a call.

    Raises:
        ProtocolError: it ended with one.
    """
    match outcome:
        case Completed(ToolResult() as result):
            return result
        case Completed():
            error = RuntimeError(
                "it returned a task of its service for a call that could not go on as one"
            )
            return tool_result(Failed(error), tool, clock)
        case Failed(ProtocolError() as error):
            raise error
        case Failed(ToolError() as error):
            return ToolResult.error(str(error))
        case Failed(error):
            reference = log_failure(f"tool {tool}", error, clock)
            return ToolResult.error(
                f"The tool failed unexpectedly; the server's log has the details under reference {reference}"
            )


def log_failure(what: str, error: Exception, clock: Clock) -> str:
    """Log an error with its traceback; returns the reference that stands beside it in the log."""
    reference = clock.new_id()
    log.error("%s failed", what, exc_info=error, extra={"fields": {"reference": reference}})
    return reference


@dataclass(frozen=True, slots=True)
class Ended:
    """How a task ended: a terminal status, and what goes with it."""

    status: Status
    outcome: bytes
    status_message: str | None = None

    def to_json(self) -> Any:
        """As JSON, to travel with a client whose task could not be written."""
        return [self.status.value, self.outcome.decode(), self.status_message]

    @classmethod
    def from_json(cls, value: Any) -> Ended:
        """The inverse of `to_json`, for values that we sealed ourselves."""
        status, outcome, message = value
        return cls(Status(status), outcome.encode(), message)


def ended(outcome: Completed[Returned] | Failed, tool: str, clock: Clock, max_bytes: int) -> Ended:
    """The end of a task whose handler came to its end."""
    try:
        result = tool_result(outcome, tool, clock)
        data = _encoded(result, tool, clock)
        if len(data) > max_bytes:
            result = ToolResult.error(
                f"The result is too large: {len(data)} bytes, {max_bytes} can be returned"
            )
            data = _encoded(result, tool, clock)
    except ProtocolError as error:
        return failed(error)
    return Ended(Status.COMPLETED, data, "The tool reported an error" if result.is_error else None)


def _encoded(result: ToolResult, tool: str, clock: Clock) -> bytes:
    try:
        return NEWEST.kept_result(result.to_wire())
    except (TypeError, ValueError, RecursionError) as error:
        reference = log_failure(f"writing the result of tool {tool}", error, clock)
        message = f"The tool returned what has no JSON; the server's log has the details under reference {reference}"
        return _encoded(ToolResult.error(message), tool, clock)


def failed(error: GatewayError) -> Ended:
    """The end of a task with a JSON-RPC error."""
    return Ended(Status.FAILED, NEWEST.kept_error(error), str(error))
