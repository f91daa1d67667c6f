"""Calls of tools that cannot suspend: they run without the engine, and keep every rule of a call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, tool
from roundgate.replay import WATCH, Run, StepWatch
from tests.support import lambdas
from tests.support.asgi import Client, client, gateway, stoppable
from tests.support.audit import KEY, records
from tests.support.older_servers import call, replica, said
from tests.support.rounds import CAPABILITIES, accept, ask, retry
from tests.support.scripted import scripted
from tests.support.services import answer, gateway_to, service
from tests.support.upstreams import Upstream

ran: list[Any] = []


@tool(read_only=True)
async def plain(n: int = 1) -> int:
    """Return a number."""
    ran.append(n)
    return n


@tool(read_only=True)
def threaded(n: int = 1) -> int:
    """Return a number, from a thread."""
    ran.append(n)
    return n


@tool(read_only=True)
async def with_context(ctx: Context, n: int = 1) -> int:
    """Return a number, with a context."""
    return n


@tool(task="optional")
async def long_work(n: int = 1) -> int:
    """Return a number, perhaps as a task."""
    return n


@tool
async def slow(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "slept"


@tool
async def converts() -> None:
    """Wait as libraries do that raise TimeoutError instead of a cancellation."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise TimeoutError from None


@tool
async def converts_with_context(ctx: Context) -> None:
    """Wait likewise, with a context."""
    await converts()


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@tool
async def remembers() -> str:
    """Return the tenant of the context, and set another."""
    await asyncio.sleep(0)
    before = tenant.get()
    tenant.set("acme")
    return before


class Runs(StepWatch):
    """Counts the runs of the engine."""

    def __init__(self) -> None:
        self.count = 0

    def run_ended(self, run: Run) -> None:
        self.count += 1


@contextmanager
def counted() -> Iterator[Runs]:
    """Counts the runs within the block."""
    watch = Runs()
    token = WATCH.set(watch)
    try:
        yield watch
    finally:
        WATCH.reset(token)


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@pytest.mark.parametrize(
    ("name", "count"), [("plain", 0), ("threaded", 0), ("with_context", 1), ("long_work", 1)]
)
async def test_only_a_tool_that_may_suspend_runs_in_the_engine(name: str, count: int) -> None:
    with counted() as runs:
        async with client(gateway(plain, threaded, with_context, long_work)) as mcp:
            assert await mcp.text(name, {"n": 7}) == "7"
    assert runs.count == count


