"""The branching of a Python type: the number of times that pydantic reads each part of a value.

A union without a discriminator validates each alternative. pydantic does this in native code, which
no deadline can interrupt and which blocks all other calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import CoreSchema

from roundgate.protocol import ANY, ITEMS, Branching, Edges, Key

_OF_ITEMS: Final = frozenset({"list", "deque", "set", "frozenset", "generator"})
_OF_VALUES: Final = frozenset({"dict", "frozen-dict", "ordered-dict", "counter"})
_OF_NAMES: Final = frozenset({"model-fields", "typed-dict"})
_OF_ARGUMENTS: Final = frozenset({"dataclass-args", "arguments", "arguments-v3"})


def branching_of(schema: CoreSchema) -> Branching:
    """Return the branching of the type behind a core schema of pydantic."""
    return _Types(schema).branching


class _Types:
    """The nodes of a core schema, by id."""

    def __init__(self, root: CoreSchema) -> None:
        self._parts: dict[int, Any] = {}
        self._definitions: dict[str, Any] = {}
        self.branching = Branching(self._node(root), self._edges)

    def _node(self, schema: Any) -> int:
        self._parts[id(schema)] = schema
        return id(schema)

    def _edges(self, node: int) -> Edges:
        schema = self._parts[node]
        kind = schema["type"]
        if kind == "definitions":
            self._definitions |= {one["ref"]: one for one in schema["definitions"]}
        if kind == "tagged-union":
            return Edges(one_of=self._nodes(schema["choices"].values()))
        if kind in ("lax-or-strict", "json-or-python"):
            lax = schema.get("lax_schema", schema.get("python_schema"))
            return Edges(all_of=(self._node(lax),))
        members = tuple((key, self._node(one)) for key, one in _members(kind, schema))
        return Edges(
            all_of=self._nodes(self._same(kind, schema)),
            members=members,
            required=tuple(_required(kind, schema)),
            decodes=kind == "json",
        )

    def _nodes(self, schemas: Any) -> tuple[int, ...]:
        return tuple(self._node(one) for one in schemas)

    def _same(self, kind: str, schema: Any) -> Iterator[Any]:
        """Yield the schemas that read the same value."""
        if kind == "definition-ref":
            yield self._definitions[schema["schema_ref"]]
        elif kind == "union":
            yield from (one[0] if isinstance(one, tuple) else one for one in schema["choices"])
        elif kind == "chain":
            yield from schema["steps"]
        elif kind == "call":
            yield schema["arguments_schema"]
        elif "schema" in schema:
            yield schema["schema"]


def _members(kind: str, schema: Any) -> Iterator[tuple[Key, Any]]:
    """Yield the schemas that read a part of the value, each with the part's key."""
    if kind in _OF_ITEMS and "items_schema" in schema:
        yield ITEMS, schema["items_schema"]
    elif kind == "tuple":
        variadic = schema.get("variadic_item_index")
        for index, one in enumerate(schema["items_schema"]):
            # elements after a variadic one have no fixed index
            yield ITEMS if variadic is not None and index >= variadic else index, one
    elif kind in _OF_VALUES and "values_schema" in schema:
        yield ANY, schema["values_schema"]
    elif kind in _OF_NAMES:
        for name, field in schema["fields"].items():
            yield from _named(name, field)
        if "extras_schema" in schema:
            yield ANY, schema["extras_schema"]
    elif kind in _OF_ARGUMENTS:
        for index, field in enumerate(schema.get("fields", schema.get("arguments_schema"))):
            yield from _named(field["name"], field)
            if kind != "dataclass-args":  # a named tuple also accepts a list
                yield index, field["schema"]


def _required(kind: str, schema: Any) -> Iterator[str]:
    """Yield the required members by one of their names."""
    if kind == "model-fields":
        fields = schema["fields"].items()
        yield from (name for name, field in fields if field["schema"]["type"] != "default")
    elif kind == "typed-dict":
        total = schema.get("total", True)
        fields = schema["fields"].items()
        yield from (name for name, field in fields if field.get("required", total))
    elif kind == "dataclass-args":
        fields = schema["fields"]
        yield from (one["name"] for one in fields if one["schema"]["type"] != "default")


def _named(name: str, field: Any) -> Iterator[tuple[Key, Any]]:
    """Yield a field's schema under each name that the field accepts."""
    alias = field.get("validation_alias", field.get("alias", name))
    if isinstance(alias, str):
        yield from ((one, field["schema"]) for one in {name, alias})
    else:  # a path into other members
        yield ANY, field["schema"]
