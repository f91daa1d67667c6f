"""A JSON body as gateway.yaml has it, in which `{name}` stands for an argument.

    customer: {id: "{customer_id}"}      ─▶  {"customer": {"id": 7}}              the value, of whatever type
    title: "Order for {name}"            ─▶  {"title": "Order for Ada"}           within a text, as text
    braces: "{{name}}"                   ─▶  {"braces": "{name}"}

A member that needs an argument which was not given is left out, and so is an object or
list that is empty for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from roundgate.backends.http.lists import text
from roundgate.protocol import ABSENT

_VARIABLE: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_WHOLE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_BRACES: Final = {"{{": "{", "}}": "}"}


@dataclass(frozen=True, slots=True)
class Template:
    """A body with holes."""

    members: Mapping[str, Any]

    @property
    def names(self) -> frozenset[str]:
        """The arguments that it needs."""
        return frozenset(_names(self.members))

    def mentions(self, name: str) -> bool:
        """Whether a text has the name in braces, though no variable may be called so."""
        return _WHOLE.fullmatch(f"{{{name}}}") is None and any(
            f"{{{name}}}" in one.replace("{{", "").replace("}}", "") for one in _texts(self.members)
        )

    def filled(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a call."""
        made = _filled(self.members, arguments)
        return {} if made is ABSENT else made


def _names(value: Any) -> Iterator[str]:
    for one in _texts(value):
        yield from (found[1] for found in _VARIABLE.finditer(one) if found[1])


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


def _filled(value: Any, arguments: Mapping[str, Any]) -> Any:
    match value:
        case str():
            return _text(value, arguments)
        case Mapping():
            made = {name: _filled(item, arguments) for name, item in value.items()}
            kept = {name: item for name, item in made.items() if item is not ABSENT}
            return kept if kept or not value else ABSENT
        case list():
            items = [_filled(item, arguments) for item in value]
            present = [item for item in items if item is not ABSENT]
            return present if present or not value else ABSENT
    return value


def _text(value: str, arguments: Mapping[str, Any]) -> Any:
    if whole := _WHOLE.fullmatch(value):
        return arguments.get(whole[1], ABSENT)
    if any(found not in arguments for found in _names(value)):
        return ABSENT
    return _VARIABLE.sub(
        lambda found: text(arguments[found[1]]) if found[1] else _BRACES[found[0]], value
    )
