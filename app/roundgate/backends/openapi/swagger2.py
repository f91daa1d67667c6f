"""Conversion of Swagger 2.0 to OpenAPI 3.0: operations, parameters, security schemes and servers.

Schemas stay in place, because references lead to them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_OF_SCHEMA: Final = (
    *("type", "format", "items", "default", "maximum", "exclusiveMaximum", "minimum"),
    *("exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems"),
    *("uniqueItems", "enum", "multipleOf", "x-nullable", "x-example"),
)
_FORMATS: Final[Mapping[str, tuple[str, bool]]] = MappingProxyType(
    {"ssv": ("spaceDelimited", False), "pipes": ("pipeDelimited", False), "multi": ("form", True)}
)


def servers(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the servers by `schemes`, `host` and `basePath`, https first."""
    base = str(document.get("basePath") or "/").rstrip("/")
    host = str(document.get("host") or "").rpartition("://")[2].rstrip("/")
    if not host:
        return [{"url": base or "/"}]
    schemes = sorted(document.get("schemes") or ["https"], reverse=True)
    return [
        {"url": f"{scheme}://{host}{base}"} for scheme in schemes if scheme in ("https", "http")
    ]


def security_schemes(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemes of `securityDefinitions`. Flows of OAuth 2.0 stay as they are."""
    return {name: _scheme(one) for name, one in (document.get("securityDefinitions") or {}).items()}


def _scheme(scheme: Any) -> Any:
    if not isinstance(scheme, dict):
        return scheme
    if scheme.get("type") == "basic":
        return {**scheme, "type": "http", "scheme": "basic"}
    return scheme


def operation(
    operation: Mapping[str, Any], parameters: list[dict[str, Any]], document: Mapping[str, Any]
) -> Any:
    """Return an operation whose resolved parameters in body and form are its `requestBody`."""
    consumes = operation.get("consumes") or document.get("consumes") or []
    produces = operation.get("produces") or document.get("produces") or ["application/json"]
    made: dict[str, Any] = {key: value for key, value in operation.items() if key != "parameters"}
    made["parameters"] = [
        _parameter(one) for one in parameters if one.get("in") not in ("body", "formData")
    ]
    responses = operation.get("responses")
    if isinstance(responses, dict):
        made["responses"] = {code: _response(one, produces) for code, one in responses.items()}
    form = [one for one in parameters if one.get("in") == "formData"]
    whole = next((one for one in parameters if one.get("in") == "body"), None)
    if form:
        made["requestBody"] = _form(form, consumes)
    elif whole is not None:
        content = {
            kind: {"schema": whole.get("schema", {})} for kind in consumes or ["application/json"]
        }
        about = {"description": whole["description"]} if "description" in whole else {}
        made["requestBody"] = {
            "content": content,
            "required": whole.get("required") is True,
            **about,
        }
    return made


def _response(response: Any, produces: list[str]) -> Any:
    if not isinstance(response, dict) or "schema" not in response:
        return response
    return {**response, "content": {kind: {"schema": response["schema"]} for kind in produces}}


def schema_of(parameter: Mapping[str, Any]) -> Any:
    """Return the schema of a parameter of any version: `schema`, or `type` beside its name."""
    if "schema" in parameter and "type" not in parameter:
        return parameter["schema"]
    return {word: parameter[word] for word in _OF_SCHEMA if word in parameter}


def _style(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """Return the style of a `collectionFormat`; tabs, for which OpenAPI 3 has no style, become
    commas."""
    if parameter.get("type") != "array":
        return {}
    usual = "simple" if parameter.get("in") in ("path", "header") else "form"
    style, explode = _FORMATS.get(str(parameter.get("collectionFormat", "csv")), (usual, False))
    return {"style": style if usual == "form" else usual, "explode": explode}


def _parameter(parameter: Mapping[str, Any]) -> dict[str, Any]:
    kept = {
        word: parameter[word]
        for word in ("name", "in", "description", "required")
        if word in parameter
    }
    return {**kept, "schema": schema_of(parameter), **_style(parameter)}


def _form(form: list[dict[str, Any]], consumes: list[str]) -> dict[str, Any]:
    has_file = any(one.get("type") == "file" for one in form)
    multipart = has_file or (_MULTIPART in consumes and _FORM not in consumes)
    properties = {
        str(one.get("name")): {
            **(schema_of(one) or {}),
            **({"description": one["description"]} if "description" in one else {}),
        }
        for one in form
    }
    required = [str(one.get("name")) for one in form if one.get("required") is True]
    encoding = {str(one.get("name")): _style(one) for one in form if _style(one)}
    schema = {"type": "object", "properties": properties, "required": required}
    kind = _MULTIPART if multipart else _FORM
    return {"content": {kind: {"schema": schema, "encoding": encoding}}, "required": bool(required)}
