"""The `requestedSchema` of a form: flat fields that clients can show
(client/elicitation, "Requested Schema")."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel

from roundgate.protocol import Schema, without_none

_KEPT: Final = {
    "string": (
        "title",
        "description",
        "minLength",
        "maxLength",
        "format",
        "default",
        "enum",
        "enumNames",
        "oneOf",
    ),
    "number": ("title", "description", "minimum", "maximum", "default"),
    "integer": ("title", "description", "minimum", "maximum", "default"),
    "boolean": ("title", "description", "default"),
    "array": ("title", "description", "minItems", "maxItems", "items", "default"),
}
_FORMATS: Final = ("email", "uri", "date", "date-time")


def compiled(fields: type[BaseModel] | Mapping[str, Any]) -> tuple[dict[str, Any], Schema]:
    """The schema of a form as clients are shown it, and what an answer is held to.

    Raises:
        ValueError: see `form_schema`.
    """
    if isinstance(fields, Mapping):
        # what clients cannot be shown of a JSON Schema holds for the answer nevertheless
        return form_schema(fields), Schema.compile(fields)
    return _of_model(fields)


@lru_cache(maxsize=256)  # half a millisecond, in every round of every call
def _of_model(model: type[BaseModel]) -> tuple[dict[str, Any], Schema]:
    schema = form_schema(model)
    return schema, Schema.compile(schema)


def form_schema(fields: type[BaseModel] | Mapping[str, Any]) -> dict[str, Any]:
    """The `requestedSchema` of a form: a flat object of the primitive
    schemas that clients can show.

    Raises:
        ValueError: names the field that a form cannot have, and what to do instead.
    """
    source = dict(fields) if isinstance(fields, Mapping) else fields.model_json_schema()
    if source.get("type") != "object" or not isinstance(source.get("properties", {}), Mapping):
        raise ValueError('a form is a flat object: {"type": "object", "properties": {…}}')
    definitions = source.get("$defs", {})
    properties = {
        name: _field(name, field, definitions)
        for name, field in source.get("properties", {}).items()
    }
    if unknown := [name for name in source.get("required", ()) if name not in properties]:
        raise ValueError(f"the form requires {', '.join(unknown)}, which it does not have")
    return {
        "type": "object",
        "properties": properties,
        **without_none(required=source.get("required")),
    }


def _field(name: str, schema: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    schema = _resolve(schema, definitions)
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _KEPT or "properties" in schema:
        raise ValueError(
            f"field {name!r}: forms have strings, numbers, booleans and choices only; ask several "
            "questions"
        )
    if schema.get("format") == "password" or schema.get("writeOnly"):
        raise ValueError(
            f"field {name!r}: a form must not ask for secrets, the client would see them; use "
            "ctx.elicit_url"
        )
    if kind == "string" and schema.get("format") not in (None, *_FORMATS):
        raise ValueError(
            f"field {name!r}: forms know the formats {', '.join(_FORMATS)}, not "
            f"{schema['format']!r}"
        )
    kept = {keyword: schema[keyword] for keyword in ("type", *_KEPT[kind]) if keyword in schema}
    if kind == "array":
        kept["items"] = _choices(name, _resolve(schema.get("items"), definitions))
    if kept.get("default", ...) is None:
        del kept["default"]  # "no value" is said by leaving the field out
    return kept


def _resolve(found: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Follow pydantic's `$ref` to an enum, and unwrap `X | None`: an optional field is
    one that may be left out."""
    # `true` is a schema too
    schema: dict[str, Any] = dict(found) if isinstance(found, Mapping) else {}
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if option.get("type") != "null"]
        if len(options) == 1:
            schema = {
                **{key: value for key, value in schema.items() if key != "anyOf"},
                **options[0],
            }
    if "$ref" in schema:
        schema = {**definitions.get(schema["$ref"].rpartition("/")[2], {}), **schema}
        del schema["$ref"]
    if (
        isinstance(schema.get("type"), list)
        and len(kinds := [kind for kind in schema["type"] if kind != "null"]) == 1
    ):
        schema["type"] = kinds[0]
    if "const" in schema and "type" in schema:
        schema = {**schema, "enum": [schema["const"]]}
    return schema


def _choices(name: str, items: dict[str, Any]) -> dict[str, Any]:
    if items.get("type", "string") != "string" or not ("enum" in items or "anyOf" in items):
        raise ValueError(
            f"field {name!r}: a list in a form is a choice of several of fixed strings"
        )
    return (
        {"type": "string", "enum": items["enum"]} if "enum" in items else {"anyOf": items["anyOf"]}
    )
