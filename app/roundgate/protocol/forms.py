"""The fields of a form, made from the JSON Schema of an object: the arguments of a tool, or the
answer to a question.

A property with a simple type becomes one field; any other property is written as JSON. A field
converts a text to a JSON value; the receiver validates the value against the schema.

    {"type": "string"}                       a text              {"enum": […]}, {"oneOf": [{"const": …}]}  a choice
    {"type": "integer"}, {"type": "number"}  a number            {"type": "array", "items": {"enum": […]}}  choices
    {"type": "boolean"}                      a choice            anything else                              JSON
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

from msgspec import Struct

from roundgate import json
from roundgate.errors import ParseError

MAX_REFERENCES: Final = 32
"""The limit on references that are followed from one property; a schema can refer to itself."""


class Field(Struct, frozen=True):
    """A field of a form."""

    name: str
    """The name of the member of the JSON object."""
    label: str
    description: str
    kind: Literal["text", "choice", "choices", "json"]
    type: str
    """The type of the property: `string`, `number`, `integer`, or another."""
    format: str
    is_required: bool
    is_secret: bool
    default: Any = None
    """The default value; `None` without one."""
    options: Sequence[tuple[Any, str]] = ()
    """The values of a choice, each with its label."""

    def value(self, text: str) -> Any:
        """Return the JSON value of a text that was typed.

        Raises:
            ValueError: the text has no value of the field's type.
        """
        if self.kind == "text" and self.type not in ("integer", "number"):
            return text
        try:
            value = json.decode(text.strip().encode("utf-8", "replace"))
        except ParseError as error:
            if self.kind != "text":
                raise ValueError(str(error)) from None
            value = None
        if self.kind == "text" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError("must be a number")
        return value

    def text(self, value: Any) -> str:
        """Return a value as the text to type for it."""
        return str(value) if self.kind == "text" else json.encode(value).decode()


def fields_of(schema: Mapping[str, Any]) -> list[Field]:
    """Return the fields of an object's schema, which may come from any server."""
    properties, required = schema.get("properties"), schema.get("required")
    names = required if isinstance(required, list) else []
    return [
        _field(str(name), resolved(rules, schema), name in names)
        for name, rules in (properties.items() if isinstance(properties, dict) else ())
    ]


def resolved(rules: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part of a schema with its `$ref` followed and an alternative `null` removed; empty if it
    is not an object."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(rules, Mapping):
            return {}
        own = {key: rules[key] for key in rules if key not in ("$ref", "anyOf", "oneOf")}
        alternatives = rules.get("anyOf") or rules.get("oneOf")
        others = (
            [each for each in alternatives if each != {"type": "null"}]
            if isinstance(alternatives, list)
            else []
        )
        target: Any = {}
        if isinstance(rules.get("$ref"), str):
            with suppress(LookupError, TypeError):
                target = json.at_reference(schema, rules["$ref"])
            # pydantic's title of an enum or a model is the name of its class
            own = {"title": None, **own}
        elif len(others) == 1:
            target = others[0]
        else:
            return rules
        rules = {**target, **own} if isinstance(target, Mapping) else own
    return {}


def _field(name: str, rules: Mapping[str, Any], is_required: bool) -> Field:
    type_, items = rules.get("type"), rules.get("items")
    if isinstance(type_, list):
        others = [each for each in type_ if each != "null"]
        type_ = others[0] if len(others) == 1 else None
    kind: Literal["text", "choice", "choices", "json"] = "json"
    options = choices(rules)
    if type_ == "boolean":
        kind, options = "choice", [(True, "Yes"), (False, "No")]
    elif options:
        kind = "choice"
    elif type_ == "array" and isinstance(items, dict) and (options := choices(items)):
        kind = "choices"
    elif type_ in ("integer", "number", "string"):
        kind = "text"
    format_, title, description = (
        text if isinstance(text := rules.get(key), str) else ""
        for key in ("format", "title", "description")
    )
    if kind == "choice" and type_ != "boolean" and not title:
        title, description = description, ""
    return Field(
        *(name, title or name, description, kind, str(type_), format_, is_required),
        is_secret=format_ == "password" or rules.get("writeOnly") is True,
        default=rules.get("default"),
        options=options,
    )


def choices(rules: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Return the values of an enumeration, each with its label; empty if the schema has no `enum`, and
    no `oneOf` or `anyOf` of constants."""
    titled = rules.get("oneOf") or rules.get("anyOf")
    if isinstance(titled, list) and all(
        isinstance(each, dict) and "const" in each for each in titled
    ):
        return [(each["const"], str(each.get("title", each["const"]))) for each in titled]
    values, names = rules.get("enum"), rules.get("enumNames")
    if not isinstance(values, list):
        return []
    labels = names if isinstance(names, list) and len(names) == len(values) else values
    return [
        (value, label if isinstance(label, str) else json.encode(label).decode())
        for value, label in zip(values, labels, strict=True)
    ]
