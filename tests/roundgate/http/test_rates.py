"""Limits on the calls of each caller: which requests count, for which caller, at which limit, and
the answers to requests beyond a limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from roundgate import Context, prompt, resource, tool
from roundgate.auth import Principal
from roundgate.errors import ConfigError
from roundgate.methods import table
from roundgate.methods.parts import Kit, Method, Methods
from roundgate.methods.rates import Rates, Use
from roundgate.settings import RateConfig
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import Client, built, client, config_file, config_of
from tests.support.clocks import FixedClock
from tests.support.issuer import ISSUER, bearer, gateway_for, token
from tests.support.rounds import CAPABILITIES, KEYS, Name, accept, ask, retry
from tests.support.sessions import calling, opened, request
from tests.support.task_client import tasked
from tests.support.telemetry import recorded
from tests.support.upstreams import until

runs: list[str] = []


@tool(read_only=True)
def look(place: str = "here") -> str:
    """Look."""
    runs.append("look")
    return f"looked {place}"


@tool
async def greet(ctx: Context) -> str:
    """Asks for a name."""
    who = await ctx.elicit("who", "Who are you?", Name)
    runs.append("greet")
    return f"Hello {who.name}"


@tool(task="required")
async def dig(ctx: Context) -> str:
    """A task that asks."""
    await ctx.continue_as_task()
    return f"dug {(await ctx.elicit('who', 'Who are you?', Name)).name}"


@prompt
def greeting(name: str) -> str:
    """Greets."""
    return f"Greet {name}"


@resource("note://one")
def note() -> str:
    """A note."""
    return "one"


ALL = (look, greet, greeting, note)
LOOK = {"name": "look", "arguments": {}}


def now() -> FixedClock:
    """A clock that stands still, at a time at which tokens are valid."""
    return FixedClock(int(time.time() * 1_000))


def app_with(rate: dict[str, Any], clock: FixedClock | None = None, **sections: Any) -> FastAPI:
    return built(config_file(*ALL, rate=rate, **sections), clock=clock or now())


@asynccontextmanager
async def serving(
    rate: dict[str, Any], clock: FixedClock | None = None, **sections: Any
) -> AsyncIterator[Client]:
    async with client(app_with(rate, clock, **sections)) as mcp:
        yield mcp


async def allowed(mcp: Client, params: dict[str, Any] = LOOK, **more: Any) -> int:
    """The number of calls until one is refused, at most 50."""
    for count in range(50):
        if (await mcp.post("tools/call", params, **more)).status_code == 429:
            return count
    return 50


async def test_a_call_beyond_the_limit_is_answered_with_429_and_when_to_try_again() -> None:
    clock = now()
    async with serving({"calls_per_minute": 6}, clock) as mcp:
        assert await allowed(mcp) == 6
        runs.clear()
        response = await mcp.post("tools/call", LOOK)
        assert response.status_code == 429
        assert response.headers["retry-after"] == "10"
        assert wire.valid_error(response) == {
            "code": -32600,
            "message": "Too many calls: the limit is 6 a minute; try again in 10 s",
            "data": {"retryAfter": 10},
        }
        assert response.json()["id"] == 1
        assert runs == []
        clock.skip(9.9)
        assert await allowed(mcp) == 0
        clock.skip(0.1)
        assert await allowed(mcp) == 1
        clock.skip(3_600)
        assert await allowed(mcp) == 6


async def test_without_limits_nothing_counts() -> None:
    for rate in ({}, {"shared": True, "tools": {"*": {}}}):
        async with serving(rate) as mcp:
            assert await allowed(mcp) == 50


async def test_requests_that_run_code_count_and_others_do_not() -> None:
    counted: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", LOOK),
        ("tools/call", {"name": "unknown"}),
        ("prompts/get", {"name": "greeting", "arguments": {"name": "Ann"}}),
        ("resources/read", {"uri": "note://one"}),
        ("resources/read", {"uri": "note://unknown"}),
    ]
    free = ["server/discover", "tools/list", "prompts/list", "resources/list"]
    async with serving({"calls_per_minute": len(counted)}) as mcp:
        for method, params in counted:
            for unlimited in free:
                await mcp.result(unlimited)
            assert (await mcp.post(method, params)).status_code in (200, 400)
        for method, params in counted:
            assert (await mcp.post(method, params)).status_code == 429
        for unlimited in free:
            await mcp.result(unlimited)


@pytest.mark.parametrize(
    ("rate", "problem"),
    [
        ({"tools": {"l*": {}, "lok": {"concurrent": 1}}}, "no tool is called 'lok'"),
        ({"scopes": {"gold": {"concurrent": 1}}}, "rate.scopes needs auth"),
        ({"burst": 5}, "burst needs calls_per_minute"),
        ({"calls_per_minute": 0}, "rate.calls_per_minute"),
    ],
)
def test_a_limit_that_would_not_apply_is_a_problem(rate: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        app_with(rate)


async def test_each_caller_has_limits_of_its_own() -> None:
    async with gateway_for(*ALL, clock=now(), rate={"calls_per_minute": 3}) as (mcp, _):
        callers: list[dict[str, Any]] = [
            {"sub": "ann"},
            {"sub": "bob"},
            {"client_id": "web"},
            {"client_id": None},
        ]
        for claims in callers:
            assert await allowed(mcp, headers=bearer(token(**claims))) == 3
        again = bearer(token(sub="ann", jti="another", scope="more"))
        assert await allowed(mcp, headers=again) == 0, "another token, the same caller"


@pytest.mark.parametrize(
    ("sub", "client_id"), [("127.0.0.1", ""), ("local", ""), ("ann cli", ""), ("annc", "li")]
)
async def test_no_subject_shares_the_limit_of_another(sub: str, client_id: str) -> None:
    async with gateway_for(*ALL, clock=now(), rate={"calls_per_minute": 3}) as (mcp, _):
        await allowed(mcp, headers=bearer(token(sub="ann", client_id="cli")))
        assert await allowed(mcp, headers=bearer(token(sub=sub, client_id=client_id))) == 3


async def test_without_authentication_the_address_is_the_caller() -> None:
    app = app_with({"calls_per_minute": 3})

    async def allowed_from(address: str) -> int:
        transport = httpx.ASGITransport(app, client=(address, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await allowed(Client(http))

    assert await allowed_from("127.0.0.1") == 3
    assert await allowed_from("127.0.0.2") == 3
    assert await allowed_from("2001:db8::1") == 3
    assert await allowed_from("2001:db8::2") == 0, "one customer has a /64"
    assert await allowed_from("::ffff:127.0.0.1") == 0
    assert await allowed_from("") == 3, "a Unix socket"


async def test_with_authentication_the_address_does_not_matter() -> None:
    async with gateway_for(*ALL, clock=now(), rate={"calls_per_minute": 3}) as (mcp, _):
        forwarded: dict[str, str | None] = {"x-forwarded-for": "203.0.113.7"}
        assert await allowed(mcp, headers=bearer(token())) == 3
        assert await allowed(mcp, headers={**bearer(token()), **forwarded}) == 0


async def test_the_tools_of_a_row_share_its_limit_besides_the_general_one() -> None:
    rate = {"calls_per_minute": 8, "tools": {"l*": {"calls_per_minute": 3}}}
    async with serving(rate) as mcp:
        assert await allowed(mcp) == 3
        _, error = await mcp.error("tools/call", LOOK)
        assert error["message"].startswith(
            "Too many calls: the limit is 3 a minute for look and tools that share its limit; "
        )
        assert await allowed(mcp, {"name": "other"}) == 5, "refused calls count nowhere"


async def test_a_scope_replaces_the_general_limit() -> None:
    rate = {
        "calls_per_minute": 3,
        "scopes": {"gold": {"calls_per_minute": 7}, "all": {}, "silver": {"calls_per_minute": 5}},
    }
    async with gateway_for(*ALL, clock=now(), rate=rate) as (mcp, _):
        for scope, most in (("", 3), ("silver gold", 7), ("silver", 5), ("silver all", 50)):
            caller = bearer(token(sub=f"with {scope}", scope=scope))
            assert await allowed(mcp, headers=caller) == most


async def test_a_call_through_search_counts_once_at_the_tool_that_it_names() -> None:
    rate = {"calls_per_minute": 9, "tools": {"look": {"calls_per_minute": 4}}}
    through = {"name": "call_tool", "arguments": {"name": "look"}}
    async with serving(rate, search={}) as mcp:
        await mcp.call("look")
        assert await allowed(mcp, through) == 3
        search = {"name": "search_tools", "arguments": {"query": "look"}}
        assert await allowed(mcp, search) == 5


async def test_a_view_is_no_way_around_a_limit() -> None:
    rate = {"calls_per_minute": 9, "tools": {"own__look": {"calls_per_minute": 4}}}
    views = [
        {"name": "renamed", "override": {"own__look": {"name": "see"}}},
        {"name": "bare", "bare_names": True},
        {"name": "both", "bare_names": True, "override": {"own__look": {"name": "own__see"}}},
    ]
    backend = {"name": "own", "prefix": None}
    async with serving(rate, views=views, backend=backend) as mcp:
        await mcp.call("own__look")
        for view, name in (("renamed", "see"), ("bare", "look"), ("both", "see")):
            await Client(mcp.http, f"/{view}/mcp").call(name)
        for view, name in (("renamed", "see"), ("bare", "look"), ("both", "see")):
            assert await allowed(Client(mcp.http, f"/{view}/mcp"), {"name": name}) == 0
        assert await allowed(Client(mcp.http, "/bare/mcp"), {"name": "greet"}) == 5


async def test_a_retry_does_not_count_as_another_call() -> None:
    async with serving({"calls_per_minute": 2}) as mcp:
        params = {"name": "greet", "arguments": {}}
        asked = [await ask(mcp, "tools/call", params, **CAPABILITIES) for _ in range(2)]
        assert (await mcp.post("tools/call", LOOK)).status_code == 429
        for state in asked:
            again = retry(params, state, who=accept(name="Ann"))
            result = await mcp.result("tools/call", again, clientCapabilities=CAPABILITIES)
            assert result["content"][0]["text"] == "Hello Ann"


async def test_a_state_that_is_sent_again_and_again_is_limited_too() -> None:
    async with serving({"calls_per_minute": 4, "tools": {"gr*": {"calls_per_minute": 3}}}) as mcp:
        params = {"name": "greet", "arguments": {}}
        asked = await ask(mcp, "tools/call", params, **CAPABILITIES)
        again = retry(params, asked, who=accept(name="Ann"))
        runs.clear()
        assert await allowed(mcp, again, clientCapabilities=CAPABILITIES) == 3
        assert runs == ["greet"] * 3
        forged = {**LOOK, "requestState": "forged"}
        assert await allowed(mcp, forged) == 1
        assert await allowed(mcp) == 3, "calls have their own tokens"


async def test_no_limit_refuses_an_answer() -> None:
    begun, gate = asyncio.Semaphore(0), asyncio.Event()

    @tool
    async def hold() -> str:
        """Waits."""
        begun.release()
        await gate.wait()
        return "held"

    row = {"calls_per_minute": 3, "concurrent": 1}
    async with client(built(config_file(greet, hold, rate={**row, "tools": {"*": row}}))) as mcp:
        params = {"name": "greet", "arguments": {}}
        asked = await ask(mcp, "tools/call", params, **CAPABILITIES)
        again = retry(params, asked, who=accept(name="Ann"))
        other = retry(params, await ask(mcp, "tools/call", params, **CAPABILITIES))
        for _ in range(3):  # asks the same question, and uses up the retries
            await mcp.post("tools/call", other, clientCapabilities=CAPABILITIES)
        assert await allowed(mcp, other, clientCapabilities=CAPABILITIES) == 0
        held = asyncio.create_task(mcp.call("hold"))
        await begun.acquire()
        result = await mcp.result("tools/call", again, clientCapabilities=CAPABILITIES)
        assert result["content"][0]["text"] == "Hello Ann"
        assert await allowed(mcp, again, clientCapabilities=CAPABILITIES) == 0
        gate.set()
        await held


async def test_a_refusal_names_the_tool_as_its_view_does() -> None:
    rate = {"tools": {"own__look": {"calls_per_minute": 1}}}
    views = [{"name": "bare", "bare_names": True}]
    async with serving(rate, views=views, backend={"name": "own", "prefix": None}) as mcp:
        bare = Client(mcp.http, "/bare/mcp")
        await bare.call("look")
        _, refused = await bare.error("tools/call", LOOK)
    assert "the limit is 1 a minute for look;" in refused["message"]


async def test_answers_and_polls_of_tasks_do_not_count(tmp_path: Path) -> None:
    async with tasked(tmp_path, dig, rate={"calls_per_minute": 1}) as ann:
        task_id = await ann.begin("dig")
        for _ in range(3):
            await ann.get(task_id)
        await ann.answer(task_id, {key: accept(name="Ann") for key in await ann.asked(task_id)})
        assert await ann.text(task_id) == "dug Ann"


async def test_a_caller_has_no_more_calls_at_once_than_allowed() -> None:
    begun, gate = asyncio.Semaphore(0), asyncio.Event()

    @tool
    async def hold(by: str = "") -> str:
        """Waits."""
        begun.release()
        await gate.wait()
        return "held"

    rate = {"concurrent": 2, "tools": {"look": {"concurrent": 1}}}
    async with gateway_for(hold, look, clock=now(), rate=rate) as (mcp, _), AsyncExitStack() as end:
        end.callback(gate.set)
        ann, bob = bearer(token(sub="ann")), bearer(token(sub="bob"))
        held = [asyncio.create_task(mcp.call("hold", headers=ann)) for _ in range(2)]
        held.append(asyncio.create_task(mcp.call("hold", headers=bob)))
        for _ in held:
            await begun.acquire()
        response = await mcp.post("tools/call", LOOK, headers=ann)
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert wire.valid_error(response)["message"] == (
            "Too many calls: the limit is 2 at once; try again in 1 s"
        )
        assert (await mcp.post("tools/call", LOOK, headers=bob)).status_code == 200
        held[0].cancel()
        await asyncio.gather(held[0], return_exceptions=True)
        assert (await mcp.post("tools/call", LOOK, headers=ann)).status_code == 200
        gate.set()
        await asyncio.gather(*held, return_exceptions=True)
        for _ in range(3):
            assert (await mcp.post("tools/call", LOOK, headers=ann)).status_code == 200


async def test_a_once_call_keeps_its_place_while_it_runs_on_without_its_client() -> None:
    begun, gate, ended = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()

    @tool(once=True, read_only=True)
    async def pay(ctx: Context) -> str:
        """Asks, then pays."""
        await ctx.elicit("who", "Who are you?", Name)
        begun.release()
        await gate.wait()
        ended.set()
        return "paid"

    app = built(config_file(pay, look, rate={"concurrent": 1}), clock=now())
    async with client(app) as mcp:
        params = {"name": "pay", "arguments": {}}
        again = retry(params, await ask(mcp, "tools/call", params), who=accept(name="Ann"))
        running = asyncio.create_task(mcp.post("tools/call", again))
        await begun.acquire()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await mcp.post("tools/call", LOOK)).status_code == 429
        gate.set()
        await ended.wait()

        async def status() -> int:
            return (await mcp.post("tools/call", LOOK)).status_code

        await until(200, status)


UNCOUNTED = {
    "server/discover": "the same answer for all callers",
    "tools/list": "in memory",
    "prompts/list": "in memory",
    "resources/list": "in memory",
    "resources/templates/list": "in memory",
    "skills/list": "in memory",
    "subscriptions/listen": "bounded by http.max_streams_per_caller",
    "tasks/get": "bounded by the calls that made the tasks",
    "tasks/update": "no limit may lose a user's answer",
    "tasks/cancel": "bounded by the calls that made the tasks",
    "tools/call": "counts at its tool",
}


def test_every_method_counts_unless_there_is_a_reason() -> None:
    tables: list[Mapping[str, Method[Any]]] = []

    class Table(Methods):
        def __init__(self, rows: Mapping[str, Method[Any]], kit: Kit) -> None:
            tables.append(rows)
            super().__init__(rows, kit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "Methods", Table)
        app_with({"calls_per_minute": 1})
    assert tables
    for rows in tables:
        assert {name for name, method in rows.items() if not method.counts} == UNCOUNTED.keys()


async def test_methods_of_skills_count(tmp_path: Path) -> None:
    (tmp_path / "hi").mkdir()
    (tmp_path / "hi/SKILL.md").write_text("---\nname: hi\ndescription: Greets.\n---\nSay hi.")
    sections = {"backends": [{"kind": "skills", "name": "s", "path": str(tmp_path)}]}
    file = config_of({**sections, "rate": {"calls_per_minute": 2}})
    async with client(built(file, clock=now())) as mcp:
        for method in ("skills/get", "resources/directory/read"):
            assert (await mcp.post(method, {"uri": "skill://none"})).status_code == 400
        for method in ("skills/get", "resources/directory/read"):
            assert (await mcp.post(method, {"uri": "skill://none"})).status_code == 429


async def test_a_client_with_a_session_gets_an_error_that_does_not_end_its_connection() -> None:
    app = app_with({"calls_per_minute": 1})
    session = await opened(app)
    await session.send(app, calling("look"))
    response = await session.send(app, calling("look", request_id=7))
    assert response.status_code == 200, "Python's SDK drops the connection after 429"
    assert "retry-after" not in response.headers
    assert response.json() == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {
            "code": -32600,
            "message": "Too many calls: the limit is 1 a minute; try again in 60 s",
            "data": {"retryAfter": 60},
        },
    }
    assert (await session.send(app, request("tools/list"))).json()["result"]["tools"]


async def test_each_request_of_a_batch_counts() -> None:
    app = app_with({"calls_per_minute": 3})
    session = await opened(app, "2025-03-26")
    batch = [calling("look", number) for number in range(5)] + [request("ping", request_id=5)]
    answers = wire.events((await session.send(app, batch)).text)
    assert ["result" in answer for answer in answers] == [True] * 3 + [False] * 2 + [True]
    assert [answer["id"] for answer in answers] == list(range(6))


async def test_only_the_first_round_of_a_call_in_a_session_counts() -> None:
    app = app_with({"calls_per_minute": 1})
    session = await opened(app)
    async with session.stream(app, calling("greet", request_id="call")) as stream:
        question = await stream.asked()
        async with session.stream(app, calling("look", request_id="other")) as other:
            assert b"Too many calls" in await other.body()
        assert (await session.answer(app, question, accept(name="Ann"))).status_code == 202
        (response,) = await stream.over()
    assert response["result"]["content"][0]["text"] == "Hello Ann"


async def test_a_session_counts_for_the_same_caller_as_other_requests() -> None:
    clock = now()
    async with gateway_for(*ALL, clock=clock, rate={"calls_per_minute": 2}) as (mcp, _):
        caller = bearer(token())
        authorized = {name: str(value) for name, value in caller.items()}
        await mcp.call("look", headers=caller)
        opening = await mcp.http.post(
            "/mcp",
            json=request(
                "initialize",
                {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}},
            ),
            headers={"accept": "application/json, text/event-stream", **authorized},
        )
        session = {"mcp-session-id": opening.headers["mcp-session-id"], **authorized}
        session |= {"accept": "application/json, text/event-stream"}
        first, second = [
            (await mcp.http.post("/mcp", json=calling("look"), headers=session)).json()
            for _ in range(2)
        ]
        assert "result" in first
        assert "error" in second


async def test_replicas_with_one_store_count_together(tmp_path: Path) -> None:
    clock = now()
    using = Settings(store=f"sqlite:///{tmp_path}/shared.sqlite3", state_keys=KEYS)
    rate = {"calls_per_minute": 12, "shared": True, "tools": {"look": {"calls_per_minute": 10}}}
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(
                client(built(config_file(*ALL, rate=rate), using, clock=clock))
            )
            for _ in range(3)
        ]
        assert sum(await asyncio.gather(*map(allowed, replicas))) == 10
        assert sum([await allowed(mcp, {"name": "other"}) for mcp in replicas]) == 2
        clock.skip(30)
        assert sum(await asyncio.gather(*map(allowed, replicas))) == 5


async def test_the_log_names_a_caller_once_a_minute_and_the_metric_counts_each_refusal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = now()
    rate = {"calls_per_minute": 1, "tools": {"gr*": {"concurrent": 1}}}

    def told() -> list[dict[str, Any]]:
        found = [
            record.__dict__["fields"]
            for record in caplog.records
            if record.message == "a caller makes too many calls"
        ]
        caplog.clear()
        return found

    with recorded() as seen:
        async with gateway_for(*ALL, clock=clock, rate=rate) as (mcp, _):
            for subject in ("ann", "bob"):
                for _ in range(5):
                    await mcp.post("tools/call", LOOK, headers=bearer(token(sub=subject)))
            assert told() == [
                {
                    "row": "callers",
                    "limit": "1 a minute",
                    "subject": subject,
                    "issuer": ISSUER,
                    "client": "cli",
                }
                for subject in ("ann", "bob")
            ]
            clock.skip(60)
            for _ in range(3):
                await mcp.post("tools/call", LOOK, headers=bearer(token(exp=4_000_000_000)))
            assert [one["subject"] for one in told()] == ["ann"]
        points = seen.points("roundgate.calls.refused")
    assert [(dict(point.attributes), point.value) for point in points] == [
        ({"limit": "callers"}, 10)
    ]


async def test_the_log_line_of_a_refused_call_through_search_names_its_tool(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with serving({"calls_per_minute": 1}, search={}) as mcp:
        through = {"name": "call_tool", "arguments": {"name": "look"}}
        await allowed(mcp, through)
    fields = [
        record.__dict__["fields"] for record in caplog.records if record.name == "roundgate.request"
    ]
    assert (fields[-1]["name"], fields[-1]["through"]) == ("look", "call_tool")
    assert (fields[-1]["outcome"], fields[-1]["code"]) == ("error", -32600)


async def test_no_caller_makes_a_metric_grow_with_names_of_refused_calls() -> None:
    with recorded() as seen:
        async with serving({"calls_per_minute": 1}) as mcp:
            await mcp.call("look")
            for number in range(3):
                unknown = {"name": f"unknown{number}", "arguments": {}}
                assert (await mcp.post("tools/call", unknown)).status_code == 429
        names = {
            point.attributes.get("gen_ai.tool.name")
            for point in seen.points("mcp.server.operation.duration")
        }
    assert names == {"look", None}


async def test_limits_that_a_reload_removes_have_no_uses() -> None:
    unused: Any = None
    rates = Rates(unused, FixedClock(), unused)
    limits = rates.limits(RateConfig(calls_per_minute=5))
    assert limits is not None
    call: Any = SimpleNamespace(
        is_counted=True, principal=Principal("issuer", "ann"), continued=None
    )

    uses: list[Use] = []

    async def serve(context: Any, params: Any) -> Any:
        uses.extend(rates.uses(9))

    await limits.serve(call, unused, serve)
    (use,) = uses
    assert use.row == "callers"
    assert rates.limits(RateConfig()) is None
    assert rates.uses(9) == []
