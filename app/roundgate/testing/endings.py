"""How a call ended, as something that can be compared with another run of it, also in
another process."""

from __future__ import annotations

import re
from typing import Any, Final

from roundgate.backends import Returned
from roundgate.carrier import carrier
from roundgate.client import CallResult
from roundgate.clock import Clock
from roundgate.errors import ProtocolError
from roundgate.protocol import ToolResult
from roundgate.replay import Completed, Failed, Restarted, Suspended
from roundgate.tasks import tool_result

_REFERENCE: Final = re.compile(r"(?<=the server's log has the details under reference )[\w-]{22}")
"""What an error that nobody expected is found by in the log: another one each time."""


@carrier
class Ending:
    """`how` is "returned", "failed" (an error for the model), "raised" (the call itself failed)
    or "went on", where there is no end."""

    how: str
    value: Any

    def __str__(self) -> str:
        text = self.value if isinstance(self.value, str) else repr(self.value)
        return f"it {self.how}: {text[:500]}"


def ending_of_result(result: CallResult) -> Ending:
    """Return how a call with this result ended."""
    if not result.is_error:
        return Ending("returned", result.value)
    said = result.value
    return Ending("failed", without_reference(said) if isinstance(said, str) else said)


def ending_of_outcome(
    outcome: Completed[Returned] | Failed | Suspended | Restarted, tool: str, clock: Clock
) -> Ending:
    """Return how a handler ended, as its caller would see it."""
    if not isinstance(outcome, Completed | Failed):
        return Ending("went on", None)
    if isinstance(outcome, Completed) and not isinstance(outcome.value, ToolResult):
        return Ending("went on", None)  # as a task of its service
    try:
        result = tool_result(outcome, tool, clock)
    except ProtocolError as error:
        return Ending("raised", str(error))
    return ending_of_result(CallResult.read(result.to_wire(), 1))


def without_reference(text: str) -> str:
    """Return an error's text without what differs each time."""
    return _REFERENCE.sub("…", text)
