"""Repairs of the usual slips in arguments that models write, before anything else looks at them.

    {"ids": "[1, 2]"}              JSON as text, where the schema accepts no text      {"ids": [1, 2]}
    {"note": null}                 null for an optional member that cannot be null     {}
    {"toolCallId": "c1"}           a name that clients are known to add                {}

Nothing is repaired where the schema leaves a doubt. The process keeps the number of repairs, and
never a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from msgspec import Struct, field

from roundgate.backends.schema_values import ArgumentSchema, listed, properties_of, type_of
from roundgate.errors import ParseError
from roundgate.json import decode, walk

MAX_VALUES: Final = 10_000
"""The maximum number of values in arguments that are repaired, because a walk over them blocks the
event loop."""
MAX_NESTED: Final = 32
"""The maximum number of schemas that lead to the schema of one value."""
_OPEN: Final = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_PARSED: Final = frozenset({"array", "object", "number", "integer", "boolean"})


class Repaired(Struct, frozen=True):
    """Arguments after their repair, and the number of repairs by kind: text, null or name."""

    arguments: dict[str, Any]
    repairs: Mapping[str, int]


def without_names(
    schema: Mapping[str, Any], arguments: dict[str, Any], names: Collection[str]
) -> dict[str, Any]:
    """Return arguments without names that clients add, unless the schema mentions them anywhere or
    says that it accepts further names."""
    if any(schema.get(keyword, False) is not False for keyword in _OPEN):
        return arguments
    parts = (part for _, part in walk(schema) if isinstance(part, (Mapping, list)))
    left_out = set(names).difference(*(map(str, part) for part in parts))
    return {name: value for name, value in arguments.items() if name not in left_out}


def repaired(schema: Mapping[str, Any], arguments: dict[str, Any]) -> Repaired:
    """Return invalid arguments with texts parsed and nulls left out, as the schema wants them."""
    if any(islice(walk(arguments), MAX_VALUES, None)):
        return Repaired(arguments, {})
    repair = _Repair(ArgumentSchema(schema))
    return Repaired(repair.value(schema, arguments), repair.counts)


class _Repair(Struct, frozen=True):
    document: ArgumentSchema
    counts: Counter[str] = field(default_factory=Counter)

    def value(self, schema: Any, value: Any, *, reads_text: bool = True) -> Any:
        """Return a value as its schema wants it. A text inside of a parsed text is not parsed."""
        if isinstance(value, str) and reads_text:
            parsed = self._parsed(schema, value)
            if parsed is value:
                return value
            self.counts["text"] += 1
            return self.value(schema, parsed, reads_text=False)
        if not isinstance(value, (dict, list)):
            return value
        parts = list(self._applying(schema, type_of(value)))
        if isinstance(value, dict):
            return self._object(parts, value, reads_text)
        rest = next((part["items"] for part in parts if "items" in part), None)
        first = max((listed(part, "prefixItems") for part in parts), key=len, default=())
        return [
            self.value(first[at] if at < len(first) else rest, item, reads_text=reads_text)
            for at, item in enumerate(value)
        ]

    def _object(
        self, parts: list[Mapping[str, Any]], value: Mapping[str, Any], reads_text: bool
    ) -> dict[str, Any]:
        members = {name: m for part in parts for name, m in (properties_of(part) or {}).items()}
        required = {name for part in parts for name in listed(part, "required")}
        others = next(
            (p["additionalProperties"] for p in parts if "additionalProperties" in p), None
        )
        if any("patternProperties" in part for part in parts):  # a text may be meant
            others = None
        result: dict[str, Any] = {}
        for name, item in value.items():
            is_optional = name in members and name not in required
            if item is None and is_optional and "null" not in self.document.types(members[name]):
                self.counts["null"] += 1
                continue
            result[name] = self.value(members.get(name, others), item, reads_text=reads_text)
        return result

    def _parsed(self, schema: Any, text: str) -> Any:
        """Return the value that a text encodes as JSON, or the text itself."""
        types = self.document.types(schema)
        if "string" in types or not types & _PARSED:
            return text
        try:
            value = decode(text.encode())
        except (ParseError, UnicodeError):
            return text
        return value if type_of(value) in types & _PARSED else text

    def _applying(self, schema: Any, kind: str, depth: int = 0) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas that a value of a type has to match, whichever alternatives it is for."""
        if not isinstance(schema, Mapping) or depth > MAX_NESTED:
            return
        yield schema
        if "$ref" in schema and "$ref" not in (target := self.document.referred(schema)):
            yield from self._applying(target, kind, depth + 1)
        for part in listed(schema, "allOf"):
            yield from self._applying(part, kind, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            fitting = [p for p in listed(schema, keyword) if kind in self.document.types(p)]
            if len(fitting) == 1:
                yield from self._applying(fitting[0], kind, depth + 1)
