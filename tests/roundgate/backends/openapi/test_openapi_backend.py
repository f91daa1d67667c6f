"""A gateway in front of a service that a document describes: starts, credentials, answers."""

import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roundgate import config
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.index import read
from roundgate.cli import main
from roundgate.errors import ConfigError, UnusableIndex
from roundgate.runtime import loading
from tests.support.authority import Authority
from tests.support.openapi import OK, document, file_of, gateway_of, operation
from tests.support.services import answer, service

KEY = "sesame-sesame"


async def test_a_call_is_the_request_that_the_document_describes(tmp_path: Path) -> None:
    parameters = [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
        {
            "name": "tags",
            "in": "query",
            "style": "pipeDelimited",
            "explode": False,
            "schema": {"type": "array"},
        },
        {"name": "X-Kind", "in": "header", "schema": {"type": "string"}},
        {"name": "c", "in": "cookie", "schema": {"type": "string"}},
    ]
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    paths = operation("put", "/pets/{id}", parameters=parameters, requestBody=body)
    async with service(answer(b'{"ok":true}')) as told:
        file = file_of(tmp_path, document(paths), base_url=f"{told.url}/api")
        async with gateway_of(file) as gate:
            arguments = {"id": 7, "tags": ["a b", "c|d"], "X-Kind": "k", "c": "d e", "name": "Rex"}
            result = await gate.call("op", arguments)
    assert result["structuredContent"] == {"ok": True}
    assert told.request_lines == ["PUT /api/pets/7?tags=a%20b%7Cc%7Cd HTTP/1.1"]
    assert (told.header("x-kind"), told.header("cookie")) == (["k"], ["c=d%20e"])
    assert (told.header("accept"), told.body()) == (["application/json"], b'{"name":"Rex"}')


async def test_arguments_are_checked_before_anything_is_sent(tmp_path: Path) -> None:
    parameters = [{"name": "q", "in": "query", "schema": {"$ref": "#/components/schemas/Q"}}]
    described = document(
        operation(parameters=parameters), components={"schemas": {"Q": {"type": "integer"}}}
    )
    async with (
        service() as told,
        gateway_of(file_of(tmp_path, described, base_url=told.url)) as gate,
    ):
        result = await gate.call("op", {"q": "x"})
    assert result["isError"]
    assert "arguments.q" in result["content"][0]["text"]
    assert told.requests == []


@pytest.mark.parametrize("name", ["project_id", "x.api.key", "api~key"])
async def test_an_api_key_goes_into_any_header_that_there_can_be(tmp_path: Path, name: str) -> None:
    schemes = {"project": {"type": "apiKey", "in": "header", "name": name}}
    described = document(
        operation(security=[{"project": []}]), components={"securitySchemes": schemes}
    )
    credentials = {"project": {"header": name, "value": KEY}}
    async with service() as told:
        file = file_of(tmp_path, described, base_url=told.url, credentials=credentials)
        async with gateway_of(file) as gate:
            await gate.call("op")
    assert told.header(name) == [KEY]


async def test_a_security_scheme_that_refers_to_nothing_keeps_the_others(tmp_path: Path) -> None:
    schemes = {"gone": {"$ref": "#/components/securitySchemes/nowhere"}, "key": SCHEMES["key"]}
    described = document(
        operation(security=[{"gone": []}, {"key": []}]), components={"securitySchemes": schemes}
    )
    credentials = {"key": {"query": "api_key", "value": KEY}}
    async with service() as told:
        file = file_of(tmp_path, described, base_url=told.url, credentials=credentials)
        async with gateway_of(file) as gate:
            await gate.call("op")
    assert told.request_lines == [f"GET /x?api_key={KEY} HTTP/1.1"]


SCHEMES = {
    "key": {"type": "apiKey", "in": "query", "name": "api_key"},
    "crumb": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "token": {"type": "http", "scheme": "bearer"},
    "mtls": {"type": "mutualTLS"},
    "aws": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "x-amazon-apigateway-authtype": "awsSigv4",
    },
}


def secured(*security: dict[str, list[str]], **more: Any) -> dict[str, Any]:
    return document(
        operation(security=list(security), **more), components={"securitySchemes": SCHEMES}
    )


