"""The frontmatter of a SKILL.md in a folder, with the members that every skill needs."""

from __future__ import annotations

from typing import Any, Final

from roundgate.protocol.skills import NAME
from roundgate.settings.frontmatter import read_frontmatter

MAX_DESCRIPTION: Final = 1_024
"""The maximum length of a description (Agent Skills specification, "description field")."""


def parse_frontmatter(text: str) -> dict[str, Any]:
    """Parse the frontmatter of a SKILL.md.

    Raises:
        ValueError: the frontmatter is missing, is not YAML, or lacks a valid name or description.
    """
    values = read_frontmatter(text)
    name, description = values.get("name"), values.get("description")
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise ValueError(
            f"has the name {str(name)[:80]!r}; a name has 1 to 64 of a-z, 0-9 and single hyphens inside"
        )
    if not isinstance(description, str) or not 0 < len(description.strip()) <= MAX_DESCRIPTION:
        raise ValueError(f"has no description of 1 to {MAX_DESCRIPTION:,} characters")
    return values
