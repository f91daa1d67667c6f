"""Tool definitions stored as JSON, which are parsed only when more than the name and hints is
needed. Parsing a thousand definitions would take longer than the rest of a start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from roundgate.json import decode, encode

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "QUERY"})


class StoredDefinition(Mapping[str, Any]):
    """A `Tool` of the schema as JSON, which was checked when it was written."""

    __slots__ = ("_annotations", "_name", "_rest", "_value")

    def __init__(
        self, name: str, annotations: Mapping[str, bool], rest: Callable[[], bytes]
    ) -> None:
        """Store a definition. `rest` returns the JSON that follows the value of `name`, its first
        member: `,"description":…}`."""
        self._name = name
        self._annotations = annotations
        self._rest = rest
        self._value: Mapping[str, Any] | None = None

    def renamed(self, name: str) -> StoredDefinition:
        return StoredDefinition(name, self._annotations, self._rest)

    def encoded(self) -> bytes:
        return b'{"name":' + encode(self._name) + self._rest()

    def __getitem__(self, key: str) -> Any:
        if key == "name":
            return self._name
        if key == "annotations":
            return self._annotations
        return self._whole()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    def _whole(self) -> Mapping[str, Any]:
        if self._value is None:
            self._value = decode(self.encoded())
        return self._value


def renamed(definition: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a definition under another name."""
    if isinstance(definition, StoredDefinition):
        return definition.renamed(name)
    return {**definition, "name": name}


def meta_of(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `_meta` of a definition. A stored definition has none, and is not decoded."""
    meta = None if isinstance(definition, StoredDefinition) else definition.get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def encoded(definition: Mapping[str, Any]) -> bytes:
    """Return a definition as JSON."""
    return (
        definition.encoded()
        if isinstance(definition, StoredDefinition)
        else encode(dict(definition))
    )


class EncodedDefinitions(Sequence[tuple[str, bytes]]):
    """Keys with definitions as JSON. Stored definitions are assembled at first use, because a cold
    start that answers one call needs no list. Other definitions are encoded now, so that a value
    without JSON fails the start."""

    __slots__ = ("_entries", "_items")

    def __init__(self, definitions: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self._entries = [
            (key, definition if isinstance(definition, StoredDefinition) else encoded(definition))
            for key, definition in definitions
        ]
        self._items: list[tuple[str, bytes]] | None = None

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _all(self) -> list[tuple[str, bytes]]:
        if self._items is None:
            self._items = [
                (key, definition if isinstance(definition, bytes) else definition.encoded())
                for key, definition in self._entries
            ]
        return self._items


@cache
def method_hints(method: str) -> Mapping[str, bool]:
    """Return the annotations of a tool by the method of its HTTP request (RFC 9110 section 9.2).

    `destructiveHint` is omitted, which counts as true, unless the method is safe or DELETE.
    """
    safe = method in _SAFE
    destroys = {"destructiveHint": not safe} if safe or method == "DELETE" else {}
    return {
        "readOnlyHint": safe,
        **destroys,
        "idempotentHint": safe or method in ("PUT", "DELETE"),
        "openWorldHint": True,
    }