async def test_the_first_scheme_that_the_configuration_fills_is_used(
    tmp_path: Path,
) -> None:
    described = secured({"token": []}, {"key": [], "crumb": []})
    async with service() as told:
        credentials = {
            "key": {"query": "api_key", "value": KEY},
            "crumb": {"cookie": "sid", "value": "c-r-u-m-b"},
        }
        async with gateway_of(
            file_of(tmp_path, described, base_url=told.url, credentials=credentials)
        ) as gate:
            await gate.call("op", {})
    assert told.request_lines == [f"GET /x?api_key={KEY} HTTP/1.1"]
    assert (told.header("cookie"), told.header("authorization")) == (["sid=c-r-u-m-b"], [])


def test_a_scheme_that_nothing_fills_is_a_problem_that_says_what_goes_there(tmp_path: Path) -> None:
    file = file_of(tmp_path, secured({"token": []}))
    with pytest.raises(ConfigError) as caught:
        loading.load(file)
    assert "1 operations need the security scheme 'token'" in str(caught.value)
    assert "credentials.token" in str(caught.value)
    assert loading.load(file_of(tmp_path, secured({"token": []}, {}))).catalog.tools
    assert loading.load(
        file_of(tmp_path, secured({"token": []}), credential={"bearer": KEY})
    ).catalog.tools


async def test_mutual_tls_is_filled_by_the_certificate_of_the_back_end(tmp_path: Path) -> None:
    described = secured({"mtls": [], "token": []})
    credentials = {"token": {"bearer": KEY}}
    with pytest.raises(ConfigError) as caught:
        loading.load(file_of(tmp_path, described, credentials=credentials))
    assert "give the gateway its own certificate: `tls` of the back end" in str(caught.value)
    authority = Authority(tmp_path)
    cert, key = (str(one) for one in authority.issue("gateway"))
    tls = {"ca": str(authority.ca), "cert": cert, "key": key}
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca))
    context.load_cert_chain(*authority.issue("server"))
    context.verify_mode = ssl.CERT_REQUIRED
    async with service(tls=context) as told:
        file = file_of(tmp_path, described, base_url=told.url, credentials=credentials, tls=tls)
        async with gateway_of(file) as gate:
            await gate.call("op", {})
    assert told.header("authorization") == [f"Bearer {KEY}"]


