"""A server's questions to a client, as requests of these revisions (client/elicitation,
client/sampling, client/roots)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from roundgate.protocol.forms import choices
from roundgate.protocol.v2025.shapes import OlderRevision

_FIELD: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "string": frozenset(
            {
                "type",
                "title",
                "description",
                "minLength",
                "maxLength",
                "format",
                "enum",
                "enumNames",
            }
        ),
        "number": frozenset({"type", "title", "description", "minimum", "maximum"}),
        "integer": frozenset({"type", "title", "description", "minimum", "maximum"}),
        "boolean": frozenset({"type", "title", "description", "default"}),
    }
)
"""The keywords of a form's field in 2025-06-18, by type."""


def request_params(
    revision: OlderRevision, method: str, params: Mapping[str, Any], page: str | None
) -> dict[str, Any]:
    """Return the params of a question in the shape of a revision. `page` is the `elicitationId` of
    a page to open."""
    match method:
        case "elicitation/create" if params.get("mode") == "url":
            return {**params, "elicitationId": page}
        case "elicitation/create" if not revision.has_rich_forms:
            form = params.get("requestedSchema", {})
            fields = {
                name: _plain_field(field) for name, field in form.get("properties", {}).items()
            }
            return {
                "message": params.get("message", ""),
                "requestedSchema": {**form, "properties": fields},
            }
    return dict(params)


def _plain_field(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field in the form of 2025-06-18. A multiple choice, which that revision lacks,
    becomes text with commas between the values."""
    plain = dict(field)
    if plain.get("oneOf"):
        plain["enum"], plain["enumNames"] = map(list, zip(*choices(plain), strict=True))
    kind = plain.get("type", "string")
    if kind not in _FIELD:
        values = ", ".join(str(value) for value, _ in choices(plain.get("items", {})))
        description = f"{plain['description']} " if "description" in plain else ""
        plain |= {
            "type": "string",
            "description": f"{description}One or more of these, separated by commas: {values}",
        }
        kind = "string"
    return {name: value for name, value in plain.items() if name in _FIELD[kind]}


def answer_from_result(
    revision: OlderRevision, method: str, params: Mapping[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    """Return a client's answer in the form that the handler's question expects."""
    content = result.get("content")
    if method != "elicitation/create" or revision.has_rich_forms or not isinstance(content, dict):
        return result
    fields = params.get("requestedSchema", {}).get("properties", {})
    lists = {name for name, field in fields.items() if field.get("type") == "array"}
    return {
        **result,
        "content": {name: _listed(value, name in lists) for name, value in content.items()},
    }


def _listed(value: Any, is_list: bool) -> Any:
    if not (is_list and isinstance(value, str)):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]
