"""Which tools come of a document: names, texts, servers, and Swagger 2.0."""

import json
from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.openapi.reading import Identity, tool_names
from roundgate.errors import ConfigError
from tests.support.openapi import OK, Compiled, compiled, document, operation


def test_names_are_stable_whatever_else_a_document_has() -> None:
    long = Identity("GET", "/long", "a" * 80)
    twins = [Identity("GET", "/a", "get it"), Identity("GET", "/b", "get_it")]
    nameless = Identity("POST", "/pets/{id}/toys", None)
    names = tool_names([long, *twins, nameless], 60, str)
    assert names[3] == "post_pets_id_toys"
    assert all(len(name) <= 60 for name in names)
    assert len(set(names)) == 4
    assert names[0].startswith("a" * 50)
    again = tool_names(
        [nameless, twins[1], long, Identity("PUT", "/new", "other"), twins[0]], 60, str
    )
    assert [again[2], again[4], again[1], again[0]] == names


def test_parameters_of_the_path_hold_unless_the_operation_has_others(tmp_path: Path) -> None:
    shared = [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
        {"name": "v", "in": "query", "schema": {"type": "string"}},
    ]
    own = [
        {"name": "v", "in": "query", "schema": {"type": "boolean"}},
        {"name": "v", "in": "header", "schema": {}},
    ]
    paths = operation(path="/x/{id}", parameters=own)
    paths["/x/{id}"]["parameters"] = shared
    one = Compiled(compiled(tmp_path, document(paths)))
    assert one.schema["properties"] == {
        "id": {"type": "integer"},
        "v": {"type": "boolean"},
        "v_2": {"description": "Only visible ASCII characters and blanks."},
    }
    assert one.schema["required"] == ["id"]
    assert one.sent(id=7, v=True) == "/x/7?v=true"


def test_a_variable_that_nothing_describes_is_text(tmp_path: Path) -> None:
    assert (
        Compiled(compiled(tmp_path, document(operation(path="/x/{id}")))).sent(id="a b")
        == "/x/a%20b"
    )


@pytest.mark.parametrize(
    "path", ["/../admin", "/x/{", "x", "/a?b={c}", "/a?b=c d", "/a?b=?", "/a\\b"]
)
def test_a_path_that_is_none_is_left_out(tmp_path: Path, path: str) -> None:
    index = compiled(
        tmp_path, document(operation(path=path) | operation(path="/y", operationId="good"))
    )
    assert [row.name for row in index.rows] == ["good"]
    assert "path template" in index.problems[0].message


async def test_a_query_in_a_path_is_fixed(tmp_path: Path) -> None:
    """Anthropic's document has `/v1/models?beta=true` beside `/v1/models`."""
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string"}} for name in ("beta", "limit")
    ]
    path = operation(path="/models?beta=true", parameters=parameters)
    one = Compiled(compiled(tmp_path, document(path)))
    assert list(one.schema["properties"]) == ["limit"]
    assert one.sent(limit="2") == "/models?beta=true&limit=2"
    assert one.sent() == "/models?beta=true"


def test_a_fragment_tells_operations_apart_and_is_not_sent(tmp_path: Path) -> None:
    paths = operation(path="/x") | operation(path="/x#other", operationId="other")
    assert Compiled(compiled(tmp_path, document(paths)), "other").sent() == "/x"


def test_headers_that_say_where_a_message_ends_or_who_calls_are_no_arguments(
    tmp_path: Path,
) -> None:
    names = [
        "Accept",
        "authorization",
        "Content-Type",
        "Host",
        "Content-Length",
        "Transfer-Encoding",
        "Cookie",
        "X-Ok",
    ]
    parameters = [{"name": name, "in": "header", "schema": {"type": "string"}} for name in names]
    one = Compiled(compiled(tmp_path, document(operation(parameters=parameters))))
    assert list(one.schema["properties"]) == ["X-Ok"]


