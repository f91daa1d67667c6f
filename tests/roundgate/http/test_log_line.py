"""One line a request, with what an operator needs and nothing that callers said to
tools or tools to callers."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, tool
from roundgate import observability as logs
from tests.support import root_logger, wire
from tests.support.asgi import Client, Exchange, client, gateway
from tests.support.functions import add

SECRET = "tell-nobody-4711"


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The fields of every line about a request."""
    return [
        record.__dict__["fields"] for record in caplog.records if record.name == "roundgate.request"
    ]


def only_line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    (line,) = lines(caplog)
    assert line.pop("ms") >= 0
    return line


async def test_a_call_that_succeeds(mcp: Client, caplog: pytest.LogCaptureFixture) -> None:
    response = await mcp.post("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    line = only_line(caplog)
    assert re.fullmatch(r"[\w-]{22}", line.pop("call"))
    assert line == {
        "method": "tools/call",
        "name": "add",
        "subject": "local",
        "address": "127.0.0.1",
        "status": 200,
        "outcome": "ok",
        "bytes": len(response.content),
    }


async def test_a_method_without_a_name(mcp: Client, caplog: pytest.LogCaptureFixture) -> None:
    await mcp.post("tools/list")
    line = only_line(caplog)
    assert (line["method"], line["outcome"], "name" in line) == ("tools/list", "ok", False)


@pytest.mark.parametrize("name", ["refuse", "crash"])
async def test_a_call_that_fails(mcp: Client, caplog: pytest.LogCaptureFixture, name: str) -> None:
    await mcp.post("tools/call", {"name": name})
    line = only_line(caplog)
    assert (line["name"], line["status"], line["outcome"], "error" in line) == (
        name,
        200,
        "tool_error",
        False,
    )


async def test_an_error_with_its_code_and_message(
    mcp: Client, caplog: pytest.LogCaptureFixture
) -> None:
    response = await mcp.post("prompts/get", {"name": "nobody"})
    line = only_line(caplog)
    assert (line["method"], line["name"], line["status"], line["outcome"]) == (
        "prompts/get",
        "nobody",
        400,
        "error",
    )
    assert (line["code"], line["error"]) == (-32602, response.json()["error"]["message"])


async def test_a_body_that_is_no_request(mcp: Client, caplog: pytest.LogCaptureFixture) -> None:
    await mcp.http.post("/mcp", content=b"{", headers={"content-type": "application/json"})
    line = only_line(caplog)
    assert (line["status"], line["code"], line["outcome"]) == (400, -32700, "error")
    assert not {"method", "name"} & line.keys()


async def test_a_request_that_is_refused_for_its_head(
    mcp: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await mcp.http.get("/mcp")
    line = only_line(caplog)
    assert (line["status"], line["code"], "method" in line) == (405, -32600, False)


async def test_a_request_that_the_guard_refuses(
    mcp: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await mcp.post("tools/list", headers={"origin": "https://evil.example"})
    (line,) = lines(caplog)
    assert (line["status"], line["outcome"]) == (403, "refused")
    assert "https://evil.example" in line["error"]
    assert "http.allowed_origins" in line["error"]


async def test_a_notification(mcp: Client, caplog: pytest.LogCaptureFixture) -> None:
    await mcp.http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/cancelled"})
    expected = {
        "method": "notifications/cancelled",
        "subject": "local",
        "address": "127.0.0.1",
        "status": 202,
        "outcome": "ok",
        "bytes": 0,
    }
    assert only_line(caplog) == expected


async def test_a_call_whose_client_hung_up(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def wait(ctx: Context) -> str:
        await ctx.progress(1)
        await asyncio.sleep(30)
        return "never"

    asked = wire.call("wait", progressToken=1)
    async with Exchange(gateway(wait), asked) as exchange:
        await exchange.event()
        exchange.hang_up()
    line = only_line(caplog)
    assert (line["outcome"], line["status"], line["name"]) == ("cancelled", 200, "wait")
    assert line["bytes"] > 0


async def test_a_stream_is_one_line_when_it_ends(
    everything: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    asked = wire.message("subscriptions/listen", {"notifications": {}})
    async with Exchange(everything, asked) as stream:
        await stream.event()
        assert lines(caplog) == []
    assert only_line(caplog)["method"] == "subscriptions/listen"


async def test_a_failure_is_told_with_the_reference_that_the_other_line_has(
    mcp: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await mcp.post("resources/read", {"uri": "note://broken"})
    (failure,) = [
        record.__dict__["fields"] for record in caplog.records if record.levelname == "ERROR"
    ]
    line = only_line(caplog)
    assert (line["code"], line["status"]) == (-32603, 200)
    assert failure["reference"] in line["error"]


@pytest.mark.parametrize(
    ("method", "params", "meta"),
    [
        ("tools/call", {"name": "echo", "arguments": {"a": SECRET}}, {}),
        ("tools/call", {"name": "add", "arguments": {"a": SECRET, "b": SECRET}}, {}),
        ("tools/call", {"name": "add", "arguments": SECRET}, {}),
        ("tools/call", {"name": "mirrored", "arguments": {"region": SECRET}}, {}),
        (
            "tools/call",
            {"name": "add", "arguments": {"a": 1, "b": 2}},
            {"clientInfo": {"name": SECRET}},
        ),
        ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, {"clientInfo": SECRET}),
        (
            "tools/call",
            {"name": "report", "arguments": {}},
            {"progressToken": SECRET, "logLevel": "debug"},
        ),
        ("prompts/get", {"name": "review", "arguments": {"language": SECRET}}, {}),
        ("prompts/get", {"name": "review", "arguments": {"language": [SECRET]}}, {}),
        (
            "completion/complete",
            {"ref": {"type": SECRET}, "argument": {"name": "x", "value": SECRET}},
            {},
        ),
        ("tools/list", {"cursor": SECRET}, {}),
        ("subscriptions/listen", {"notifications": SECRET}, {}),
        ("tools/list", {}, {"logLevel": SECRET}),
    ],
)
async def test_no_line_has_arguments_or_results(
    mcp: Client,
    caplog: pytest.LogCaptureFixture,
    method: str,
    params: dict[str, Any],
    meta: dict[str, Any],
) -> None:
    await mcp.post(method, params, **meta)
    assert lines(caplog)
    assert SECRET not in "".join(str(record.__dict__) for record in caplog.records)


async def test_a_bad_body_is_not_repeated(mcp: Client, caplog: pytest.LogCaptureFixture) -> None:
    for body in (
        f'{{"a": "{SECRET}',
        f"[{SECRET}]",
        f'"{SECRET}"',
        f'{{"jsonrpc": "{SECRET}", "id": "{SECRET}"}}',
    ):
        await mcp.http.post("/mcp", content=body, headers={"content-type": "application/json"})
    assert len(lines(caplog)) == 4
    assert SECRET not in json.dumps(lines(caplog))


async def test_what_a_client_chose_is_cut_to_size(
    mcp: Client, caplog: pytest.LogCaptureFixture
) -> None:
    long = "x" * 100_000
    await mcp.post(long)
    await mcp.post("resources/read", {"uri": long})
    await mcp.post("tools/list", headers={"mcp-method": long})
    await mcp.post("prompts/get", {"name": "review", "arguments": {long: "", "language": ""}})
    assert len(lines(caplog)) == 4
    assert max(len(json.dumps(line)) for line in lines(caplog)) < 1500


async def test_below_the_level_nothing_is_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "roundgate.request")
    async with client(gateway(add)) as mcp:
        await mcp.post("tools/list")
    assert lines(caplog) == []


async def test_in_a_process_of_ours_the_line_is_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with root_logger.lent():
        logs.configure("info", alone=True)
        async with client(gateway(add)) as mcp:
            response = await mcp.post("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    line = json.loads(capsys.readouterr().err)
    assert line.pop("ts").endswith("Z")
    assert line.pop("ms") >= 0
    assert line.pop("call")
    assert line == {
        "level": "info",
        "msg": "request",
        "method": "tools/call",
        "name": "add",
        "subject": "local",
        "address": "127.0.0.1",
        "status": 200,
        "outcome": "ok",
        "bytes": len(response.content),
    }
