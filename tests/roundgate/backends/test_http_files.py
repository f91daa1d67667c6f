"""Files that are resources of the gateway: read for the caller, in the
caller's view, and sent whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roundgate import config
from roundgate.main import build_app
from tests.support.asgi import Client, client, stoppable
from tests.support.openapi import document, gateway_of, operation
from tests.support.services import answer, service
from tests.support.task_client import TaskClient, task_settings

TOOLS = """
from roundgate import resource


@resource("report://{year}/sums%20of.csv", mime_type="text/csv")
def sums(year: str) -> str:
    return f"year,sum\\n{year},7\\n"


@resource("img://pixel", mime_type="image/png")
def pixel() -> bytes:
    return bytes(range(256))
"""
UPLOAD = {
    "name": "upload",
    "description": "Uploads.",
    "method": "POST",
    "path": "/post",
    "body": "multipart",
    "arguments": {"a": {"file": True}, "more": {"file": True, "schema": {"type": "array"}}},
}
FILES = {"type": "object", "properties": {"a": {"type": "string", "format": "binary"}}}
DOCUMENT = document(
    operation("post", requestBody={"content": {"multipart/form-data": {"schema": FILES}}})
)


def written(folder: Path, base_url: str, **more: Any) -> Path:
    """A gateway.json with resources, a declared tool and an operation that take files."""
    (folder / "own.py").write_text(TOOLS)
    (folder / "api.json").write_text(json.dumps(DOCUMENT))
    http = {"kind": "http", "name": "api", "prefix": "", "base_url": base_url}
    documented = {"kind": "openapi", "name": "doc", "prefix": "", "document": "api.json"}
    backends = [
        {"kind": "python", "name": "own", "path": "own.py"},
        {**http, "tools": [UPLOAD]},
        {**documented, "base_url": base_url},
    ]
    (folder / "gateway.json").write_text(json.dumps({"backends": backends, **more}))
    return folder / "gateway.json"


async def test_resources_are_uploaded_with_their_names_and_types(tmp_path: Path) -> None:
    async with service() as told:
        file = config.load(written(tmp_path, told.url), {})
        async with gateway_of(file) as gate:
            sums = {"resource": "report://2026/sums%20of.csv"}
            pixels = [{"resource": "img://pixel", "file_name": "p.png"}, {"text": "t"}]
            await gate.call("upload", {"a": sums, "more": pixels})
            declared = told.body()
            await gate.call("op", {"a": sums})
    own = (
        b'name="a"; filename="sums of.csv"\r\nContent-Type: text/csv\r\n\r\nyear,sum\n2026,7\n\r\n'
    )
    assert own in declared
    pixel = b'filename="p.png"\r\nContent-Type: image/png\r\n\r\n' + bytes(range(256)) + b"\r\n"
    assert pixel in declared
    assert own in told.body()


async def test_what_is_no_resource_for_the_caller_is_not_sent(tmp_path: Path) -> None:
    views = [{"name": "other", "include": [{"name": "*"}], "resources": ["img://*"]}]
    async with service() as told:
        file = config.load(written(tmp_path, told.url, views=views), {})
        async with gateway_of(file) as gate:
            for uri in ("file:///etc/passwd", "report://nothing", "http://127.0.0.1/", ""):
                text = await gate.text("upload", {"a": {"resource": uri}})
                assert text.startswith("arguments.a: there is no resource")
            hidden = {"a": {"resource": "report://2026/sums%20of.csv"}}
            params = {"name": "upload", "arguments": hidden}
            said = await Client(gate.http, "/other/mcp").post("tools/call", params)
            assert "there is no resource" in said.text, "it is in another view"
        rules = [{"deny": {"resource": "report://*"}}, {"allow": {}}]
        file = config.load(written(tmp_path, told.url, policy=rules), {})
        async with gateway_of(file) as gate:
            text = await gate.text("upload", hidden)
            assert text.startswith("arguments.a: there is no resource")
    assert told.requests == []


async def test_a_task_reads_what_its_caller_could(tmp_path: Path) -> None:
    async with service() as told:
        path = written(tmp_path, told.url, tasks={"poll_interval_ms": 100})
        described = json.loads(path.read_text())
        described["backends"][1]["tools"][0]["task"] = "required"
        path.write_text(json.dumps(described))
        file, using = config.load(path, {}), task_settings(tmp_path, worker="on")
        async with stoppable(build_app(file, using)) as app, client(app) as gate:
            ann = TaskClient(gate)
            task_id = await ann.begin("upload", a={"resource": "img://pixel"})
            assert (await ann.over(task_id))["status"] == "completed"
    assert bytes(range(256)) in told.body()


def with_operation(folder: Path, base_url: str, **operation_: Any) -> Path:
    """A gateway.json with those resources and this operation."""
    path = written(folder, base_url)
    described = document(operation("post", **operation_))
    (folder / "api.json").write_text(json.dumps(described))
    return path


async def test_a_body_that_is_one_file_is_a_resource_or_left_out(tmp_path: Path) -> None:
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    async with service() as told:
        path = with_operation(tmp_path, told.url, requestBody={"content": binary})
        async with gateway_of(config.load(path, {})) as gate:
            await gate.call("op", {"body": {"resource": "img://pixel"}})
            assert told.requests[-1].endswith(b"\r\n\r\n" + bytes(range(256)))
            await gate.call("op", {})
            assert told.body() == b""
            text = await gate.text("op", {"body": {"resource": "img://none"}})
            assert text.startswith("arguments.body: there is no resource")


async def test_files_in_a_body_that_is_one_argument_may_be_resources(tmp_path: Path) -> None:
    """A parameter is called as a part of the body, which is why the body stays whole."""
    parameter = {"name": "a", "in": "query", "schema": {"type": "string"}}
    body = {"content": {"multipart/form-data": {"schema": FILES}}}
    async with service() as told:
        path = with_operation(tmp_path, told.url, parameters=[parameter], requestBody=body)
        async with gateway_of(config.load(path, {})) as gate:
            await gate.call("op", {"a": "q", "body": {"a": {"resource": "img://pixel"}}})
    assert "?a=q " in told.request_lines[-1]
    assert b"Content-Type: image/png\r\n\r\n" + bytes(range(256)) + b"\r\n" in told.body()


async def test_a_long_answer_of_an_operation_is_read_as_a_short_one_is(tmp_path: Path) -> None:
    rows = [{"number": number, "name": "x" * 50} for number in range(6_000)]
    async with service(answer(json.dumps({"rows": rows}).encode())) as told:
        file = config.load(with_operation(tmp_path, told.url), {})
        async with gateway_of(file) as gate:
            result = await gate.call("op")
    assert result["structuredContent"] == {"rows": rows}