def test_a_scheme_of_api_gateway_is_filled_with_a_signature(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`credentials.aws` \(sigv4: execute-api\)"):
        loading.load(file_of(tmp_path, secured({"aws": []})))
    credentials = {"aws": {"sigv4": "execute-api"}}
    file = file_of(tmp_path, secured({"aws": []}), credentials=credentials)
    assert loading.load(file).catalog.tools


async def test_an_object_that_is_exploded_brings_no_name_of_another_argument(
    tmp_path: Path,
) -> None:
    """The service would take the first of the two, or the last: a fixed one would not be fixed."""
    thing = {"type": "object"}
    members = {"state": {"type": "string"}, "more": thing}
    as_form = {"more": {"style": "form", "explode": True}}
    schema = {**thing, "properties": members}
    form = {"application/x-www-form-urlencoded": {"schema": schema, "encoding": as_form}}
    parameters: list[dict[str, Any]] = [
        *({"name": name, "in": "query", "schema": {}} for name in ("filter", "owner")),
        *({"name": name, "in": "cookie", "schema": {}} for name in ("crumbs", "kind")),
    ]
    described = document(
        operation("post", parameters=parameters, requestBody={"content": form, "required": True})
    )
    fixed = {one: {"fixed": "ours"} for one in ("owner", "kind", "state")}
    async with service() as told:
        override = {"op": {"arguments": fixed}}
        file = file_of(tmp_path, described, base_url=told.url, override=override)
        async with gateway_of(file) as gate:
            for one, other in (("filter", "owner"), ("crumbs", "kind"), ("more", "state")):
                for spelt in (other, other.upper(), other.title(), f"{other} "):
                    result = await gate.call("op", {one: {spelt: "mine"}})
                    assert (
                        f"move {spelt} to the argument of that name" in result["content"][0]["text"]
                    )
            assert told.requests == []
            await gate.call("op", {"filter": {"a": 1}, "crumbs": {"b": 2}, "more": {"c": 3}})
    assert told.request_lines == ["POST /x?a=1&owner=ours HTTP/1.1"]
    assert told.header("cookie") == ["b=2; kind=ours"]
    assert sorted(told.body().split(b"&")) == [b"c=3", b"state=ours"]


async def test_no_argument_takes_the_place_of_a_credential(tmp_path: Path) -> None:
    parameters = [
        {"name": "api_key", "in": "query", "schema": {"type": "string"}},
        {"name": "more", "in": "query", "schema": {"type": "object"}},
        {"name": "crumbs", "in": "cookie", "schema": {"type": "object"}},
    ]
    credentials = {
        "key": {"query": "api_key", "value": KEY},
        "crumb": {"cookie": "sid", "value": "c-r-u-m-b"},
    }
    described = secured({"key": [], "crumb": []}, parameters=parameters)
    async with service() as told:
        file = file_of(tmp_path, described, base_url=told.url, credentials=credentials)
        async with gateway_of(file) as gate:
            [tool] = (await gate.result("tools/list"))["tools"]
            for arguments in (
                {"more": {"api_key": "mine"}},
                {"more": {"API_KEY": "mine"}},
                {"more": {"api.key": "mine"}},
                {"more": {"Api-Key": "mine"}},
                {"more": {"\uff21PI_KEY": "mine"}},
                {"crumbs": {"sid": "mine"}},
                {"crumbs": {"SID": "mine"}},
            ):
                result = await gate.call("op", arguments)
                assert result["isError"]
                assert "is reserved for the gateway" in result["content"][0]["text"]
            await gate.call("op", {"more": {"other": "mine"}})
    assert "api_key" not in tool["inputSchema"]["properties"]
    assert told.request_lines == [f"GET /x?other=mine&api_key={KEY} HTTP/1.1"]


async def test_a_credential_is_taken_out_of_what_the_service_echoes(tmp_path: Path) -> None:
    async with service(answer(f'"you are {KEY}"'.encode())) as told:
        file = file_of(
            tmp_path,
            secured({"token": []}),
            base_url=told.url,
            credentials={"token": {"bearer": KEY}},
        )
        async with gateway_of(file) as gate:
            assert (await gate.call("op", {}))["structuredContent"] == "you are [redacted]"


async def test_an_answer_that_is_not_as_promised_is_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    promised = {
        "200": {"description": "", "content": {"application/json": {"schema": {"type": "integer"}}}}
    }
    described = document(operation(responses=promised))
    async with service(
        answer(b"7"), answer(b'"seven"'), answer(b"{", content_type="application/json")
    ) as told:
        file = file_of(tmp_path, described, base_url=told.url, output_schemas=["o*"])
        async with gateway_of(file) as gate:
            [tool] = (await gate.result("tools/list"))["tools"]
            found = [await gate.call("op", {}) for _ in range(3)]
    assert tool["outputSchema"] == {"type": "integer"}
    assert found[0]["structuredContent"] == 7
    assert [one["content"][0]["text"] for one in found[1:]] == ['"seven"', "{"]
    assert not any("structuredContent" in one or one.get("isError") for one in found[1:])
    assert [record.getMessage() for record in caplog.records].count(
        "a response does not match its OpenAPI document"
    ) == 2


async def test_hints_say_what_the_method_says_and_approvals_follow(tmp_path: Path) -> None:
    paths = (
        operation()
        | operation("delete", "/y", operationId="gone")
        | operation("post", "/z", operationId="made")
    )
    async with gateway_of(file_of(tmp_path, document(paths), approve="destructive")) as gate:
        tools = {
            tool["name"]: tool["annotations"] for tool in (await gate.result("tools/list"))["tools"]
        }
        refused = await gate.post("tools/call", {"name": "gone", "arguments": {}})
    assert tools["op"] == {
        "readOnlyHint": True,
        "destructiveHint": False,
        "idempotentHint": True,
        "openWorldHint": True,
    }
    assert tools["gone"]["destructiveHint"] is True
    assert "destructiveHint" not in tools["made"]
    assert refused.json()["error"]["code"] == -32021


def test_compile_writes_an_index_that_a_start_reads_instead_of_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file_of(tmp_path, document(operation() | operation(path="bad", operationId="b")))
    assert main(["compile", str(tmp_path / "gateway.json")]) == 0
    told = capsys.readouterr().out
    assert "/paths/bad/get: GET bad is left out" in told
    assert "api: 1 operations, 1 left out" in told
    (tmp_path / "api.json").unlink()
    file = config.load(tmp_path / "gateway.json")
    catalog = loading.load(file).catalog
    assert list(catalog.tools) == ["op"]
    assert [problem.path for problem in catalog.left_out] == ["/paths/bad/get"]
    assert main(["check", str(tmp_path / "gateway.json")]) == 0
    told = capsys.readouterr().out
    assert "left out (1)" in told


def test_who_compiles_needs_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "api.json").write_text(json.dumps(secured({"token": []})))
    entry = {
        "kind": "openapi",
        "name": "api",
        "document": "api.json",
        "credentials": {"token": {"bearer": "${T_O}"}},
    }
    (tmp_path / "gateway.json").write_text(json.dumps({"backends": [entry]}))
    monkeypatch.delenv("T_O", raising=False)
    assert main(["compile", str(tmp_path / "gateway.json")]) == 0
    (tmp_path / "api.json").unlink()
    assert list(
        loading.load(config.load(tmp_path / "gateway.json", {"T_O": KEY})).catalog.tools
    ) == ["api__op"]
    assert KEY.encode() not in (tmp_path / "api.index").read_bytes()