@pytest.mark.parametrize(
    ("settings", "count"), [({}, 0), ({"method": "POST", "interactive": True}, 1)]
)
async def test_a_tool_of_a_service_runs_without_the_engine_unless_it_may_ask(
    settings: dict[str, Any], count: int
) -> None:
    with counted() as runs:
        async with service(answer(b'{"ok":true}')) as up, gateway_to(up.url, settings) as mcp:
            assert (await mcp.call("tool"))["structuredContent"] == {"ok": True}
    assert runs.count == count


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 0), ({"asynchronous": True}, 0), ({"interactive": True}, 1), ({"task": "optional"}, 1)],
)
async def test_a_function_of_aws_lambda_runs_without_the_engine_unless_it_may_suspend(
    settings: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool_of_lambda = {"input_schema": {"type": "object"}, **settings}
    with counted() as runs:
        async with service(lambdas.said({"ok": True})) as functions:
            lambdas.use(monkeypatch, functions.url)
            async with lambdas.gateway_with(tmp_path, lambdas.entry(tool_of_lambda)) as mcp:
                assert "isError" not in await mcp.call("tool")
    assert runs.count == count


async def test_an_approval_of_a_function_of_aws_lambda_is_asked_before_it_is_invoked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = lambdas.entry({"input_schema": {"type": "object"}}, approve="always")
    async with service(lambdas.said({"ok": True})) as functions:
        lambdas.use(monkeypatch, functions.url)
        async with lambdas.gateway_with(tmp_path, entry) as mcp:
            await ask(mcp, "tools/call", {"name": "tool", "arguments": {}})
        assert functions.requests == []


@pytest.mark.parametrize(
    "override", [{"timeout_s": 5.0}, {"once": True}, {"max_result": 200}, {"task": "optional"}]
)
async def test_settings_that_need_the_engine_get_it(override: dict[str, Any]) -> None:
    with counted() as runs:
        async with client(gateway(plain, backend={"override": {"plain": override}})) as mcp:
            assert await mcp.text("plain", {"n": 7}) == "7"
    assert runs.count == 1


async def test_an_approval_is_asked_before_the_tool_runs() -> None:
    params = {"name": "plain", "arguments": {"n": 7}}
    async with client(gateway(plain, backend={"approve": "always"})) as mcp:
        asked = await ask(mcp, "tools/call", params)
        assert ran == []
        again = retry(params, asked, approve=accept(approve=True))
        done = await mcp.result("tools/call", again, clientCapabilities=CAPABILITIES)
        assert done["content"][0]["text"] == "7"
    assert ran == [7]


async def test_a_view_that_requires_approval_asks_for_it() -> None:
    views = [{"name": "careful", "override": {"plain": {"approve": "always"}}}]
    async with client(gateway(plain, views=views)) as mcp:
        assert await mcp.text("plain", {"n": 1}) == "1"
        careful = Client(mcp.http, "/careful/mcp")
        await ask(careful, "tools/call", {"name": "plain", "arguments": {"n": 2}})
    assert ran == [1]


@pytest.mark.parametrize("name", ["plain", "threaded"])
async def test_rules_about_arguments_see_what_the_tool_gets(name: str) -> None:
    rule = {"allow": {"tool": name, "arguments": {"properties": {"n": {"maximum": 5}}}}}
    with counted() as runs:
        async with client(gateway(plain, threaded, policy=[rule])) as mcp:
            assert await mcp.text(name, {"n": 5}) == "5"
            refused = await mcp.call(name, {"n": 6})
            assert refused["isError"]
            assert "does not allow" in refused["content"][0]["text"]
    assert (ran, runs.count) == ([5], 0)


@pytest.mark.parametrize("limit_s", [0.05, 0.3])
async def test_a_call_ends_at_its_deadline(limit_s: float) -> None:
    async with client(gateway(slow, limits={"call_timeout_s": limit_s})) as mcp:
        late = await mcp.call("slow", {"seconds": 60})
        assert late["isError"]
        told = re.search(r"([\d.]+) s \(limits\.call_timeout_s\)", late["content"][0]["text"])
        assert told is not None
        assert 0 < float(told[1]) <= limit_s  # what was left when the function began
        assert await mcp.text("slow", {"seconds": 0}) == "slept"


@pytest.mark.parametrize("function", [converts, converts_with_context])
async def test_a_deadline_is_one_also_where_its_cancellation_is_converted(function: Any) -> None:
    async with client(gateway(function, limits={"call_timeout_s": 0.05})) as mcp:
        late = await mcp.call(function.__name__)
        assert "(limits.call_timeout_s)" in late["content"][0]["text"]


async def test_a_variable_that_a_tool_sets_is_not_seen_by_the_next_call() -> None:
    """Pipelined requests and the calls of a batch are served in one context."""
    async with client(gateway(remembers)) as mcp:
        assert [await mcp.text("remembers"), await mcp.text("remembers")] == ["nobody", "nobody"]


async def test_the_audit_log_has_the_call_before_its_end(tmp_path: Path) -> None:
    audit = {"directory": str(tmp_path), "key": KEY}
    async with stoppable(gateway(plain, audit=audit)) as app, client(app) as mcp:
        await mcp.text("plain", {"n": 3})
        await mcp.call("plain", {"n": "three"})
    called, ended, other, refused = records(tmp_path, "called", "ended")
    assert [called["event"], ended["event"]] == ["called", "ended"]
    assert (called["round"], ended["outcome"]) == (1, "ok")
    assert (other["event"], refused["outcome"]) == ("called", "tool_error")
    assert ran == [3]


async def test_a_tool_of_an_older_server_that_may_ask_needs_no_engine_unless_it_asks(
    tmp_path: Path,
) -> None:
    async with scripted(Upstream(session="s1")) as server:
        with counted() as runs:
            backend = {"kind": "mcp", "name": "up", "url": server.url}
            async with replica(tmp_path, backend) as app, client(app) as mcp:
                assert said(await call(mcp, "t")) == "done"
    assert runs.count == 0
