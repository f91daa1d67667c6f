"""Conversion of schemas to JSON Schema 2020-12, with the targets of references in `$defs`.

OpenAPI 3.0 and Swagger 2.0 use their own dialect (`nullable`, a boolean `exclusiveMinimum`,
meaningless siblings of `$ref`). OpenAPI 3.1 and later use 2020-12. Each target of a reference is
converted once, and added to the tools that reach it. References within `$id`, examples and
constants are data and are not resolved.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from roundgate.backends.openapi.documents import (
    DanglingReference,
    Place,
    References,
    UnusableOperation,
    reference_in,
)
from roundgate.protocol import Schema

Direction: TypeAlias = Literal["request", "response"]
Json: TypeAlias = dict[str, Any]

TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
_PYTHON: Final[Mapping[str, type]] = MappingProxyType(
    {"null": type(None), "boolean": bool, "object": dict, "array": list, "string": str}
)
_ONE: Final = (
    *("not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS: Final = ("properties", "patternProperties", "dependentSchemas")
_KEPT: Final = (
    *("title", "description", "default", "format", "enum", "const", "deprecated"),
    *("contentEncoding", "contentMediaType", "dependentRequired"),
)
_IN_PLACE: Final = frozenset({"allOf", "anyOf", "oneOf"})
_CLOSED: Final = ("additionalProperties", "unevaluatedProperties")
_ABOUT: Final = frozenset(
    {"description", "title", "default", "example", "nullable", "readOnly", "writeOnly"}
)
"""Keywords beside an `allOf` that only carries one reference."""
_NUMBERS: Final = ("multipleOf", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum")
_COUNTS: Final = (
    *("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"),
    *("maxContains", "minContains"),
)
_MAX_EXAMPLE: Final = 100
MAX_DEPTH: Final = 60
MAX_COMPOSED: Final = 100
"""The maximum number of examined schemas that apply together (`$ref`, `allOf`)."""
_LITERAL: Final = re.compile(r"/(\^.*|.*\$)/[a-z]*", re.DOTALL)
_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(slots=True)
class Schemas:
    """The schemas of one description, for one direction. Schemas for requests omit `readOnly`
    members; schemas for answers omit `writeOnly` members."""

    references: References
    is_old: Callable[[str], bool]
    """A function that returns whether the document at a URI is OpenAPI 3.0 or Swagger 2.0."""
    direction: Direction
    _converted: dict[Place, tuple[Any, frozenset[Place]]] = field(default_factory=dict)
    _names: dict[str, Place] = field(default_factory=dict)
    _named: dict[Place, str] = field(default_factory=dict)
    _patterns: dict[str, bool] = field(default_factory=dict)
    _reasons: dict[Place, DanglingReference] = field(default_factory=dict)

    def convert(self, uri: str, schema: Any) -> tuple[Any, frozenset[Place]]:
        """Return a schema of the document at `uri`, and the targets of its references.

        Raises:
            UnusableOperation: the schema is invalid, or nested too deeply.
        """
        uses: set[Place] = set()
        try:
            return self._convert(uri, schema, uses, 0), frozenset(uses)
        except RecursionError:
            raise UnusableOperation(
                f"the schema is nested too deeply; {MAX_DEPTH} levels are the maximum"
            ) from None

    def definitions(self, uses: frozenset[Place]) -> Json:
        """Return `$defs` for a schema with the targets `uses`: the targets and all schemas that
        they reach.

        Raises:
            UnusableOperation: see `convert`.
        """
        definitions = {self._name(place): schema for place, schema, _ in self._reached(uses)}
        return dict(sorted(definitions.items()))

    def dangling(
        self, uses: frozenset[Place], here: Place
    ) -> list[tuple[Place, DanglingReference]]:
        """Return the dangling references in the schema at `here` and in all schemas reachable from
        `uses`, each with the place that holds it.

        Raises:
            UnusableOperation: see `convert`.
        """
        schemas = [(here, uses), *((place, more) for place, _, more in self._reached(uses))]
        return [
            (place._replace(is_part=False), self._reasons[target])
            for place, within in schemas
            for target in sorted(within)
            if target.is_missing
        ]

    def _reached(self, uses: frozenset[Place]) -> Iterator[tuple[Place, Any, frozenset[Place]]]:
        """Yield each reachable place with its schema and the places that this schema refers to."""
        waiting = sorted(uses)
        seen = set(waiting)
        while waiting:
            place = waiting.pop()
            if place.is_missing:
                continue
            schema, more = self._definition(place)
            yield place, schema, more
            new = more - seen
            seen |= new
            waiting.extend(sorted(new))

    def _definition(self, place: Place) -> tuple[Any, frozenset[Place]]:
        if place not in self._converted:
            _, schema = self.references.resolve(place.uri, f"#{place.pointer.replace('%', '%25')}")
            whole = _as_part(schema) if place.is_part else schema
            self._converted[place] = self.convert(place.uri, whole)
        return self._converted[place]

    def _name(self, place: Place) -> str:
        """Return a name in `$defs`: the last step of the pointer, with a digest if another schema
        has that name."""
        if place not in self._named:
            last = (
                place.pointer.rpartition("/")[2] or place.uri.rpartition("/")[2].partition(".")[0]
            )
            name = (_NAME.sub("_", last)[:80] or "schema") + "_part" * place.is_part
            if self._names.setdefault(name, place) != place:
                known_by = f"{place.uri}#{place.pointer}"
                name = f"{name}_{hashlib.sha256(known_by.encode()).hexdigest()[:8]}"
                self._names[name] = place
            self._named[place] = name
        return self._named[place]

    def _convert(
        self,
        uri: str,
        schema: Any,
        uses: set[Place],
        depth: int,
        hidden: frozenset[str] = frozenset(),
    ) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise UnusableOperation("a schema is neither an object nor a boolean")
        if depth > MAX_DEPTH:
            raise UnusableOperation(f"a schema is nested more than {MAX_DEPTH} levels deep")
        reference = schema.get("$ref", schema.get("$dynamicRef"))
        if isinstance(reference, str):
            target = self._target(uri, reference, uses)
            pointed = {} if target is None else self._refer_to(target[0], uses)
            if not self.is_old(uri):
                return pointed | self._words(uri, schema, uses, depth, hidden)
            if isinstance(schema.get("description"), str):
                pointed["description"] = schema["description"]
            # many documents put `nullable` beside `$ref`, where the specification ignores it
            return _or_null(pointed) if schema.get("nullable") is True else pointed
        converted = self._words(uri, schema, uses, depth, hidden)
        return _old_words(schema, converted) if self.is_old(uri) else converted

    def _refer_to(self, place: Place, uses: set[Place]) -> Json:
        uses.add(place)
        return {"$ref": f"#/$defs/{self._name(place)}"}

    def _target(self, uri: str, reference: str, uses: set[Place]) -> tuple[Place, Any] | None:
        """Return the place and value of a reference's target. Record a missing target and return
        `None`."""
        try:
            return self.references.resolve(uri, reference)
        except DanglingReference as error:
            missing = Place(uri, reference, is_missing=True)
            self._reasons[missing] = error
            uses.add(missing)
            return None

    def _is_dangling(self, uri: str, schema: Any, uses: set[Place]) -> bool:
        reference = reference_in(schema)
        return reference is not None and self._target(uri, reference, uses) is None

    def _part(
        self, uri: str, schema: Any, uses: set[Place], depth: int, hidden: frozenset[str]
    ) -> Any:
        """Convert a member of `allOf`, without the keywords that apply to the member alone."""
        if (reference := reference_in(schema)) is not None:
            target = self._target(uri, reference, uses)
            if target is None:
                return {}
            place, value = target
            if _as_part(value) != value:
                return self._refer_to(place._replace(is_part=True), uses)
        return self._convert(uri, _as_part(schema), uses, depth, hidden)

    def _words(
        self, uri: str, schema: Json, uses: set[Place], depth: int, hidden: frozenset[str]
    ) -> Json:
        """Return the converted keywords of a schema except `$ref`.

        Args:
            hidden: members that enclosing schemas exclude from this direction.
        """
        if _requires(schema):
            hidden |= self._hidden(uri, schema)
        converted: Json = {}
        if (kind := _type(schema.get("type"))) is not None:
            converted["type"] = kind
        converted |= {word: schema[word] for word in _KEPT if word in schema}
        _drop_invalid_keywords(converted)
        _reconcile_enum_with_type(converted)
        converted |= {word: schema[word] for word in _NUMBERS if _is_number(schema.get(word))}
        converted |= {word: int(schema[word]) for word in _COUNTS if _is_count(schema.get(word))}
        if schema.get("uniqueItems") is True:
            converted["uniqueItems"] = True
        if isinstance(schema.get("pattern"), str) and self._can_match(schema["pattern"]):
            converted["pattern"] = schema["pattern"]
        converted |= _examples(schema)

        def inner(subschema: Any) -> Any:
            return self._convert(uri, subschema, uses, depth + 1)

        for word in _ONE:
            if isinstance(schema.get(word), (dict, bool)):
                converted[word] = inner(schema[word])
        if isinstance(schema.get("items"), list):  # draft 4
            converted["prefixItems"] = [inner(subschema) for subschema in schema["items"]]
        has_parts = _has_parts(schema)
        for word in _LISTS:
            if isinstance(schema.get(word), list) and schema[word]:
                converted[word] = [
                    self._part(uri, subschema, uses, depth + 1, hidden)
                    if word == "allOf" and has_parts
                    else inner(subschema)
                    for subschema in schema[word]
                ]
        if converted.get("additionalProperties") is False and _IN_PLACE & converted.keys():
            converted["unevaluatedProperties"] = converted.pop("additionalProperties")
        required = [
            subschema for subschema in dict.fromkeys(_required(schema)) if subschema not in hidden
        ]
        for word in _MAPS:
            if isinstance(schema.get(word), dict):
                converted[word] = {
                    name: inner(subschema)
                    for name, subschema in schema[word].items()
                    if self._has(uri, subschema)
                    and (name in required or not self._is_dangling(uri, subschema, uses))
                }
        if required:
            converted["required"] = required
        self._express_discriminator(uri, schema, converted)
        # types of real documents overlap, so a value may be of several
        if "anyOf" not in converted and not all(map(_only_requires, converted.get("oneOf", ()))):
            converted["anyOf"] = converted.pop("oneOf")
        return converted

    def _has(self, uri: str, member: Any) -> bool:
        """Return whether a member belongs to this direction: no schema of the member is marked for
        the other direction only."""
        absent = "readOnly" if self.direction == "request" else "writeOnly"
        if not isinstance(member, dict):
            return isinstance(member, bool)
        return not any(part.get(absent) is True for _, part in self._composed(uri, member))

    def _hidden(self, uri: str, schema: Json) -> frozenset[str]:
        return frozenset(
            name
            for where, part in self._composed(uri, schema)
            for name, member in object_properties(part).items()
            if not self._has(where, member)
        )

    def _composed(self, uri: str, schema: Json) -> Iterator[tuple[str, Json]]:
        """Yield a schema and the schemas that apply together with it, each once, with its
        document's URI: the target of `$ref`, the members of `allOf`, and the only alternative to
        null."""
        waiting: list[tuple[str, Any]] = [(uri, schema)]
        seen: set[int] = set()
        while waiting and len(seen) < MAX_COMPOSED:
            where, current = waiting.pop()
            if not isinstance(current, dict) or id(current) in seen:
                continue
            seen.add(id(current))
            yield where, current
            if (reference := reference_in(current)) is not None:
                with suppress(DanglingReference):
                    place, target = self.references.resolve(where, reference)
                    waiting.append((place.uri, target))
            waiting += [(where, part) for part in as_list(current.get("allOf"))]
            waiting.append((where, beside_null(current)))

    def _express_discriminator(self, uri: str, schema: Json, converted: Json) -> None:
        """Express the mapping of a `discriminator`, which 2020-12 lacks, as the values that select
        each alternative."""
        discriminator = schema.get("discriminator")
        if not isinstance(discriminator, dict) or not isinstance(
            discriminator.get("mapping"), dict
        ):
            return
        name = discriminator.get("propertyName")
        for word in ("oneOf", "anyOf"):
            for original, alternative in zip(
                schema.get(word) or (), converted.get(word) or (), strict=False
            ):
                if (reference := reference_in(original)) is None:
                    continue
                values = [
                    value for value, to in discriminator["mapping"].items() if _same(to, reference)
                ]
                if values and isinstance(name, str) and isinstance(alternative, dict):
                    alternative["properties"] = {name: {"enum": values}}
                    alternative["required"] = [name]

    def _can_match(self, pattern: str) -> bool:
        """Return whether values can match the pattern. The validator does not compile every
        pattern, and no value matches a JavaScript literal such as `/^a$/i`, slashes included."""
        if _LITERAL.fullmatch(pattern):
            return False
        if pattern not in self._patterns:
            self._patterns[pattern] = False
            with suppress(ValueError):
                Schema.compile({"pattern": pattern})
                self._patterns[pattern] = True
        return self._patterns[pattern]


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, otherwise an empty list."""
    return value if isinstance(value, list) else []


