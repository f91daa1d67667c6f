"""The ending of a call, in a form that can be compared between runs and processes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from roundgate.backends import Returned
from roundgate.client import CallResult
from roundgate.clock import Clock
from roundgate.errors import ProtocolError
from roundgate.protocol import ToolResult
from roundgate.replay import Completed, Failed, Restarted, Suspended
from roundgate.tasks import tool_result

_REFERENCE: Final = re.compile(r"(?<=the server's log has the details under reference )[\w-]{22}")
"""The reference with which the log identifies an unexpected error: different each time."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The ending of a call. `how` is "returned", "failed" (an error for the model), "raised" (the
    call itself failed) or "went on" (it did not end)."""

    how: str
    value: Any

    def __str__(self) -> str:
        text = self.value if isinstance(self.value, str) else repr(self.value)
        return f"it {self.how}: {text[:500]}"


def ending_of_result(result: CallResult) -> Ending:
    """Return the ending of a call with this result."""
    if not result.is_error:
        return Ending("returned", result.value)
    said = result.value
    return Ending("failed", without_reference(said) if isinstance(said, str) else said)


def ending_of_outcome(
    outcome: Completed[Returned] | Failed | Suspended | Restarted, tool: str, clock: Clock
) -> Ending:
    """Return the ending of a handler, as its caller would see it."""
    if not isinstance(outcome, Completed | Failed):
        return Ending("went on", None)
    if isinstance(outcome, Completed) and not isinstance(outcome.value, ToolResult):
        return Ending("went on", None)  # also as a task of its service
    try:
        result = tool_result(outcome, tool, clock)
    except ProtocolError as error:
        return Ending("raised", str(error))
    return ending_of_result(CallResult.read(result.to_wire(), 1))


def without_reference(text: str) -> str:
    """Return an error's text without its reference, which differs each time."""
    return _REFERENCE.sub("…", text)
