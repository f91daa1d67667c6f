"""The port of a back end with skills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct


class Directory(Struct, frozen=True):
    """A page of a directory of resources."""

    children: Sequence[Mapping[str, Any]]
    """The direct children, as the schema's `Resource`."""
    next_cursor: str | None = None


class SkillSource(Protocol):
    """The skills of one back end (SEP-2640). The authority of each URI is the name of the back end:
    `skill://NAME/refunds/SKILL.md`.

    The methods may raise `BackendError` if a server is unavailable.
    """

    @property
    def entries(self) -> Sequence[Mapping[str, Any]]:
        """The entries of skills/list, in their order."""

    @property
    def scopes(self) -> frozenset[str]:
        """The scopes that the caller's token must grant to see the skills."""

    async def get(self, uri: str) -> Mapping[str, Any] | None:
        """Return the current entry of a skill by the URI of its SKILL.md, listed or not; `None` if
        there is no such skill."""

    async def directory(self, uri: str, cursor: str | None) -> Directory | None:
        """Return a page of a directory; `None` if there is no such directory or page."""