def test_what_a_credential_sends_is_no_argument(tmp_path: Path) -> None:
    parameters = [
        {"name": "key", "in": place, "schema": {"type": "string"}}
        for place in ("query", "header", "cookie")
    ]
    scheme = {"k": {"type": "apiKey", "in": "query", "name": "key"}}
    described = document(operation(parameters=parameters), components={"securitySchemes": scheme})
    plan = Compiled(compiled(tmp_path, described, headers={"KEY": "fixed"})).plan
    assert [one.place for one in plan.parameters] == ["cookie"]
    plan = Compiled(compiled(tmp_path, described, credential={"cookie": "key", "value": "v"})).plan
    assert [one.place for one in plan.parameters] == ["header"]


def test_texts_are_the_documents_and_bounded(tmp_path: Path) -> None:
    security = [{"oauth": ["read:x", "write:x"]}]
    paths = operation(
        summary="Get it", description="word " * 1_000, deprecated=True, security=security
    )
    definition = Compiled(compiled(tmp_path, document(paths))).definition
    assert definition["title"] == "Get it"
    assert definition["description"].startswith("Deprecated.\n\nGet it\n\nword word")
    assert definition["description"].endswith("…\n\nNeeds the service's scopes read:x, write:x.")
    assert len(definition["description"]) < 2_200


def server_of(folder: Path, own: Any = None, root: Any = None, **backend: Any) -> str:
    more = {} if own is None else {"servers": own}
    described = document(operation(**more))
    if root is not None:
        described["servers"] = root
    index = compiled(folder, described, **backend)
    return index.servers[index.rows[0].server]


def test_servers_are_those_of_the_operation_the_document_or_the_configuration(
    tmp_path: Path,
) -> None:
    assert server_of(tmp_path) == "https://api.example.com/v1"
    assert (
        server_of(tmp_path, [{"url": "https://api.example.com/v2/"}])
        == "https://api.example.com/v2"
    )
    assert server_of(tmp_path, base_url="http://127.0.0.1:9") == "http://127.0.0.1:9"
    variables = {"region": {"default": "eu", "enum": ["eu", "us"]}}
    root = [{"url": "https://{region}.example.com", "variables": variables}]
    assert server_of(tmp_path, root=root) == "https://eu.example.com"
    assert server_of(tmp_path, root=root, variables={"region": "us"}) == "https://us.example.com"
    with pytest.raises(ConfigError, match="must be one of"):
        server_of(tmp_path, root=root, variables={"region": "evil.com/"})


def test_no_request_goes_to_an_origin_that_the_configuration_does_not_name(tmp_path: Path) -> None:
    elsewhere = [{"url": "https://uploads.example.com"}]
    with pytest.raises(ConfigError, match=r"add https://uploads\.example\.com to `origins`"):
        server_of(tmp_path, elsewhere)
    assert (
        server_of(tmp_path, elsewhere, origins=["https://*.example.com"])
        == "https://uploads.example.com"
    )
    assert (
        server_of(tmp_path, elsewhere, origins=["https://uploads.example.com/"])
        == "https://uploads.example.com"
    )
    with pytest.raises(ConfigError, match="origins"):
        server_of(
            tmp_path, [{"url": "https://example.com.evil.org"}], origins=["https://*.example.com"]
        )


@pytest.mark.parametrize("url", ["/v1", "ftp://x", "https://user@x", "https://a/../b", ""])
def test_a_server_that_is_none_asks_for_a_base_url(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="set `base_url`"):
        server_of(tmp_path, root=[{"url": url}])


def test_a_server_of_one_operation_that_is_none_is_corrected_there(tmp_path: Path) -> None:
    bad = operation(servers=[{"url": "<upload_url>"}])
    described = document(bad | operation(path="/y", operationId="good"))
    [problem] = compiled(tmp_path, described, base_url="https://a.example.com").problems
    assert problem.remedy == "correct the operation's `servers` with an overlay"


