"""Documents as generators write them (springdoc, Swashbuckle, drf-spectacular, NestJS,
rswag), with their mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roundgate.errors import ConfigError, ToolError
from roundgate.protocol.schemas import Schema
from tests.roundgate.backends.openapi.test_openapi_bodies import parts, posting, sent
from tests.support.openapi import Compiled, compiled, document, file_of, gateway_of, operation
from tests.support.services import answer, service

BINARY = {"type": "string", "format": "binary"}


def schema_of_body(folder: Path, schema: Any, version: str = "3.0.1", **schemas: Any) -> Schema:
    """What checks the arguments of a tool that sends JSON of this schema."""
    content = {"application/json": {"schema": schema}}
    paths = operation("post", requestBody={"content": content, "required": True})
    described = document(paths, version, components={"schemas": schemas})
    return Schema.compile(Compiled(compiled(folder, described)).schema)


# drf-spectacular: each parser of a view is a media type, with one schema for all


@pytest.mark.parametrize("first", ["application/json", "application/x-www-form-urlencoded"])
def test_a_body_with_a_file_is_sent_in_the_media_type_that_carries_files(
    tmp_path: Path, first: str
) -> None:
    user = {"type": "object", "properties": {"name": {"type": "string"}, "avatar": BINARY}}
    content = {kind: {"schema": user} for kind in (first, "multipart/form-data")}
    outgoing = sent(posting(tmp_path, content), name="Ann", avatar={"text": "x"})
    assert [part[:2] for part in parts(outgoing)] == [("name", None), ("avatar", "avatar")]
    alone = posting(tmp_path, content, media_types=[first])
    assert alone.plan.body is not None
    assert alone.plan.body.media_type == first, "whoever leaves multipart out does not want it"


def test_a_file_that_is_only_read_asks_for_no_form(tmp_path: Path) -> None:
    user = {"type": "object", "properties": {"name": {}, "avatar": {**BINARY, "readOnly": True}}}
    content = {kind: {"schema": user} for kind in ("application/json", "multipart/form-data")}
    assert sent(posting(tmp_path, content), name="Ann").body == b'{"name":"Ann"}'


def test_an_enum_that_may_be_blank_or_null_is_three_schemas(tmp_path: Path) -> None:
    names = ("Status", "Blank", "Null")
    status = {
        "nullable": True,
        "oneOf": [{"$ref": f"#/components/schemas/{name}Enum"} for name in names],
    }
    found = schema_of_body(
        tmp_path,
        {"type": "object", "properties": {"status": status}},
        StatusEnum={"enum": ["open", "done"], "type": "string", "description": "* `open`"},
        BlankEnum={"enum": [""]},
        NullEnum={"enum": [None]},
    )
    assert all(found.is_valid({"status": one}) for one in ("open", "", None))
    assert not found.is_valid({"status": "shut"})


# Swashbuckle and Microsoft.AspNetCore.OpenApi


def test_kinds_of_a_closed_base_have_members_of_their_own(tmp_path: Path) -> None:
    base = {"type": "object", "properties": {"name": {"type": "string"}}}
    own = {"type": "object", "properties": {"meows": {"type": "boolean"}}}
    closed = {"additionalProperties": False}
    cat = {"allOf": [{"$ref": "#/components/schemas/Pet"}, {**own, **closed}], **closed}
    found = schema_of_body(
        tmp_path, {"$ref": "#/components/schemas/Cat"}, Pet={**base, **closed}, Cat=cat
    )
    assert found.is_valid({"body": {"name": "Tom", "meows": True}})
    assert not found.is_valid({"body": {"name": 7}})
    assert not found.is_valid({"body": {"barks": True}}), "it is closed all the same"


def test_a_closed_base_is_closed_where_it_stands_alone(tmp_path: Path) -> None:
    base = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    pet = {"allOf": [{"$ref": "#/components/schemas/Pet"}], "description": "One.", "nullable": True}
    found = schema_of_body(tmp_path, {"type": "object", "properties": {"pet": pet}}, Pet=base)
    assert found.is_valid({"pet": {"a": 1}})
    assert found.is_valid({"pet": None})
    assert not found.is_valid({"pet": {"b": 1}})


def test_a_form_that_is_put_together_of_several_is_one_form(tmp_path: Path) -> None:
    file = {"type": "object", "properties": {"file": {"$ref": "#/components/schemas/IFormFile"}}}
    note = {"type": "object", "properties": {"Note": {"type": "string"}}, "required": ["Note"]}
    content = {"multipart/form-data": {"schema": {"type": "object", "allOf": [file, note]}}}
    paths = operation("post", requestBody={"content": content, "required": True})
    described = document(paths, "3.0.4", components={"schemas": {"IFormFile": BINARY}})
    one = Compiled(compiled(tmp_path, described))
    assert one.schema["required"] == ["Note"]
    outgoing = sent(one, Note="n", file={"text": "x", "file_name": "a.txt"})
    assert sorted(part[:2] for part in parts(outgoing)) == [("Note", None), ("file", "a.txt")]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "#/components/schemas/A"}, {"$ref": "#/components/schemas/A"}]},
        {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/components/schemas/A"}]}}},
        {"allOf": [{"properties": "x", "required": 7}]},
    ],
    ids=["doubles", "circle", "no lists"],
)
def test_a_form_that_is_put_together_without_end_ends(tmp_path: Path, schema: Any) -> None:
    twice = {"allOf": [{"$ref": "#/components/schemas/A"}, {"$ref": "#/components/schemas/A"}]}
    content = {"multipart/form-data": {"schema": schema}}
    paths = operation("post", requestBody={"content": content})
    described = document(paths, "3.0.4", components={"schemas": {"A": twice}})
    assert [row.name for row in compiled(tmp_path, described).rows] == ["op"]


def test_a_key_called_bearer_is_a_header_and_takes_a_token(tmp_path: Path) -> None:
    bearer = {"type": "apiKey", "in": "header", "name": "Authorization"}
    described = document(
        operation(), security=[{"Bearer": []}], components={"securitySchemes": {"Bearer": bearer}}
    )
    slot = compiled(tmp_path, described).slots["Bearer"]
    assert slot.remedy.startswith("set `credentials.Bearer` (header: Authorization")


def test_names_of_generic_types_are_followed(tmp_path: Path) -> None:
    names = ("Page«User»", "Result`1[[System.String, mscorlib]]", "Outer+Inner", "Map«string,int»")
    for name in names:
        schemas: dict[str, Any] = {name: {"type": "integer"}}
        found = schema_of_body(tmp_path, {"$ref": f"#/components/schemas/{name}"}, **schemas)
        assert found.is_valid({"body": 7})
        assert not found.is_valid({"body": "x"})


# springdoc


def test_a_base_that_lists_its_kinds_which_refer_to_the_base_has_values(tmp_path: Path) -> None:
    pet = {
        "required": ["kind"],
        "type": "object",
        "properties": {"kind": {"type": "string"}, "name": {"type": "string"}},
        "discriminator": {"propertyName": "kind"},
        "oneOf": [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}],
    }
    cat, dog = (
        {
            "allOf": [
                {"$ref": "#/components/schemas/Pet"},
                {"required": [own], "properties": {own: {}}},
            ]
        }
        for own in ("meows", "barks")
    )
    found = schema_of_body(
        tmp_path, {"$ref": "#/components/schemas/Pet"}, Pet=pet, Cat=cat, Dog=dog
    )
    assert found.is_valid({"body": {"kind": "cat", "meows": True}})
    assert found.is_valid({"body": {"kind": "both", "meows": True, "barks": True}})
    assert not found.is_valid({"body": {"kind": "cow"}})
    assert not found.is_valid({"body": {"meows": True}})


def test_a_page_is_asked_for_with_members_of_one_object(tmp_path: Path) -> None:
    members = {"page": {"type": "integer"}, "sort": {"type": "array", "items": {"type": "string"}}}
    parameter = {
        "name": "pageable",
        "in": "query",
        "required": True,
        "schema": {"$ref": "#/components/schemas/Pageable"},
    }
    described = document(
        operation(parameters=[parameter]),
        "3.0.1",
        components={"schemas": {"Pageable": {"type": "object", "properties": members}}},
    )
    one = Compiled(compiled(tmp_path, described))
    assert one.sent(pageable={"page": 0, "sort": ["name,asc"]}) == "/x?page=0&sort=name%2Casc"
    assert one.sent(pageable={"sort": ["name", "id,desc"]}) == "/x?sort=name&sort=id%2Cdesc", (
        "one parameter for each, as Spring reads them"
    )


async def test_a_document_from_elsewhere_does_not_send_requests_to_this_machine(
    tmp_path: Path,
) -> None:
    import asyncio

    described = document(operation(), servers=[{"url": "http://localhost:8080"}])
    file = file_of(tmp_path, None, document="https://api.example.com/v3/api-docs")
    *_, problem = await asyncio.to_thread(problems_of, file, described)
    assert problem.message.endswith(
        "its server is at http://localhost:8080, and the document is from https://api.example.com"
    )
    assert problem.remedy == "add http://localhost:8080 to `origins`, or set `base_url`"
    more = {"document": "https://api.example.com/v3/api-docs", "base_url": "http://localhost:8080"}
    assert await asyncio.to_thread(problems_of, file_of(tmp_path, None, **more), described) == []


def problems_of(file: Any, described: Any) -> list[Any]:
    """What is wrong with a document that a URL has."""
    from roundgate.backends.openapi.compiling import compile_index

    try:
        compile_index(
            file.backends[0],
            file.origin.at("backends", 0),
            lambda url, limit: json.dumps(described).encode(),
        )
    except ConfigError as error:
        return list(error.problems)
    return []


# NestJS


def test_a_body_whose_members_nobody_told_can_be_given(tmp_path: Path) -> None:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/CreateCatDto"}}}
    paths = operation("post", requestBody={"content": content, "required": True})
    described = document(
        paths,
        "3.0.0",
        components={"schemas": {"CreateCatDto": {"type": "object", "properties": {}}}},
    )
    one = Compiled(compiled(tmp_path, described))
    assert one.schema["required"] == ["body"]
    assert sent(one, body={"name": "Tom"}).body == b'{"name":"Tom"}'


@pytest.mark.parametrize("pattern", ["/^[a-z]+$/", "/^[a-z]+$/i", "/^a/u", "/a$/"])
def test_a_pattern_that_is_a_literal_of_javascript_refuses_nothing(
    tmp_path: Path, pattern: str
) -> None:
    member = {"type": "string", "pattern": pattern}
    found = schema_of_body(tmp_path, {"type": "object", "properties": {"a": member}})
    assert found.is_valid({"a": "a"})


def test_a_pattern_of_paths_is_kept(tmp_path: Path) -> None:
    member = {"type": "string", "pattern": "/v[0-9]+/"}
    found = schema_of_body(tmp_path, {"type": "object", "properties": {"a": member}})
    assert found.is_valid({"a": "/v1/"})
    assert not found.is_valid({"a": "x"})


def test_a_reference_that_may_be_null_takes_null(tmp_path: Path) -> None:
    owner = {"$ref": "#/components/schemas/Owner", "nullable": True, "example": {"a": 1}}
    found = schema_of_body(
        tmp_path, {"type": "object", "properties": {"owner": owner}}, Owner={"type": "object"}
    )
    assert found.is_valid({"owner": None})
    assert found.is_valid({"owner": {}})
    assert not found.is_valid({"owner": 7})


# GitHub's, and what OpenAPI 3.2 has for it


@pytest.mark.parametrize("said", [{"x-multi-segment": True}, {"allowReserved": True}])
def test_a_path_parameter_of_several_segments_has_slashes_and_never_climbs(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    parameter = {"name": "path", "in": "path", "required": True, "schema": {"type": "string"}}
    paths = operation(path="/contents/{path}", parameters=[{**parameter, **said}])
    one = Compiled(compiled(tmp_path, document(paths)))
    assert one.sent(path="docs/a b?.md") == "/contents/docs/a%20b%3F.md"
    for value in ("../secret", "a/../b", "a//b", "/a", "a%2F..%2Fb", "."):
        with pytest.raises(ToolError):
            one.sent(path=value)


# rswag, swagger-jsdoc, and what people write by hand


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "enum": [1, 2.5, True]}, ["1", "2.5", "true"], [1, "3"]),
        ({"type": "integer", "enum": ["Open", "Shut"]}, ["Open"], ["Ajar", 1]),
        ({"type": "integer", "enum": [0, 1, "x"]}, [0, 1], [2]),
        ({"type": "string", "nullable": True, "enum": [None]}, [None], ["x"]),
        ({"type": ["integer", "string"], "enum": ["a", 1]}, ["a", 1], [2]),
    ],
)
def test_an_enum_and_a_type_that_exclude_each_other_leave_the_values(
    tmp_path: Path, schema: Any, good: list[Any], bad: list[Any]
) -> None:
    found = schema_of_body(tmp_path, {"type": "object", "properties": {"a": schema}})
    assert all(found.is_valid({"a": one}) for one in good)
    assert not any(found.is_valid({"a": one}) for one in bad)


def test_a_parameter_in_the_words_of_the_other_version_is_read_in_those(tmp_path: Path) -> None:
    old_words = {"name": "page", "in": "query", "type": "integer", "minimum": 1}
    new = Compiled(compiled(tmp_path, document(operation(parameters=[old_words]), "3.0.0")))
    assert new.schema["properties"]["page"] == {"type": "integer", "minimum": 1}
    new_words = {"name": "page", "in": "query", "schema": {"type": "integer"}}
    swagger = {
        "swagger": "2.0",
        "host": "x.example.com",
        "paths": operation(parameters=[new_words]),
    }
    old = Compiled(compiled(tmp_path, swagger))
    assert old.schema["properties"]["page"] == {"type": "integer"}


@pytest.mark.parametrize(
    "host", ["https://x.example.com", "x.example.com/", "http://x.example.com/"]
)
def test_a_host_that_is_written_as_a_url_is_the_host(tmp_path: Path, host: str) -> None:
    swagger = {"swagger": "2.0", "host": host, "basePath": "/v1", "paths": operation()}
    assert list(compiled(tmp_path, swagger).servers) == ["https://x.example.com/v1"]


def test_a_variable_in_the_words_of_a_router_is_named_with_how_to_write_it(tmp_path: Path) -> None:
    parameters = [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}]
    bad = operation(path="/users/:id", parameters=parameters)
    index = compiled(tmp_path, document(bad | operation(path="/y", operationId="good")))
    [problem] = index.problems
    assert problem.path == "/paths/~1users~1:id/get"
    assert problem.message.endswith("its path has :id, which is not a variable")
    assert problem.remedy == "write it as {id}"


def test_brackets_of_rails_are_sent_and_not_shown(tmp_path: Path) -> None:
    many = {"type": "array", "items": {"type": "integer"}}
    one = Compiled(
        compiled(
            tmp_path,
            document(operation(parameters=[{"name": "ids[]", "in": "query", "schema": many}])),
        )
    )
    assert one.sent(ids=[1, 2]) == "/x?ids%5B%5D=1&ids%5B%5D=2"


def test_names_that_several_operations_have_are_told_apart(tmp_path: Path) -> None:
    paths = operation(path="/a") | operation(path="/b") | operation("post", "/c", operationId="")
    names = [row.name for row in compiled(tmp_path, document(paths)).rows]
    assert names[2] == "post_c"
    assert all(name.startswith("op_") for name in names[:2])
    assert len(set(names)) == 3


def test_a_mark_at_the_beginning_of_a_file_is_not_of_the_document(tmp_path: Path) -> None:
    described = json.dumps(document(operation()), indent="\t").encode()
    (tmp_path / "api.json").write_bytes(b"\xef\xbb\xbf" + described)
    assert [row.name for row in compiled(tmp_path, None).rows] == ["op"]


@pytest.mark.parametrize("page", ["<!DOCTYPE html><html>", "\n  <html>", "<?xml version='1.0'?>"])
def test_a_page_about_the_document_is_not_the_document(tmp_path: Path, page: str) -> None:
    (tmp_path / "api.json").write_text(page)
    with pytest.raises(ConfigError, match=r"is a page .*/openapi\.json of FastAPI") as caught:
        compiled(tmp_path, None)
    assert caught.value.problems[0].remedy == "correct `document`, or the file"


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ([{"url": "http://localhost:3000/"}], "http://localhost:3000"),
        ([{"url": "https://api.example.com/v1/", "description": "Generated"}], "https://api.example.com/v1"),
        ([{"url": "{scheme}://a.example.com", "variables": {"scheme": {"default": "https"}}}], "https://a.example.com"),
    ],
)  # fmt: skip
async def test_a_base_with_a_slash_at_its_end_and_a_path_have_one_between_them(
    tmp_path: Path, servers: Any, expected: str
) -> None:
    described = document(operation(), servers=servers)
    index = compiled(tmp_path, described, origins=["http://localhost:3000"])
    assert index.servers[index.rows[0].server] == expected
    async with service(answer(b"{}")) as told:
        file = file_of(tmp_path, document(operation(path="/x/")), base_url=f"{told.url}/api/")
        async with gateway_of(file) as gate:
            await gate.call("op")
    assert told.request_lines == ["GET /api/x/ HTTP/1.1"]


def test_binary_in_json_is_text_there(tmp_path: Path) -> None:
    content = {"application/json": {"schema": {"type": "object", "properties": {"file": BINARY}}}}
    one = posting(tmp_path, content)
    assert one.plan.request({"file": "x"}).body == b'{"file":"x"}'