def test_what_is_packaged_has_its_indexes(tmp_path: Path) -> None:
    (tmp_path / "api.json").write_text(json.dumps(document(operation())))
    (tmp_path / "gateway.yaml").write_text(
        "backends: [{kind: openapi, name: api, document: api.json}]"
    )
    loading.compile_documents(config.load(tmp_path / "gateway.yaml"), print)
    assert [row.name for row in read(tmp_path / "api.index").rows] == ["op"]
    (tmp_path / "plain.yaml").write_text("backends: [{kind: python, name: p, module: not_there}]")
    loading.compile_documents(config.load(tmp_path / "plain.yaml"), print)  # nothing to compile


def test_an_index_of_another_document_or_other_settings_is_not_used(tmp_path: Path) -> None:
    file_of(tmp_path, document(operation()))
    main(["compile", str(tmp_path / "gateway.json")])
    index = tmp_path / "api.index"
    (tmp_path / "api.json").write_text(json.dumps(document(operation(operationId="two"))))
    os.utime(tmp_path / "api.json", ns=(index.stat().st_mtime_ns + 1,) * 2)
    assert list(loading.load(config.load(tmp_path / "gateway.json")).catalog.tools) == ["two"]
    main(["compile", str(tmp_path / "gateway.json")])
    changed = file_of(tmp_path, None, base_url="http://127.0.0.1:9")
    backend = changed.backends[0]
    assert isinstance(backend, OpenApiBackendConfig)
    assert list(loading.load(changed).catalog.tools) == ["two"]
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(UnusableIndex, match="truncated"):
        read(index)
    assert list(loading.load(changed).catalog.tools) == ["two"]


def test_an_index_of_another_version_says_to_compile_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = file_of(tmp_path, document(operation()))
    main(["compile", str(tmp_path / "gateway.json")])
    index = tmp_path / "api.index"
    index.write_bytes(b"roundgate-index 1\n2\n{}")
    assert list(loading.load(file).catalog.tools) == ["op"]
    (told,) = [one for one in caplog.records if "index" in one.message]
    fields = told.fields  # type: ignore[attr-defined]
    assert fields["reason"] == "was compiled by another version of Roundgate"
    assert "roundgate compile" in fields["remedy"]
    (tmp_path / "api.json").unlink()
    with pytest.raises(ConfigError) as failed:
        loading.load(file)
    (problem,) = failed.value.problems
    assert "api.index was compiled by another version" in problem.message
    assert "api.json is not here" in problem.message
    assert "roundgate compile" in problem.remedy


@pytest.mark.parametrize("given", [b"", b"roundgate-index 1\n", b"roundgate-index 2 \n{", b"\0"])
def test_an_index_that_is_none_is_compiled_anew(tmp_path: Path, given: bytes) -> None:
    file = file_of(tmp_path, document(operation()))
    (tmp_path / "api.index").write_bytes(given)
    assert list(loading.load(file).catalog.tools) == ["op"]


