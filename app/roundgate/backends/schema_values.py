"""The arguments of a call by the JSON Schema of its tool, for rules: with the defaults that the schema
declares, and with the parts that the service may read in another way.

A service may know a member by another name than its schema (`max_amount` for `sum`), and may read a
text as a number. So the arguments are unknown if an object has a member that its schema does not name
beside others, and a text is unknown if the schema accepts numbers and texts at its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from roundgate.json import at_reference
from roundgate.protocol import PartlyKnown, Path

MAX_STEPS: Final = 10_000
"""The maximum number of pairs of a schema and a value that are read. They block the event loop for
some 200 ms."""
MAX_VALUES: Final = 100_000
"""The maximum number of members and items that are read."""
MAX_DEPTH: Final = 200
"""The maximum depth of values that are read; a recursive schema may declare endless defaults."""
MAX_REFERENCES: Final = 16
"""The maximum number of `$ref` that lead to one schema."""
ANY: Final = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_UNIONS: Final = ("anyOf", "oneOf")
_SAME: Final = ("$ref", "allOf", *_UNIONS)
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n"})
"""Texts that services read as true or false."""


class ArgumentSchema:
    """The schema of a tool's arguments, with answers about its parts. The schema must not change."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._types: dict[int, frozenset[str]] = {}

    def referred(self, schema: Any) -> Any:
        """Return the schema to which references lead, or the first with a default on the way; the
        last usable one if a reference cannot be followed."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
                break
            try:
                schema = at_reference(self.schema, schema["$ref"])
            except LookupError:
                break
            if has_default(schema):
                break
        return schema

    def types(self, schema: Any) -> frozenset[str]:
        """Return the types of values that a schema may accept."""
        if not isinstance(schema, Mapping):
            return ANY if schema is not False else frozenset()
        if id(schema) not in self._types:
            self._types[id(schema)] = ANY  # for a schema that refers to itself
            self._types[id(schema)] = self._accepted(schema)
        return self._types[id(schema)]

    def _accepted(self, schema: Mapping[str, Any]) -> frozenset[str]:
        types = ANY
        if isinstance(declared := schema.get("type"), (str, list)):
            types &= {declared} if isinstance(declared, str) else set(declared)
            types |= {"integer"} if "number" in types else set()
        if "const" in schema or "enum" in schema:
            types &= set(map(type_of, [schema["const"]] if "const" in schema else schema["enum"]))
        if "$ref" in schema and "$ref" not in (target := self.referred(schema)):
            types &= self.types(target)
        for part in listed(schema, "allOf"):
            types &= self.types(part)
        for keyword in _UNIONS:
            if alternatives := listed(schema, keyword):
                types &= frozenset().union(*map(self.types, alternatives))
        return types

    def of_same_value(self, schema: Mapping[str, Any], value: Any) -> Iterator[Any]:
        """Yield the other schemas of a value: references, parts and alternatives. A constant rules
        an alternative out."""
        if "$ref" in schema:
            yield self.referred(schema)
        yield from listed(schema, "allOf")
        for keyword in _UNIONS:
            for alternative in listed(schema, keyword):
                resolved = self.referred(alternative)
                members = resolved.get("properties") if isinstance(resolved, Mapping) else None
                if not any(
                    isinstance(member, Mapping)
                    and "const" in member
                    and value[name] != member["const"]
                    for name, member in (members or {}).items()
                    if isinstance(value, dict) and name in value
                ):
                    yield resolved


def type_of(value: Any) -> str:
    """Return the JSON Schema type of a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case list():
            return "array"
    return "object"


def has_default(schema: Any) -> bool:
    """Return whether a schema declares a default."""
    return isinstance(schema, Mapping) and "default" in schema


