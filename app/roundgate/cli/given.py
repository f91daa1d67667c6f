"""`key=value` on a command line, made the arguments of a tool by its schema.

limit=5                the type that the schema gives the property; text where it gives none
tag=a tag=b            items of an array, in order; `tag=a` alone is an array of one
filter:='{"a": 1}'     JSON, whatever the schema says
body=@letter.txt       the text of a file; `=@-` reads standard input
filter:=@filter.json   the JSON of a file
address.city=Paris     a member of an object
name=\\@handle          a value that begins with @, as it stands
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from roundgate.errors import UsageError
from roundgate.json import at_reference

MAX_FILE_BYTES: Final = 32 * 1024 * 1024
MAX_REFERENCES: Final = 32

_BOOLEANS: Final = {"true": True, "yes": True, "false": False, "no": False}
_Schema = Mapping[str, Any]


def arguments(given: Iterable[str], schema: _Schema) -> dict[str, Any]:
    """The arguments of a call.

    Args:
        given: what stands on the command line, a `key=value` or `key:=json` each.
        schema: the tool's `inputSchema`; it gives each property its type.

    Raises:
        UsageError: one of them is malformed, does not fit its type, or contradicts another.
    """
    made: dict[str, Any] = {}
    shape = _Shape(schema)
    for said in given:
        _add(made, _Given.read(said, shape), shape)
    return made


@dataclass(frozen=True, slots=True)
class _Given:
    """One argument as it was said: the way to its member, and the text of its value."""

    said: str
    path: tuple[str, ...]
    text: str
    is_json: bool

    @classmethod
    def read(cls, said: str, shape: _Shape) -> _Given:
        key, found, text = said.partition("=")
        is_json = key.endswith(":")
        key = key.removesuffix(":")
        if not found or not key:
            raise UsageError(f"{said!r} is no argument: give key=value, or key:=json")
        if text.startswith("@"):
            text = _file(text[1:], key)
        path = shape.path(key)
        return cls(key, path, text.removeprefix("\\") if text.startswith("\\@") else text, is_json)

    def json(self) -> Any:
        try:
            return json.loads(self.text, parse_constant=_no_number)
        except ValueError as error:
            raise UsageError(f"{self.said}: not JSON: {error}") from None


def _add(made: dict[str, Any], given: _Given, shape: _Shape) -> None:
    """Put one argument in its place."""
    holder = made
    for step in given.path[:-1]:
        holder = holder.setdefault(step, {})
        if not isinstance(holder, dict):
            raise UsageError(f"{given.said}: {step} has another value already")
    name, property_schema = given.path[-1], shape.property(given.path)
    if given.is_json:
        value = given.json()
    elif (items := shape.items(property_schema)) is not None and not given.text.lstrip().startswith(
        "["
    ):
        so_far = holder.setdefault(name, [])
        if not isinstance(so_far, list):
            raise UsageError(f"{given.said} is given both as JSON and as items")
        so_far.append(_value(given, items, shape))
        return
    else:
        value = _value(given, property_schema, shape)
    if name in holder:
        raise UsageError(f"{given.said} is given twice, and is no array")
    holder[name] = value


def _value(given: _Given, schema: _Schema, shape: _Shape) -> Any:
    """The value that a text stands for, by the types that its schema admits."""
    text, types = given.text, shape.types(schema)
    choices = schema.get("enum")
    if isinstance(choices, list) and text in choices:
        return text
    if "null" in types and text == "null":
        return None
    if types & {"integer", "number"} and (number := _number(text, types)) is not None:
        return number
    if "boolean" in types and (found := _BOOLEANS.get(text.lower())) is not None:
        return found
    if types & {"array", "object"} and text.lstrip()[:1] in ("[", "{"):
        return given.json()
    if not types or "string" in types:
        return text
    raise UsageError(
        f"{given.said}: {_short(text)} is not {' or '.join(_ARTICLES[one] for one in sorted(types))}"
    )


_ARTICLES: Final = {
    "array": "an array (as JSON, or item by item)",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object (as JSON, or as key.member=value)",
    "string": "text",
}


def _number(text: str, types: frozenset[str]) -> int | float | None:
    try:
        found = json.loads(text, parse_constant=_no_number)
    except ValueError:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return found if "number" in types or isinstance(found, int) else None


class _Shape:
    """What a schema says of its properties, references within it followed."""

    def __init__(self, schema: _Schema) -> None:
        self._root = schema

    def path(self, key: str) -> tuple[str, ...]:
        """A key as the schema has it; one that it does not have goes through objects at its
        dots."""
        properties = self._properties(self._root)
        head, dot, _ = key.partition(".")
        if key in properties or not dot or head not in properties:
            return (key,)
        return tuple(key.split("."))

    def property(self, path: tuple[str, ...]) -> _Schema:
        schema = self._root
        for step in path:
            schema = self._followed(self._properties(schema).get(step, {}))
        return schema

    def items(self, schema: _Schema) -> _Schema | None:
        """The schema of an array's items, `None` if there may be something else than an array."""
        if self.types(schema) - {"null"} != {"array"}:
            return None
        alternatives = [self._followed(one) for one in self._alternatives(schema)]
        found: Any = next((one["items"] for one in (schema, *alternatives) if "items" in one), {})
        return self._followed(found)

    def types(self, schema: _Schema) -> frozenset[str]:
        """The JSON types that a schema admits, by itself or by its alternatives;
        none if it does not say."""
        found: set[str] = set()
        seen: set[int] = set()
        waiting = [schema]
        while waiting:
            one = self._followed(waiting.pop())
            if id(one) in seen:
                continue
            seen.add(id(one))
            named = one.get("type")
            alternatives = self._alternatives(one)
            if not named and not alternatives:
                return frozenset()
            kinds = named if isinstance(named, list) else [named]
            found.update(kind for kind in kinds if isinstance(kind, str))
            waiting += alternatives
        return frozenset(found) & _ARTICLES.keys()

    def _alternatives(self, schema: _Schema) -> list[Any]:
        return [
            one
            for word in ("anyOf", "oneOf")
            if isinstance(schema.get(word), list)
            for one in schema[word]
        ]

    def _properties(self, schema: _Schema) -> Mapping[str, Any]:
        found = self._followed(schema).get("properties")
        return found if isinstance(found, Mapping) else {}

    def _followed(self, schema: Any) -> _Schema:
        for _ in range(MAX_REFERENCES):
            if not isinstance(schema, Mapping):
                return {}
            reference = schema.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#/"):
                return schema
            try:
                schema = at_reference(self._root, reference)
            except LookupError:
                break
        return {}


def _file(name: str, key: str) -> str:
    """The text of a file, or of standard input."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{key}: {name} cannot be read as text: {error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{key}: {name} has more than {MAX_FILE_BYTES} bytes")
    return text


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number that JSON has")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")
