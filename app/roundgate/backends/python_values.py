"""The arguments that a Python function gets, as JSON under the names of its schema, for rules and approvals.

pydantic's serializers are not used, because a type may rename, hide or change a value in them. A part
that JSON cannot show as it is, such as a secret or an object of the user's own class, is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from math import isfinite
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from msgspec import Struct
from pydantic import AnyUrl, BaseModel
from pydantic_core import to_jsonable_python

from roundgate.errors import Inside
from roundgate.json import encode
from roundgate.protocol import PartlyKnown, Path

MAX_UNKNOWN: Final = 100
"""The maximum number of unknown parts, beyond which all arguments are unknown."""
MAX_VALUES: Final = 100_000
"""The maximum number of values that are read, because reading them blocks the event loop for some
100 ms. Beyond, all arguments are unknown."""
MAX_DIGITS: Final = 400
"""The maximum number of digits of a decimal number; a double has at most 309."""
_TEXTS: Final = (
    *(date, time, timedelta, UUID, PurePath, AnyUrl),
    *(IPv4Address, IPv4Network, IPv6Address, IPv6Network),
)
"""The types whose text in JSON is unambiguous."""
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_LISTS: Final = (list, tuple, set, frozenset, deque)
_NOT_SCHEMAS: Final = frozenset(
    {"default", "metadata", "serialization", "expected", "members", "config", "function"}
)
"""The members of a core schema that contain no core schema."""
_UNREADABLE: Final = frozenset(
    {"bytes", "json", "is-subclass", "callable", "function-plain", "complex", "generator"}
)
"""The core schemas of values that usually have no JSON of the type that their schema says."""


class Names(Struct, frozen=True):
    """The names of arguments in the JSON Schema of a function, by their names in Python."""

    parameters: Mapping[str, str]
    fields: Mapping[type, Mapping[str, str] | None]
    """The names of fields by their class; `None` for a `RootModel`."""
    lost: frozenset[str]
    """The parameters of which a part can be renamed or lost in a way that its value does not show."""
    unreadable: frozenset[str]
    """The names in the schema of all parameters with a part that is never or seldom known."""

    @classmethod
    def of(cls, core_schema: Any) -> Names:
        """Read the names from the core schema of a `TypedDict` of the parameters."""
        definitions = {
            node["ref"]: node for node in core_schema.get("definitions", ()) if "ref" in node
        }
        root = core_schema.get("schema") if "definitions" in core_schema else core_schema
        parameters: dict[str, str] = {}
        fields: dict[type, Mapping[str, str] | None] = {}
        lost, unreadable = set[str](), set[str]()
        for name, field in root["fields"].items():
            parameters[name] = schema_name(name, field.get("validation_alias"))
            for node in nodes(field["schema"], definitions):
                kind = node.get("type")
                if kind == "typed-dict-field" and "validation_alias" in node:
                    lost.add(name)  # the dict has the names of Python alone
                elif node.get("init_only") or (kind == "dataclass" and _is_open(node)):
                    lost.add(name)
                elif kind in ("model", "dataclass"):
                    fields |= _field_names(node)
                elif kind in _UNREADABLE or (
                    kind == "is-instance" and not issubclass(node["cls"], _TEXTS)
                ):
                    unreadable.add(parameters[name])
        unreadable |= {parameters[name] for name in lost}
        return cls(parameters, fields, frozenset(lost), frozenset(unreadable))

    def read(self, bound: Mapping[str, Any]) -> PartlyKnown:
        reader = _Reader(self.fields)
        values: dict[str, Any] = {}
        try:
            for own, value in bound.items():
                name = self.parameters.get(own, own)
                if own in self.lost:
                    values[name] = reader.unknown_part(value, (name,))
                elif name in values:  # `**arguments` have the name
                    return PartlyKnown({}, [()])
                else:
                    values[name] = reader.read(value, (name,))
        except (RecursionError, _TooMany):  # a value contains itself, or too many others
            return PartlyKnown({}, [()])
        unknown = reader.unknown
        return PartlyKnown(values, unknown if len(unknown) <= MAX_UNKNOWN else [()])


def nodes(schema: Any, definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of a core schema, with those of the definitions to which it refers."""
    rest, todo = dict(definitions), [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, (list, tuple)):
            todo += part
        elif isinstance(part, dict):
            if not isinstance(kind := part.get("type"), str):  # fields or choices, by name
                todo += part.values()
                continue
            yield part
            if kind == "definition-ref":
                todo.append(rest.pop(part["schema_ref"], None))
            todo += [value for key, value in part.items() if key not in _NOT_SCHEMAS]