def listed(schema: Mapping[str, Any], keyword: str) -> Sequence[Any]:
    """Return the list of schemas of a keyword."""
    schemas = schema.get(keyword)
    return schemas if isinstance(schemas, list) else ()


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the named members of a schema; `None` if it names none."""
    members = schema.get("properties")
    return members if isinstance(members, Mapping) else None


def ambiguous(document: ArgumentSchema) -> frozenset[str]:
    """Return the arguments whose schema accepts texts and values that a text may be read as."""
    members = properties_of(document.schema) or {}
    types = {name: document.types(member) for name, member in members.items()}
    others = {"number", "integer", "boolean", "array", "object"}
    return frozenset(name for name, of in types.items() if "string" in of and of & others)


def with_schema(document: ArgumentSchema, arguments: Mapping[str, Any]) -> PartlyKnown:
    """Return arguments with the defaults that a schema declares at any depth, because a service sets
    them. All are unknown if a member has no name, or beyond `MAX_STEPS` or `MAX_DEPTH`. The defaults
    and names of all alternatives of a union count, unless a constant rules an alternative out."""
    reading = _Reading(document, dict(arguments))
    unknown = reading.run()
    return PartlyKnown(reading.whole, [()] if unknown is None else unknown)


def named_by(document: ArgumentSchema, sent: Mapping[str, Any], read: PartlyKnown) -> PartlyKnown:
    """Return what a function gets of arguments, if its author wrote the schema: all is unknown if the
    function reads a member under another name than the schema's or the caller's."""
    unknown = [()] if _renames(sent, read.value) else with_schema(document, read.value).unknown
    return PartlyKnown(read.value, [*read.unknown, *unknown])


def _renames(sent: Any, read: Any) -> bool:
    match sent, read:
        case dict(), dict():
            return any(key not in read or _renames(sent[key], read[key]) for key in sent)
        case list(), list():
            return any(map(_renames, sent, read))
    return False


class _Reading:
    """A walk over arguments and the schemas of their parts."""

    def __init__(self, document: ArgumentSchema, whole: dict[str, Any]) -> None:
        self.whole = whole
        self._document = document
        self._copies: dict[int, Any] = {id(whole): whole}  # keeps copies alive: no id is reused
        self._seen: set[tuple[int, int]] = set()
        self._names: dict[int, set[str]] = {}
        """The names that the schemas of an object know, by the id of the object."""
        self._maps: set[int] = set()
        """The ids of objects whose members may have any name."""
        self._unknown: list[Path] = []
        self._children = 0
        self._typed: set[Path] = set()
        """The places of texts of which a schema says the type."""
        self._untyped: list[Path] = []
        """The places of texts of which a schema does not say the type, and that may be read as another
        value."""
        self._defaults: dict[Path, Any] = {}
        """Defaults that are set."""

    def run(self) -> list[Path] | None:
        """Read all parts. Return the places of unknown parts; `None` if all are unknown."""
        todo: list[tuple[Any, Any, Path]] = [(self._document.schema, self.whole, ())]
        while todo:
            part, value, path = todo.pop()
            if not isinstance(part, Mapping) or (id(part), id(value)) in self._seen:
                continue
            self._seen.add((id(part), id(value)))
            todo += ((other, value, path) for other in self._document.of_same_value(part, value))
            if isinstance(value, dict):
                self._note_names(part, value)
            if isinstance(value, (dict, list)):
                self._children += len(value)
            for key, member in self._members(part, value, path):
                child = value[key]
                place = (*path, key)
                if isinstance(child, str):
                    self._note_text(child, self._document.types(member), place)
                    continue
                if id(child) not in self._copies:
                    child = value[key] = child.copy()
                    self._copies[id(child)] = child
                todo.append((member, child, place))
                if len(self._seen) + len(todo) > MAX_STEPS or len(path) > MAX_DEPTH:
                    return None
            if self._children > MAX_VALUES:
                return None
        for key, names in self._names.items():
            if key not in self._maps and self._copies[key].keys() - names:
                return None
        untyped = [place for place in self._untyped if place not in self._typed]
        return list(dict.fromkeys(self._unknown + untyped))

    def _note_names(self, part: Mapping[str, Any], value: dict[str, Any]) -> None:
        members = properties_of(part)
        if members is not None:
            self._names.setdefault(id(value), set()).update(members)
        elif "object" in self._document.types(part) and not any(key in part for key in _SAME):
            self._maps.add(id(value))

    def _members(
        self, part: Mapping[str, Any], value: Any, path: Path
    ) -> Iterator[tuple[Any, Any]]:
        """Set the members of an object that are missing and have a default. Then yield the key and
        the schema of each object, list and text in a value."""
        if isinstance(value, dict):
            members = properties_of(part) or {}
            for name, member in members.items():
                about = member if has_default(member) else self._document.referred(member)
                if has_default(about):
                    self._set_default(value, name, about["default"], (*path, name))
            patterns = part.get("patternProperties")
            others = [*patterns.values()] if isinstance(patterns, Mapping) else []
            others.append(part.get("additionalProperties"))
            for name, child in list(value.items()):
                if isinstance(child, (dict, list, str)):
                    yield from ((name, m) for m in ([members[name]] if name in members else others))
        elif isinstance(value, list):
            first, rest = listed(part, "prefixItems"), part.get("items")
            for place, child in enumerate(value):
                if isinstance(child, (dict, list, str)):
                    yield place, first[place] if place < len(first) else rest

    def _note_text(self, text: str, types: frozenset[str], path: Path) -> None:
        if types != ANY:
            self._typed.add(path)
        if _is_ambiguous(text, types):
            (self._untyped if types == ANY else self._unknown).append(path)

    def _set_default(self, value: dict[str, Any], name: str, default: Any, path: Path) -> None:
        """Set a member that is missing. It is unknown if alternatives have different defaults."""
        if name not in value:
            value[name] = self._defaults[path] = default
        elif path in self._defaults and self._defaults[path] != default:
            self._unknown.append(path)


def _is_ambiguous(text: str, types: frozenset[str]) -> bool:
    """Return whether a service that accepts values of these types, besides a text that another schema
    of the value may accept, may read a text as another value."""
    if types & {"number", "integer", "boolean"} and _reads_as_number(text):
        return True
    if "boolean" in types and text.strip().lower() in _WORDS:
        return True
    return bool(types & {"array", "object"}) and text.lstrip()[:1] in ("[", "{")


def _reads_as_number(text: str) -> bool:
    for read in (float, lambda value: int(value, 0)):
        try:
            read(text)
        except ValueError:
            continue
        return True
    return False