SWAGGER = {
    "swagger": "2.0",
    "host": "old.example.com",
    "basePath": "/api",
    "schemes": ["http", "https"],
    "consumes": ["application/json"],
    "definitions": {
        "Pet": {"type": "object", "properties": {"name": {"type": "string", "x-nullable": True}}}
    },
    "paths": {
        "/pets/{id}": {
            "put": {
                "operationId": "op",
                "parameters": [
                    {"name": "id", "in": "path", "type": "integer", "required": True},
                    {"name": "tags", "in": "query", "type": "array", "items": {"type": "string"}},
                    {
                        "name": "all",
                        "in": "query",
                        "type": "array",
                        "collectionFormat": "multi",
                        "items": {},
                    },
                    {
                        "name": "body",
                        "in": "body",
                        "required": True,
                        "schema": {"$ref": "#/definitions/Pet"},
                    },
                ],
                "responses": OK,
            },
            "post": {
                "operationId": "upload",
                "consumes": ["multipart/form-data"],
                "parameters": [
                    {"name": "file", "in": "formData", "type": "file", "required": True},
                    {"name": "note", "in": "formData", "type": "string"},
                ],
                "responses": {},
            },
        }
    },
}


def test_swagger_2_is_read_in_its_own_words(tmp_path: Path) -> None:
    index = compiled(tmp_path, SWAGGER)
    assert list(index.servers) == ["https://old.example.com/api"]
    one = Compiled(index)
    assert one.sent(id=1, tags=["a", "b"], all=[1, 2], name=None) == "/pets/1?tags=a,b&all=1&all=2"
    assert one.schema["properties"]["name"] == {"type": ["string", "null"]}
    upload = Compiled(index, "upload")
    assert upload.plan.body is not None
    assert upload.plan.body.kind == "multipart"
    assert "base64" in upload.schema["properties"]["file"]["properties"]
    assert upload.schema["required"] == ["id", "file"]


def test_a_folder_is_one_back_end_of_several_documents(tmp_path: Path) -> None:
    folder = tmp_path / "apis"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(document(operation())))
    (folder / "b.yaml").write_text(json.dumps(document(operation(operationId="other"))))
    (folder / "part.yml").write_text("Pet: {type: object}")
    index = compiled(tmp_path, None, document="apis")
    assert sorted(row.name for row in index.rows) == ["op", "other"]


def test_operations_may_be_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part/op.yml").write_text(
        "operationId: op\nparameters:\n- $ref: ../names.yml#/q\nresponses: {200: {description: no}}\n"
    )
    (tmp_path / "names.yml").write_text(
        "q: {name: q, in: query, schema: {type: string, enum: [no, on, 2020-01-01]}}"
    )
    one = Compiled(compiled(tmp_path, document({"/x": {"get": {"$ref": "part/op.yml"}}})))
    assert one.schema["properties"]["q"]["enum"] == ["no", "on", "2020-01-01"]


def test_strict_makes_what_is_left_out_an_error(tmp_path: Path) -> None:
    described = document(operation(path="x") | operation(path="/y", operationId="good"))
    with pytest.raises(ConfigError, match="GET x is left out"):
        compiled(tmp_path, described, strict=True)


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "{", "a: [", "openapi: 3.1.0"])
def test_what_describes_no_service_is_a_problem_with_a_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "api.json").write_text(text)
    with pytest.raises(ConfigError, match="→"):
        compiled(tmp_path, None)


def test_what_keeps_all_operations_out_is_said_once(tmp_path: Path) -> None:
    described = document(operation(path="/a") | operation(path="/b"), servers=[])
    with pytest.raises(ConfigError) as caught:
        compiled(tmp_path, described)
    [problem] = caught.value.problems
    assert "none of 2 operations can be offered: the document has no http(s) URL" in problem.message
    assert (problem.path, problem.remedy) == ("backends[0].document", "set `base_url`")
