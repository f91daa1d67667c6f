"""Whatever stands in a document: its operations are offered, or what is wrong
is told with its place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from roundgate.errors import ConfigError
from tests.support.long import sampled
from tests.support.openapi import compiled, document, operation

Step: TypeAlias = str | int

PET = {"$ref": "#/components/schemas/Pet"}
OAUTH = {"clientCredentials": {"tokenUrl": "https://x/y", "scopes": {"read": "r"}}}
MODERN = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "servers": [{"url": "https://{where}.example.com", "variables": {"where": {"default": "a", "enum": ["a"]}}}],
    "security": [{"oauth": ["read"]}, {}],
    "paths": {
        "/pets/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
            "post": {
                "operationId": "op",
                "summary": "S",
                "tags": ["pets"],
                "security": [{"key": []}],
                "servers": [{"url": "/v2"}],
                "parameters": [
                    {"name": "q", "in": "query", "style": "form", "schema": {"type": ["string"], "enum": ["a"]}},
                    {"name": "f", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}},
                    {"$ref": "#/components/parameters/H"},
                ],
                "requestBody": {
                    "required": True,
                    "content": {
                        "multipart/form-data": {
                            "schema": {"type": "object", "required": ["a"], "properties": {"a": {"format": "binary"}}},
                            "encoding": {"a": {"contentType": "image/png"}},
                        },
                        "application/json": {"schema": PET},
                    },
                },
                "responses": {"200": {"description": "ok", "content": {"application/json": {"schema": PET}}}},
            },
        },
        "/ok": {"get": {"operationId": "ok"}},
    },
    "components": {
        "parameters": {"H": {"name": "X-H", "in": "header", "schema": {"type": "integer", "minimum": 1}}},
        "securitySchemes": {
            "key": {"type": "apiKey", "in": "cookie", "name": "k"},
            "oauth": {"type": "oauth2", "flows": OAUTH},
        },
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["name"],
                "dependentRequired": {"a": ["b"]},
                "properties": {
                    "name": {"type": "string", "title": "T", "pattern": "^a", "examples": ["x"]},
                    "kind": {"oneOf": [PET], "discriminator": {"propertyName": "k", "mapping": {"c": "Pet"}}},
                    "many": {"type": "array", "minItems": 1, "items": {"exclusiveMinimum": 0}},
                },
            }
        },
    },
}  # fmt: skip
ID = {"name": "id", "in": "path", "type": "integer", "required": True}
OLD = {
    "swagger": "2.0",
    "info": {"title": "t", "version": "1"},
    "host": "h.example.com",
    "basePath": "/b",
    "schemes": ["https", "http"],
    "consumes": ["application/json"],
    "produces": ["application/json"],
    "securityDefinitions": {
        "b": {"type": "basic"},
        "o": {"type": "oauth2", "flow": "application", "tokenUrl": "https://x/y", "scopes": {"r": "x"}},
    },
    "security": [{"b": []}],
    "paths": {
        "/x/{id}": {
            "get": {
                "operationId": "op",
                "parameters": [ID, {"name": "l", "in": "query", "type": "array", "collectionFormat": "multi"}],
                "responses": {"200": {"description": "ok", "schema": {"$ref": "#/definitions/P"}}},
            },
            "post": {
                "consumes": ["multipart/form-data"],
                "parameters": [ID, {"name": "f", "in": "formData", "type": "file"}],
            },
            "put": {"parameters": [ID, {"$ref": "#/parameters/B"}]},
        }
    },
    "parameters": {"B": {"name": "b", "in": "body", "schema": {"$ref": "#/definitions/P"}}},
    "definitions": {
        "P": {"type": "object", "x-nullable": True, "properties": {"a": {"minimum": 1, "exclusiveMinimum": True}}}
    },
}  # fmt: skip
WRONG: list[Any] = [
    None,
    7,
    -1.5,
    True,
    "x",
    "",
    [],
    [None],
    ["x", 7],
    {},
    {"x": None},
    {"$ref": "#/nowhere"},
]


def places(value: Any, above: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """Of every value in a document."""
    for step in (
        value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    ):
        yield (*above, step)
        yield from places(value[step], (*above, step))


def changed(described: Any, place: tuple[Step, ...], wrong: Any) -> Any:
    """The document with another value there."""
    made = inside = copy.deepcopy(described)
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = wrong
    return made


@pytest.mark.parametrize("turn", sampled(range(6), every=3))
@pytest.mark.parametrize(
    "described", [MODERN, {**MODERN, "openapi": "3.0.3"}, OLD], ids=["3.1", "3.0", "2.0"]
)
def test_any_wrong_value_anywhere_is_told_as_a_problem(
    tmp_path: Path, described: dict[str, Any], turn: int
) -> None:
    compiled(tmp_path, described, output_schemas=["*"])
    outcomes = set()
    for number, place in enumerate(places(described)):
        wrong = WRONG[(number + turn) % len(WRONG)]
        try:
            compiled(tmp_path, changed(described, place, wrong), output_schemas=["*"])
            outcomes.add("offered")
        except ConfigError:
            outcomes.add("told")
        except Exception as error:
            error.add_note(f"{wrong!r} at {place}")
            raise
    assert outcomes == {"offered", "told"}


@pytest.mark.parametrize(
    ("member", "wrong", "said"),
    [
        ("security", [{"key": 7}], "a value of a kind that OpenAPI does not allow there"),
        ("parameters", [{"name": "q", "in": "query", "content": {"a/b": 7}}], "a value of a kind"),
        ("parameters", [7], "a parameter is not an object"),
        ("parameters", [{"name": "q", "in": "nowhere"}], "no usable name and place"),
        ("parameters", [{"name": "a b", "in": "header"}], "is not a header name"),
        ("servers", [7], "its servers are not a list of objects"),
    ],
)
def test_an_operation_that_cannot_be_read_leaves_its_neighbours_alone(
    tmp_path: Path, member: str, wrong: Any, said: str
) -> None:
    paths = operation(**{member: wrong}) | operation(path="/y", operationId="good")
    index = compiled(tmp_path, document(paths), strict=False)
    (problem,) = index.problems
    assert [row.name for row in index.rows] == ["good"]
    assert problem.path == "/paths/~1x/get"
    assert said in problem.message
    assert "leave the operation out" in problem.remedy or "base_url" in problem.remedy


def test_a_reference_of_an_operation_that_leads_nowhere_is_told_at_the_operation(
    tmp_path: Path,
) -> None:
    paths = operation(path="/y", operationId="good") | {"/x": {"get": {"$ref": "#/nowhere"}}}
    (problem,) = compiled(tmp_path, document(paths), strict=False).problems
    assert (problem.path, "has no target" in problem.message) == ("/paths/~1x/get", True)


def test_security_schemes_that_are_none_are_told_before_anything_is_served(tmp_path: Path) -> None:
    described = document(operation(), components={"securitySchemes": [7]})
    with pytest.raises(ConfigError, match="security schemes"):
        compiled(tmp_path, described)
