"""Calls whose arguments are repaired: every part of the gateway gets the repaired value."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, tool
from tests.support.asgi import client, gateway
from tests.support.audit import KEY, records
from tests.support.rounds import accept, ask, retry
from tests.support.telemetry import recorded

ran: list[Any] = []


@tool
def pay(sum: int, note: str = "", tags: list[str] = []) -> str:  # noqa: A002, B006
    """Pay."""
    ran.append((sum, note, tags))
    return "paid"


@tool
async def anything(ctx: Context, **arguments: Any) -> str:
    """Take any arguments."""
    ran.append(arguments)
    return "taken"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


SLIPS = {"sum": "5", "note": None, "tags": '["a"]', "toolCallId": "call_1"}


async def test_slips_are_repaired_by_default() -> None:
    async with client(gateway(pay)) as mcp:
        assert await mcp.text("pay", SLIPS) == "paid"
    assert ran == [(5, "", ["a"])]


async def test_an_unknown_argument_stays_refused() -> None:
    async with client(gateway(pay)) as mcp:
        assert "'sun' was unexpected" in await mcp.text("pay", {"sum": "5", "sun": 1})
    assert ran == []


async def test_no_arguments_may_be_null() -> None:
    async with client(gateway(anything)) as mcp:
        assert (await mcp.result("tools/call", {"name": "anything", "arguments": None}))["content"]
        status, error = await mcp.error("tools/call", {"name": "anything", "arguments": []})
        assert (status, error["code"]) == (400, -32602)
    assert ran == [{}]


@pytest.mark.parametrize(
    "sections",
    [
        {"arguments": {"mode": "strict"}},
        {"backend": {"override": {"pay": {"argument_mode": "strict"}}}},
    ],
)
async def test_strict_repairs_nothing(sections: dict[str, Any]) -> None:
    async with client(gateway(pay, **sections)) as mcp:
        for slip in ({"sum": "5"}, {"sum": 5, "note": None}, {"sum": 5, "toolCallId": "c"}):
            assert "Invalid arguments" in await mcp.text("pay", slip)
        assert await mcp.text("pay", {"sum": 5}) == "paid"


async def test_a_tool_may_be_lenient_in_a_strict_gateway_and_the_names_are_a_setting() -> None:
    sections: dict[str, Any] = {
        "arguments": {"mode": "strict", "ignored": ["trace"]},
        "backend": {"override": {"pay": {"argument_mode": "lenient"}}},
    }
    async with client(gateway(pay, **sections)) as mcp:
        assert await mcp.text("pay", {"sum": "5", "trace": 1}) == "paid"
        assert "toolCallId" in await mcp.text("pay", {"sum": 5, "toolCallId": "c"})


async def test_a_function_that_takes_any_argument_gets_all() -> None:
    async with client(gateway(anything)) as mcp:
        await mcp.text("anything", {"toolCallId": "c", "x": "5"})
    assert ran == [{"toolCallId": "c", "x": "5"}]


async def test_rules_approvals_states_and_the_audit_log_get_the_repaired_value(
    tmp_path: Path,
) -> None:
    small = {"properties": {"sum": {"type": "integer", "maximum": 9}}, "required": ["sum"]}
    sections: dict[str, Any] = {
        "policy": [{"allow": {"arguments": small}}],
        "backend": {"approve": "always"},
        "audit": {"directory": str(tmp_path), "key": KEY},
    }
    async with client(gateway(pay, **sections)) as mcp:
        assert "does not allow" in await mcp.text("pay", {"sum": "10"})
        call = {"name": "pay", "arguments": SLIPS}
        first = await ask(mcp, "tools/call", call)
        assert "- sum: 5\n- note" in first["inputRequests"]["approve"]["params"]["message"]
        # the same call, however it is spelt
        repaired = {"name": "pay", "arguments": {"sum": 5, "tags": ["a"]}}
        result = await mcp.result(
            "tools/call", retry(repaired, first, approve=accept(approve=True))
        )
        assert result["content"][0]["text"] == "paid"
    called = [record for record in records(tmp_path) if record["event"] == "called"]
    assert len({record["arguments"] for record in called[1:]}) == 1
    assert ran == [(5, "", ["a"])]


async def test_call_tool_takes_arguments_as_text() -> None:
    async with client(gateway(pay, search={"above": 0})) as mcp:
        assert await mcp.text("call_tool", {"name": "pay", "arguments": '{"sum": "5"}'}) == "paid"


async def test_repairs_are_counted_and_logged_without_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "roundgate.methods")
    with recorded() as telemetry:
        async with client(gateway(pay)) as mcp:
            await mcp.text("pay", {**SLIPS, "note": None})
        points = telemetry.points("roundgate.arguments.repaired")
        assert {point.attributes["repair"]: point.value for point in points} == {
            "name": 1,
            "null": 1,
            "text": 2,
        }
    (line,) = [record for record in caplog.records if record.message == "arguments were repaired"]
    assert line.fields == {"tool": "pay", "name": 1, "text": 2, "null": 1}  # type: ignore[attr-defined]