def test_a_start_parses_no_definition_and_loads_nothing_that_calls_or_compiles(
    tmp_path: Path,
) -> None:
    file_of(tmp_path, document(operation()), approve="destructive")
    main(["compile", str(tmp_path / "gateway.json")])
    code = (
        "import sys; from pathlib import Path; from roundgate import config\n"
        "from roundgate.backends import base\nfrom roundgate.runtime import loading\n"
        "base.decode = None\n"
        f"loading.load(config.load(Path({str(tmp_path / 'gateway.json')!r})))\n"
        "late = ('http.service', 'http.exchanges', 'http.plan', 'compiling', 'openapi.reading')\n"
        "print(*(m for m in sys.modules if m in ('yaml', 'httpx') or m.endswith(late)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


async def test_a_url_is_fetched_by_check_and_compile_and_never_by_a_start(tmp_path: Path) -> None:
    import asyncio

    described = json.dumps(document(operation())).encode()
    async with service(answer(described)) as told:
        of_service = json.loads(described)["servers"][0]["url"]
        file = file_of(tmp_path, None, document=f"{told.url}/api.json", origins=[of_service])
        with pytest.raises(ConfigError, match="roundgate compile"):
            await asyncio.to_thread(loading.load, file)
        assert told.requests == []
        assert await asyncio.to_thread(main, ["check", str(tmp_path / "gateway.json")]) == 0
        assert await asyncio.to_thread(main, ["compile", str(tmp_path / "gateway.json")]) == 0
        assert len(told.requests) == 2  # once by each of both
    assert list(loading.load(file).catalog.tools) == ["op"]


async def test_a_redirect_of_a_document_is_not_followed(tmp_path: Path) -> None:
    import asyncio

    async with service(answer(status="302 Found", location="http://127.0.0.1:1/secret")) as told:
        file = file_of(tmp_path, None, document=f"{told.url}/api.json")
        with pytest.raises(ConfigError, match="give that URL"):
            await asyncio.to_thread(loading.load, file, fetches=True)
        assert len(told.requests) == 1


def test_schemas_that_tools_share_are_in_the_index_once(tmp_path: Path) -> None:
    shared = {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "d" * 5_000}},
    }
    body = {
        "content": {
            "application/json": {
                "schema": {"type": "array", "items": {"$ref": "#/components/schemas/S"}}
            }
        }
    }
    paths: dict[str, Any] = {}
    for number in range(20):
        paths |= operation("post", f"/{number}", operationId=f"op{number}", requestBody=body)
    file_of(tmp_path, document(paths, components={"schemas": {"S": shared}}))
    main(["compile", str(tmp_path / "gateway.json")])
    assert (tmp_path / "api.index").stat().st_size < 20_000
    tools = loading.load(config.load(tmp_path / "gateway.json")).catalog.tools
    assert tools["op19"].arguments.is_valid({"body": [{"text": "x"}]})
    assert not tools["op19"].arguments.is_valid({"body": [{"text": 1}]})


SEVERAL = document(
    {
        "/open": {"get": {"operationId": "open", "responses": OK}},
        "/shut": {"get": {"operationId": "shut", "responses": OK, "security": [{"token": []}]}},
        "/both": {"get": {"operationId": "both", "responses": OK, "security": [{"token": []}, {}]}},
    },
    components={"securitySchemes": SCHEMES},
)


def test_operations_without_their_credential_are_left_out_and_the_others_served(
    tmp_path: Path,
) -> None:
    override = {"shut": {"description": "It may be named, although it is left out."}}
    catalog = loading.load(file_of(tmp_path, SEVERAL, override=override)).catalog
    assert list(catalog.tools) == ["open", "both"]
    (problem,) = catalog.left_out
    assert "1 operations need the security scheme 'token'" in str(problem)
    assert "set `credentials.token`" in problem.remedy
    with pytest.raises(ConfigError, match="security scheme 'token'"):
        loading.load(file_of(tmp_path, SEVERAL, strict=True))
    with pytest.raises(ConfigError, match="security scheme 'token'"):
        loading.load(file_of(tmp_path, SEVERAL, include=[{"name": "shut"}]))
