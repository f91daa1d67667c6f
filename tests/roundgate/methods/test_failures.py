"""What goes wrong in handlers: the caller learns what helps it and nothing else, the
log learns everything."""

from __future__ import annotations

import asyncio
import decimal
import math
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from roundgate import (
    Context,
    InvalidParams,
    ResourceNotFound,
    TextContent,
    TextResourceContents,
    ToolError,
    ToolResult,
    prompt,
    resource,
    tool,
)
from roundgate.settings import TaskMode
from roundgate_testing import Gateway
from tests.support.asgi import Client, client, gateway
from tests.support.functions import SECRET, add


def references(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Reference → traceback of each failure in the log."""
    failures = [record for record in caplog.records if record.exc_info]
    return {
        record.__dict__["fields"]["reference"]: caplog.handler.format(record) for record in failures
    }


def only_reference(text: str, caplog: pytest.LogCaptureFixture) -> str:
    """The traceback that the log has under the reference which a text tells; there must be no other."""
    ((reference, traceback),) = references(caplog).items()
    assert text.endswith(reference)
    assert len(text) < 200
    return traceback


async def test_the_text_of_a_tool_error_is_told(mcp: Client) -> None:
    result = await mcp.call("refuse")
    assert result["isError"]
    assert result["content"] == [{"type": "text", "text": "there is no tea left; ask for coffee"}]


async def test_any_other_exception_of_a_tool_is_told_as_a_reference(
    mcp: Client, caplog: pytest.LogCaptureFixture
) -> None:
    result = await mcp.call("crash")
    assert result["isError"]
    assert SECRET not in str(result)
    assert "RuntimeError" not in str(result)
    traceback = only_reference(result["content"][0]["text"], caplog)
    assert f"RuntimeError: the password is {SECRET}" in traceback
    assert "functions.py" in traceback


@pytest.mark.parametrize(
    ("method", "params"),
    [("prompts/get", {"name": "broken_prompt"}), ("resources/read", {"uri": "note://broken"})],
)
async def test_an_exception_of_a_prompt_or_resource_is_an_internal_error_with_http_200(
    mcp: Client, method: str, params: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    status, error = await mcp.error(method, params)
    assert (status, error["code"]) == (200, -32603)
    assert SECRET not in str(error)
    assert SECRET in only_reference(error["message"], caplog)


async def test_an_exception_of_a_completer_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(typed: str) -> list[str]:
        raise KeyError(SECRET)

    @prompt(complete={"word": fail})
    async def cry(word: str) -> str:
        return word

    async with client(gateway(cry)) as mcp:
        ref = {"type": "ref/prompt", "name": "cry"}
        status, error = await mcp.error(
            "completion/complete", {"ref": ref, "argument": {"name": "word", "value": ""}}
        )
    assert (status, error["code"]) == (200, -32603)
    assert SECRET in only_reference(error["message"], caplog)


@pytest.mark.parametrize("error", [ToolError("no such page"), InvalidParams("no such page")])
async def test_a_prompt_may_say_what_is_wrong_with_its_arguments(error: Exception) -> None:
    @prompt
    async def page(number: str) -> str:
        raise error

    async with client(gateway(page)) as mcp:
        status, told = await mcp.error(
            "prompts/get", {"name": "page", "arguments": {"number": "9"}}
        )
    assert (status, told["code"], told["message"]) == (400, -32602, "no such page")


async def test_a_tool_may_answer_with_a_protocol_error() -> None:
    @tool
    async def find() -> str:
        raise ResourceNotFound("note://x")

    async with client(gateway(find)) as mcp:
        status, error = await mcp.error("tools/call", {"name": "find"})
    assert (status, error["code"], error["data"]) == (400, -32602, {"uri": "note://x"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"a": 1}, '"b" is a required property'),
        ({"a": 1, "b": "x"}, 'arguments.b: "x" is not of type "integer"'),
        ({"a": 1, "b": 2, "c": 3}, "c"),
        ({}, "required"),
    ],
)
async def test_arguments_that_do_not_fit_are_a_tool_error_that_says_how(
    mcp: Client, arguments: dict[str, Any], says: str
) -> None:
    result = await mcp.call("add", arguments)
    assert result["isError"]
    assert says in result["content"][0]["text"]


async def test_a_tool_is_not_run_with_arguments_that_do_not_fit() -> None:
    ran = []

    @tool
    async def run(count: int) -> str:
        ran.append(count)
        return ""

    async with client(gateway(run)) as mcp:
        await mcp.call("run", {"count": "one"})
        await mcp.call("run", {"count": 1})
    assert ran == [1]


def sleeps_async() -> Any:
    @tool
    async def sleepy() -> str:
        await asyncio.sleep(600)
        return "never"

    return sleepy


let_go = threading.Event()


def sleeps_in_a_thread() -> Any:
    @tool
    def sleepy() -> str:
        let_go.wait(60)
        return "never"

    return sleepy


@pytest.mark.parametrize("make", [sleeps_async, sleeps_in_a_thread])
async def test_a_call_that_outlives_its_deadline_is_a_tool_error(make: Callable[[], Any]) -> None:
    let_go.clear()
    async with client(gateway(make(), limits={"call_timeout_s": 0.05})) as mcp:
        result = await mcp.call("sleepy")
        let_go.set()
    assert result["isError"]
    assert re.fullmatch(
        r"The call did not finish within 0\.0[1-5] s \(limits\.call_timeout_s\)"
        r"|No time was left for the call when it began; .*",
        result["content"][0]["text"],
    )


async def test_a_resource_that_outlives_its_deadline_is_an_internal_error() -> None:
    @resource("slow://one")
    async def slow() -> str:
        await asyncio.sleep(600)
        return "never"

    async with client(gateway(slow, limits={"call_timeout_s": 0.03})) as mcp:
        status, error = await mcp.error("resources/read", {"uri": "slow://one"})
    assert (status, error["code"]) == (200, -32603)


async def leaves_async() -> str:
    sys.exit(3)


def leaves_in_a_thread() -> str:
    sys.exit("goodbye")


async def waits_for_something_cancelled() -> str:
    task = asyncio.create_task(asyncio.sleep(5))
    task.cancel()
    await task
    return "never"


async def says_that_it_was_cancelled() -> str:
    raise asyncio.CancelledError


class Panic(BaseException):
    """As `pyo3_runtime.PanicException`, which a panic of an extension in Rust raises."""


class WithoutText(Exception):
    def __str__(self) -> str:
        return str(self.args[7])


async def panics_async() -> str:
    raise Panic("index out of bounds")


def panics_in_a_thread() -> str:
    raise Panic("index out of bounds")


async def panics_in_a_branch(ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(panics_async())
    return "never"


async def raises_what_has_no_text() -> str:
    raise WithoutText


async def fails_in_a_group() -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
        raise ValueError("one of them")


ENDS: dict[Any, str] = {
    leaves_async: "RuntimeError: the handler called sys.exit(3)",
    leaves_in_a_thread: "",
    waits_for_something_cancelled: "the awaited task or future was cancelled",
    says_that_it_was_cancelled: "",
    panics_async: "",
    panics_in_a_thread: "",
    panics_in_a_branch: "",
    raises_what_has_no_text: "",
    fails_in_a_group: "one of them",
}
"""Functions, and the cause that the log names beside each."""


@pytest.mark.parametrize("function", ENDS, ids=lambda function: function.__name__)
async def test_a_handler_can_neither_end_the_server_nor_pass_for_cancelled(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(gateway(tool(function), add)) as mcp:
        result = await mcp.call(function.__name__)
        assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
    assert result["isError"]
    text = result["content"][0]["text"]
    traceback = only_reference(text, caplog)
    assert function.__name__ in traceback
    assert ENDS[function] in traceback
    assert not ENDS[function] or ENDS[function] not in text


class Opaque:
    """Something that has no JSON."""

    def __repr__(self) -> str:
        return "Opaque()"


def circle() -> list[Any]:
    """A list that holds itself."""
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    "value",
    [Opaque(), {"a": Opaque()}, [Opaque], circle(), {Opaque(): 1}, b"\xff\xfe", {"a": b"\xff"}],
    ids=repr,
)
async def test_a_tool_that_returns_what_is_not_json_is_a_tool_error(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def strange() -> Any:
        return value

    async with client(gateway(strange)) as mcp:
        result = await mcp.call("strange")
    assert result["isError"]
    assert "UnusableReturn" in only_reference(result["content"][0]["text"], caplog)


@pytest.mark.parametrize(
    "value", [2**70, -(2**64), 1e300, "\ud800", "\u2028\x00\x7f", decimal.Decimal("1.5"), {1: 2}]
)
async def test_a_tool_may_return_what_json_can_hold_only_just(value: Any) -> None:
    @tool
    async def strange() -> Any:
        return {"value": value}

    async with client(gateway(strange)) as mcp:
        result = await mcp.call("strange")
    assert "isError" not in result
    assert list(result["structuredContent"]) == ["value"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_a_number_that_is_not_json_does_not_leave_as_one(value: float) -> None:
    @tool
    async def strange() -> dict[str, float]:
        return {"value": value}

    async with client(gateway(strange)) as mcp:
        response = await mcp.post("tools/call", {"name": "strange"})
    assert "NaN" not in response.text
    assert "Infinity" not in response.text


@pytest.mark.parametrize("task", ["forbidden", "required"])
async def test_what_a_tool_returns_that_is_no_result_is_the_tool_s_failure(
    task: TaskMode, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(task=task)
    async def strange() -> ToolResult:
        return ToolResult(meta={"x": Opaque()})

    async with Gateway(strange) as mcp:
        result = await mcp.call("strange")
    assert result.is_error
    assert "Opaque" not in str(result.value)
    assert "Opaque" in only_reference(str(result.value), caplog)


async def test_a_result_that_cannot_be_written_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def strange() -> ToolResult:
        return ToolResult([TextContent("x", meta={"x": Opaque()})])

    async with client(gateway(strange)) as mcp:
        status, error = await mcp.error("tools/call", {"name": "strange"})
    assert (status, error["code"]) == (200, -32603)
    assert "Opaque" not in error["message"]
    assert "Opaque" in only_reference(error["message"], caplog)


async def test_a_resource_that_returns_what_is_not_json_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @resource("strange://one")
    async def strange() -> Any:
        return Opaque()

    @resource("strange://two")
    async def stranger() -> TextResourceContents:
        return TextResourceContents("strange://two", "x", meta={"x": Opaque()})

    async with client(gateway(strange, stranger)) as mcp:
        for uri in ("strange://one", "strange://two"):
            status, error = await mcp.error("resources/read", {"uri": uri})
            assert (status, error["code"]) == (200, -32603)
            assert any(error["message"].endswith(reference) for reference in references(caplog))


async def test_a_failure_leaves_nothing_behind_that_the_next_call_meets(mcp: Client) -> None:
    for _ in range(20):
        await mcp.call("crash")
        assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