def object_properties(schema: Any) -> Mapping[str, Any]:
    """Return the members of an object's schema."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def beside_null(schema: Mapping[str, Any]) -> Any:
    """Return the only schema beside null in the first of `anyOf`, `oneOf` and `allOf` that has
    exactly one, or `None`."""
    for word in ("anyOf", "oneOf", "allOf"):
        others = [
            alternative
            for alternative in as_list(schema.get(word))
            if alternative != {"type": "null"}
        ]
        if len(others) == 1:
            return others[0]
    return None


def _required(schema: Mapping[str, Any]) -> list[str]:
    return [name for name in as_list(schema.get("required")) if isinstance(name, str)]


def _requires(schema: Mapping[str, Any]) -> bool:
    """Return whether an object, or a member of its `allOf`, requires members."""
    objects = [schema, *as_list(schema.get("allOf"))]
    return any(isinstance(subschema, dict) and _required(subschema) for subschema in objects)


def _only_requires(alternative: Any) -> bool:
    """Return whether an alternative only names required members, of which others exclude some."""
    return isinstance(alternative, dict) and alternative.keys() <= {"required", "title"}


def _has_parts(schema: Json) -> bool:
    """Return whether `allOf` combines schemas, rather than adding a description to one
    reference."""
    parts = schema.get("allOf")
    if not isinstance(parts, list):
        return False
    return len(parts) > 1 or not schema.keys() <= _ABOUT | {"allOf"}


def _as_part(schema: Any) -> Any:
    """Return a schema without the keywords that exclude other members or list a base's subtypes.
    Generators write `additionalProperties: false` and the list of subtypes into the base itself."""
    if not isinstance(schema, dict):
        return schema
    without = {word for word in _CLOSED if schema.get(word) is False}
    if isinstance(schema.get("discriminator"), dict):
        without |= {"oneOf", "anyOf"}
    return {word: value for word, value in schema.items() if word not in without}


def _type(value: Any) -> Any:
    if isinstance(value, str):
        return value if value in TYPES else None
    if isinstance(value, list):
        return [name for name in value if name in TYPES] or None
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _drop_invalid_keywords(schema: Json) -> None:
    if not isinstance(schema.get("enum", []), list) or schema.get("enum") == []:
        del schema["enum"]
    elif "enum" in schema:
        schema["enum"] = list({_json_key(value): value for value in schema["enum"]}.values())
    for word in ("title", "description", "format", "contentEncoding", "contentMediaType"):
        if word in schema and not isinstance(schema[word], str):
            del schema[word]
    if "dependentRequired" in schema and not isinstance(schema["dependentRequired"], dict):
        del schema["dependentRequired"]
    if schema.get("deprecated") is not True:
        schema.pop("deprecated", None)


def _reconcile_enum_with_type(schema: Json) -> None:
    """Reconcile an enum with a `type` that none of its values has. YAML reads `enum: [1, 2]` of a
    string type as numbers, and some generators list names for an integer type."""
    if "enum" not in schema or "type" not in schema:
        return
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if any(_has_type(kind, value) for kind in kinds for value in schema["enum"]):
        return
    if "string" in kinds and all(isinstance(value, (int, float)) for value in schema["enum"]):
        schema["enum"] = [json.dumps(value) for value in schema["enum"]]
    else:
        del schema["type"]


def _has_type(kind: str, value: Any) -> bool:
    if kind == "integer":
        return _is_number(value) and value == int(value)
    return _is_number(value) if kind == "number" else isinstance(value, _PYTHON[kind])


def _json_key(value: Any) -> str:
    """Return a key that differs for different JSON values. In Python `1 == True`."""
    return json.dumps(value, sort_keys=True)


def _examples(schema: Json) -> Json:
    """Return the first short examples. Long examples cost a model more than they help."""
    examples = schema.get("examples", [schema["example"]] if "example" in schema else [])
    if not isinstance(examples, list):
        return {}
    short = [
        example
        for example in examples
        if isinstance(example, (str, int, float)) and len(str(example)) <= _MAX_EXAMPLE
    ]
    return {"examples": short[:3]} if short else {}


def _old_words(schema: Json, converted: Json) -> Json:
    """Convert the dialect of OpenAPI 3.0 and Swagger 2.0 to 2020-12."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and bound in converted:
            converted[exclusive] = converted.pop(bound)
    if schema.get("type") == "file":
        converted |= {"type": "string", "format": "binary"}
    if schema.get("nullable") is True or schema.get("x-nullable") is True:
        return _or_null(converted)
    return converted


def _or_null(schema: Json) -> Json:
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = [*kinds, *(() if "null" in kinds else ("null",))]
        return schema
    about: Json = {
        word: schema.pop(word) for word in ("title", "description", "default") if word in schema
    }
    return {**about, "anyOf": [schema, {"type": "null"}]} if schema else about


def _same(mapped: Any, reference: str) -> bool:
    """Return whether an entry of a mapping, either a reference or a schema's name, means
    `reference`."""
    return isinstance(mapped, str) and (mapped == reference or reference.endswith(f"/{mapped}"))
