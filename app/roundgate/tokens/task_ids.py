"""Ids of tasks that a service runs: where the task is, sealed for its owner.

The id is all that is kept of such a task, and its owner keeps it. It holds the name of the back
end, the tool that was called and the service's own id of the task, encrypted. Any process with the
keys can open it, but only for the caller that it was sealed for. It is valid as long as one of the
ring's keys opens it; how long the task exists, the service decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from roundgate import json
from roundgate.auth import Principal
from roundgate.errors import ParseError, SealBroken
from roundgate.tokens.sealed import KeyRing

PURPOSE: Final = "task"
"""The first of the claims: nothing else that the same keys seal has it."""
MAX_CHARS: Final = 2_048
"""Of an id that is looked at; the longest of ours is shorter."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task of a service is."""

    backend: str
    """The name of the back end that has it."""
    tool: str
    """The tool whose call it is, by the name under which it was served."""
    id: str
    """As its service has it."""


class TaskIds:
    """Seals places of tasks and opens them."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    def seal(self, place: TaskPlace, owner: Principal) -> str:
        """The id that `owner` is given. Two calls for the same place return different ids."""
        return self._ring.seal(json.encode([PURPOSE, place.backend, place.tool, place.id]), owner)

    def open(self, task_id: str, owner: Principal) -> TaskPlace | None:
        """The place behind an id, or `None` if it is none that was sealed for this caller.

        Raises:
            Unavailable: the keys cannot be read just now.
        """
        if len(task_id) > MAX_CHARS:
            return None
        try:
            purpose, backend, tool, source_id = json.decode(self._ring.open(task_id, owner))
        except (SealBroken, ParseError, ValueError, TypeError):
            return None
        return TaskPlace(backend, tool, source_id) if purpose == PURPOSE else None
