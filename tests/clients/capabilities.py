"""What a client is asked to do with the gateway that is served here, and what has to come back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

YES: Final = "yes"
NO_MEANS: Final = "–"
"""The client has no means for it."""

_CONTINUING: Final = "continue_call"
"""A tool that clients of 2025-06-18 are shown where nothing streams."""
_SHOWN: Final = 160

RIGHT: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "tools": ["echo", "add", "count", "trip", "quiet", "haiku"],
        "call": "said hello",
        "structured": {"total": 5},
        "progress": [[1, 3, "1 of 3"], [2, 3, "2 of 3"], [3, 3, "3 of 3"]],
        "resources": ["note://today", "note://{day}/first", "buy bread", "first of monday"],
        "prompts": ["review", "Review this perl code"],
        "completion": ["python", "perl"],
        "form": "Ann has packed for Rome",
        "silent": "not a word for 8 s",
        "sample": "the model wrote: a poem, for 'Write a haiku on rain'",
    }
)
"""By capability: a list, a call, a structured result, progress, resources with a template, prompts, completion, two
questions to a user one after the other, a call that is silent for longer than a proxy waits, and a question to
the client's model."""


def judged(told: Mapping[str, Any]) -> dict[str, str]:
    """What a driver told, as the cells of a row: `yes`, that the client has no means for it, or what went wrong."""
    if (broken := told.get("connection")) is not None and len(told) == 1:
        return dict.fromkeys(RIGHT, broken["error"])
    cells = {name: _cell(told.get(name), right) for name, right in RIGHT.items()}
    if broken is not None:
        cells["connection"] = broken["error"]
    return cells


def _cell(outcome: Mapping[str, Any] | None, right: Any) -> str:
    if outcome is None:
        return NO_MEANS
    if "error" in outcome:
        return str(outcome["error"])
    value = outcome["value"]
    if isinstance(value, list):
        value = [one for one in value if one != _CONTINUING]
    return YES if value == right else f"not {json.dumps(right)}: {json.dumps(value)}"[:_SHOWN]