def _is_open(node: Mapping[str, Any]) -> bool:
    return bool(node.get("config", {}).get("extra_fields_behavior") == "allow")


def schema_name(name: str, alias: str | Sequence[Any] | None) -> str:
    """Return the name of a field in the JSON Schema: the first of its aliases that is no path, or its
    own. `alias` is as in a core schema."""
    if isinstance(alias, str):
        return alias
    paths = [path for path in alias or () if isinstance(path, list)]
    return next((path[0] for path in paths if len(path) == 1 and isinstance(path[0], str)), name)


def _field_names(node: Mapping[str, Any]) -> Mapping[type, Mapping[str, str] | None]:
    """Return the names of the fields of a class; nothing if its own function makes its values."""
    if node.get("root_model"):
        return {node["cls"]: None}
    by_alias = node.get("config", {}).get("validate_by_alias", True)
    inner = node["schema"]
    while "fields" not in inner:  # inside of validators
        if "schema" not in inner:
            return {}
        inner = inner["schema"]
    fields = inner["fields"]
    pairs = fields.items() if isinstance(fields, dict) else ((f["name"], f) for f in fields)
    names = {
        name: schema_name(name, field.get("validation_alias")) if by_alias else name
        for name, field in pairs
    }
    return {node["cls"]: names}


class _TooMany(Inside):
    """There are more than `MAX_VALUES` values."""


class _Reader:
    """Reads Python values as JSON, and collects the places of unknown parts."""

    def __init__(self, fields: Mapping[type, Mapping[str, str] | None]) -> None:
        self.unknown: list[Path] = []
        self._fields = fields
        self._values = 0

    def unknown_part(self, value: Any, path: Path) -> str:
        """Record an unknown part; return a text in its place."""
        self.unknown.append(path)
        return f"({type(value).__name__})"

    def read(self, value: Any, path: Path) -> Any:
        """Return a value as JSON. Raise _TooMany beyond the maximum number of values."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise _TooMany
        if type(value) in _PLAIN:
            return value
        match value:
            case Enum():
                return self.read(value.value, path)
            case str():
                return str.__str__(value)
            case int():
                return int.__int__(value)
            case float() if isfinite(value):
                return float.__float__(value)
            case Decimal() if (number := _number(value)) is not None:
                return number
            case _ if isinstance(value, _TEXTS):
                return str(value) if isinstance(value, PurePath) else to_jsonable_python(value)
            case dict():
                return self._object(value.items(), value, path)
            case _ if isinstance(value, _LISTS):
                items = [self.read(item, (*path, place)) for place, item in enumerate(value)]
                return sorted(items, key=encode) if isinstance(value, (set, frozenset)) else items
        names = self._fields.get(type(value), _NO_FIELDS)
        if names is None:
            return self.read(value.root, path)
        if names is _NO_FIELDS:
            return self.unknown_part(value, path)
        return self._object(_members(value, names), value, path)

    def _object(self, members: Iterable[tuple[Any, Any]], value: Any, path: Path) -> Any:
        read: dict[str, Any] = {}
        for key, member in members:
            name = key if isinstance(key, str) else self.read(key, path)
            name = str.__str__(name) if isinstance(name, str) else encode(name).decode()
            if name in read:  # no reader can tell which of them the schema means
                return self.unknown_part(value, path)
            read[name] = self.read(member, (*path, name))
        return read


_NO_FIELDS: Final[Mapping[str, str]] = {}


def _members(value: Any, names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a model or dataclass under the names of the schema, and other members that
    a model accepts. A field is read where it is stored, not through a property."""
    if isinstance(value, BaseModel):
        yield from (value.model_extra or {}).items()
        for name in [name for name in names if name in value.__dict__]:
            yield names[name], value.__dict__[name]
    else:
        for name in filter(partial(hasattr, value), names):
            yield names[name], getattr(value, name)


def _number(value: Decimal) -> int | float | None:
    """Return a decimal number as JSON, or `None` if a double would be another number."""
    if not value.is_finite() or abs(value.adjusted()) > MAX_DIGITS:
        return None
    if value == value.to_integral_value():
        return int(value)
    number = float(value)
    return number if Decimal(repr(number)) == value else None
