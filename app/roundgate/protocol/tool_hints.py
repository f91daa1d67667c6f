"""The hints of tools (schema: `ToolAnnotations`), by the names of their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

HINTS: Final[Mapping[str, tuple[str, bool]]] = {
    "read_only": ("readOnlyHint", False),
    "destructive": ("destructiveHint", True),
    "idempotent": ("idempotentHint", False),
    "open_world": ("openWorldHint", True),
}
"""The wire name and the protocol's default of each hint."""


def has_hint(definition: Mapping[str, Any], hint: str) -> bool:
    """Return whether a hint is true for a tool, as declared or by the protocol's default."""
    name, usual = HINTS[hint]
    hints = definition.get("annotations") or {}
    if hint == "destructive" and hints.get("readOnlyHint") is True:
        return False  # "meaningful only when readOnlyHint == false"
    return bool(hints.get(name, usual))
