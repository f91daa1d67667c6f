"""Which tools of a back end are served: `include` and `exclude`, whatever kind it is of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from roundgate.backends.base import Tool
from roundgate.backends.config import BackendConfig, Selector

_HINTS: Final[Mapping[str, tuple[str, bool]]] = {
    "read_only": ("readOnlyHint", False),
    "destructive": ("destructiveHint", True),
    "idempotent": ("idempotentHint", False),
    "open_world": ("openWorldHint", True),
}
"""The hint of each name, and what holds where nobody gave it (schema: `ToolAnnotations`)."""


def selected(tools: Sequence[Tool], config: BackendConfig) -> list[Tool]:
    """Those that the configuration wants: included, if it includes any, and not excluded."""
    return [tool for tool in tools if is_selected(tool, config)]


def is_selected(tool: Tool, config: BackendConfig) -> bool:
    """Whether one is."""
    if config.include and not any(matches(tool, one) for one in config.include):
        return False
    return not any(matches(tool, one) for one in config.exclude)


def is_known(wanted: str, names: Collection[str], prefix: str = "") -> bool:
    """Whether a name of a selector is one that a tool has, or a pattern that may match nothing:
    one with the prefix never does where the names are without."""
    if any(fnmatchcase(name, wanted) for name in names):
        return True
    is_prefixed = prefix != "" and wanted.startswith(prefix)
    return any(sign in wanted for sign in "*?[") and not is_prefixed


def matches(tool: Tool, wanted: Selector) -> bool:
    """Whether everything that a selector gives holds for a tool."""
    about = tool.about
    return (
        (wanted.name is None or fnmatchcase(tool.definition["name"], wanted.name))
        and (wanted.tag is None or any(fnmatchcase(tag, wanted.tag) for tag in about.tags))
        and (
            wanted.path is None or (about.path is not None and fnmatchcase(about.path, wanted.path))
        )
        and (wanted.method is None or about.method == wanted.method.upper())
        and (wanted.hint is None or _has_hint(tool, wanted.hint))
        and (wanted.extension is None or _has_extension(about.extensions, wanted.extension))
    )


def _has_hint(tool: Tool, hint: str) -> bool:
    name, usual = _HINTS[hint]
    given = tool.definition.get("annotations") or {}
    if hint == "destructive" and given.get("readOnlyHint") is True:
        return False  # "meaningful only when readOnlyHint == false"
    return bool(given.get(name, usual))


def _has_extension(extensions: Mapping[str, Any], wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    if not equals:
        return name in extensions and extensions[name] is not False
    found = extensions.get(name)
    text = str(found).lower() if isinstance(found, bool) else str(found)
    return found is not None and fnmatchcase(text, value)
