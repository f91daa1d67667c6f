"""The protection of a configuration: the settings and the facts about tools that keep callers, models
and credentials within bounds.

It is computed from a loaded configuration and its catalog, so it covers gateway.yaml, decorators and
OpenAPI documents alike. Any difference counts, whether it protects more or less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from roundgate.backends import BackendConfig, Catalog, ServedTool, ViewConfig
from roundgate.backends.shaping import override_of
from roundgate.config import ConfigFile
from roundgate.protocol.content import HINTS, has_hint

Protection: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Values by their names, by place: `{"tool drop of shop": {"once": True, …}, …}`."""

_SECTIONS: Final = ("auth", "limits", "rate", "policy")
_SELECTING: Final = ("include", "exclude", "prompts", "resources")
_NOT_OF_BACKEND: Final = frozenset(
    {
        *("name", "names", "override", "tools", "credential", "credentials", "timeouts", "retry"),
        *("breaker", "max_connections", "keep_alive_s", "refresh_s", "held_s", "max_held_calls"),
    }
)
"""The settings of back ends that protect nothing, or whose effect on tools is compared itself."""
_OFFERED: Final = ("selection ", "tool ", "prompt ", "resource ")
"""The beginnings of places that a back end may remove without a loss."""


def protection(file: ConfigFile, catalog: Catalog) -> Protection:
    """Return the protection of a configuration and its catalog."""
    places: dict[str, Mapping[str, Any]] = {}
    for name in _SECTIONS:
        section = getattr(file.config, name)
        places[name] = dict(section) if isinstance(section, BaseModel) else {name: section}
    places |= {f"views.{view.name}": _settings(view, _SELECTING) for view in file.config.views}
    backends = {backend.name: backend for backend in file.backends}
    has_selection = any(view.include or view.exclude for view in file.config.views)
    for name, backend in backends.items():
        names = [field for field in type(backend).model_fields if field not in _NOT_OF_BACKEND]
        places[f"backends.{name}"] = _settings(backend, names)
        selects = has_selection or backend.include or backend.exclude
        if selects and name not in catalog.missing:
            places[f"selection of {name}"] = {}
    for name, served in catalog.tools.items():
        if served.backend in backends:
            own_name, _ = override_of(backends[served.backend], name)
            places[f"tool {own_name} of {served.backend}"] = _of_tool(served)
    for kind, name, item in catalog.items():
        places[f"{kind} {name}"] = {"scopes": item.scopes}
    return places


def changes(before: Protection, after: Protection) -> Iterator[str]:
    """Yield a sentence for each place of `before` that `after` lacks, and for each value that differs.

    Tools, prompts and resources may be removed. A new tool counts if its back end was served, and
    the back end or a view selects tools by `include` or `exclude`.
    """
    for place, was in before.items():
        now = after.get(place)
        if now is not None:
            differing = (name for name in was if now.get(name) != was[name])
            yield from (
                f"{place}: {name} {_change(was[name], now.get(name))}" for name in differing
            )
        elif not place.startswith(_OFFERED):
            yield f"{place} is removed"
    for place in after:
        is_selected = f"selection of {place.rpartition(' of ')[2]}" in before
        if place not in before and place.startswith("tool ") and is_selected:
            yield f"{place} is served; it is new, or was left out"


def _settings(part: BackendConfig | ViewConfig, names: Iterable[str]) -> dict[str, Any]:
    """Return settings, and the overrides of tools without texts for models and people."""
    texts = {"title", "description"}
    overrides = {
        f"override.{tool}": override.model_dump(exclude_unset=True, exclude=texts)
        for tool, override in part.override.items()
    }
    return {name: getattr(part, name) for name in names} | overrides


def _of_tool(served: ServedTool) -> dict[str, Any]:
    tool = served.tool
    hints = {hint: has_hint(tool.definition, hint) for hint in HINTS}
    return {"scopes": tool.scopes, "approval": tool.asks_first, "once": tool.once, **hints}


def _change(was: Any, now: Any) -> str:
    """Return the change of a value. A text or a list may have a secret, and is not shown."""
    if all(isinstance(value, bool | int | float | None) for value in (was, now)):
        return f"is {_shown(now)}; it was {_shown(was)}"
    return "has changed"


def _shown(value: bool | float | None) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
