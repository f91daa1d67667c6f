"""Conversion of Swagger 2.0 to OpenAPI 3.0: operations, parameters, security schemes and servers.

Schemas stay in place, because references point to them."""

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
    """Return the schemes of `securityDefinitions`. Flows of OAuth 2.0 stay unchanged."""
    return {
        name: _scheme(scheme)
        for name, scheme in (document.get("securityDefinitions") or {}).items()
    }


def _scheme(scheme: Any) -> Any:
    if not isinstance(scheme, dict):
        return scheme
    if scheme.get("type") == "basic":
        return {**scheme, "type": "http", "scheme": "basic"}
    return scheme


def operation(
    operation: Mapping[str, Any], parameters: list[dict[str, Any]], document: Mapping[str, Any]
) -> Any:
    """Convert an operation. Its resolved parameters in body and form become its `requestBody`."""
    consumes = operation.get("consumes") or document.get("consumes") or []
    produces = operation.get("produces") or document.get("produces") or ["application/json"]
    converted: dict[str, Any] = {
        key: value for key, value in operation.items() if key != "parameters"
    }
    converted["parameters"] = [
        _parameter(parameter)
        for parameter in parameters
        if parameter.get("in") not in ("body", "formData")
    ]
    responses = operation.get("responses")
    if isinstance(responses, dict):
        converted["responses"] = {
            code: _response(parameter, produces) for code, parameter in responses.items()
        }
    form = [parameter for parameter in parameters if parameter.get("in") == "formData"]
    whole = next((parameter for parameter in parameters if parameter.get("in") == "body"), None)
    if form:
        converted["requestBody"] = _form(form, consumes)
    elif whole is not None:
        content = {
            kind: {"schema": whole.get("schema", {})} for kind in consumes or ["application/json"]
        }
        about = {"description": whole["description"]} if "description" in whole else {}
        converted["requestBody"] = {
            "content": content,
            "required": whole.get("required") is True,
            **about,
        }
    return converted


def _response(response: Any, produces: list[str]) -> Any:
    if not isinstance(response, dict) or "schema" not in response:
        return response
    return {**response, "content": {kind: {"schema": response["schema"]} for kind in produces}}


def parameter_schema(parameter: Mapping[str, Any]) -> Any:
    """Return the schema of a parameter of any version: `schema`, or `type` beside its name."""
    if "schema" in parameter and "type" not in parameter:
        return parameter["schema"]
    return {word: parameter[word] for word in _OF_SCHEMA if word in parameter}


def _style(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """Return the style for a `collectionFormat`. Tabs, for which OpenAPI 3 has no style, become
    commas."""
    if parameter.get("type") != "array":
        return {}
    usual = "simple" if parameter.get("in") in ("path", "header") else "form"
    style, explode = _FORMATS.get(str(parameter.get("collectionFormat", "csv")), (usual, False))
    return {"style": style if usual == "form" else usual, "explode": explode}


def _parameter(parameter: Mapping[str, Any]) -> dict[str, Any]:
    members = {
        word: parameter[word]
        for word in ("name", "in", "description", "required")
        if word in parameter
    }
    return {**members, "schema": parameter_schema(parameter), **_style(parameter)}


def _form(form: list[dict[str, Any]], consumes: list[str]) -> dict[str, Any]:
    has_file = any(parameter.get("type") == "file" for parameter in form)
    multipart = has_file or (_MULTIPART in consumes and _FORM not in consumes)
    properties = {
        str(parameter.get("name")): {
            **(parameter_schema(parameter) or {}),
            **({"description": parameter["description"]} if "description" in parameter else {}),
        }
        for parameter in form
    }
    required = [
        str(parameter.get("name")) for parameter in form if parameter.get("required") is True
    ]
    encoding = {
        str(parameter.get("name")): _style(parameter) for parameter in form if _style(parameter)
    }
    schema = {"type": "object", "properties": properties, "required": required}
    kind = _MULTIPART if multipart else _FORM
    return {"content": {kind: {"schema": schema, "encoding": encoding}}, "required": bool(required)}
