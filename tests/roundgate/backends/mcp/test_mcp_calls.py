"""Calls through the gateway to a server that answers as the test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from roundgate.backends.mcp import backend as mcp_backend
from roundgate.backends.mcp import calls
from roundgate.protocol.apps import DECLARED
from tests.support import wire
from tests.support.asgi import Client, Exchange
from tests.support.asgi import client as client_of
from tests.support.clocks import SkippingClock, pass_time
from tests.support.rounds import CAPABILITIES, accept, ask, retry, valid_input_required
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    Scripted,
    error,
    event,
    http,
    notice,
    result,
    result_event,
    scripted,
    text,
)
from tests.support.task_client import DECLARED as TASKS
from tests.support.task_client import TaskClient, valid_created
from tests.support.upstreams import Upstream, app_of, entry, fronted, gateway_of, tool, until

META = "io.modelcontextprotocol/"


def sent(server: Scripted) -> Asked:
    """The last call that reached the server."""
    return [one for one in server.asked if one.rpc == "tools/call"][-1]


def said(answer: dict[str, Any]) -> str:
    """The text of a tool error."""
    assert answer["isError"], answer
    words: str = answer["content"][0]["text"]
    return words


async def test_a_call_beyond_a_limit_does_not_reach_the_server() -> None:
    rate = {"tools": {"up__*": {"calls_per_minute": 1, "burst": 3}}}
    async with fronted(Upstream(), sections={"rate": rate}) as (server, mcp):
        calls = [await mcp.post("tools/call", {"name": "up__t"}) for _ in range(10)]
        statuses = [call.status_code for call in calls]
        assert statuses[:3] == [200] * 3
        assert 429 in statuses
        reached = [one for one in server.asked if one.rpc == "tools/call"]
        assert len(reached) == statuses.count(200)


async def test_arguments_that_a_rule_refuses_do_not_reach_the_server() -> None:
    small = {"properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    rules = [{"allow": {"backend": "up", "tool": "up__t", "arguments": small}}]
    async with fronted(Upstream(), sections={"policy": rules}) as (server, mcp):
        for arguments in ({}, {"n": 10}, {"n": "1"}, {"N": 1}, {"n": 1e9}, {"n": [1]}):
            assert "does not allow this call" in said(await mcp.call("up__t", arguments))
        assert not [one for one in server.asked if one.rpc == "tools/call"]
        await mcp.call("up__t", {"n": 9})
        assert sent(server).params["arguments"] == {"n": 9}


async def test_a_result_arrives_as_it_was_sent() -> None:
    whole = {
        "content": [
            {"type": "text", "text": "ä", "annotations": {"priority": 1}},
            {"type": "resource_link", "uri": "x:y", "name": "n", "size": 12345678901234567890},
        ],
        "structuredContent": {"a": [1, 2.5, None]},
        "_meta": {"com.example/x": 1, f"{META}serverInfo": {"name": "up", "version": "3"}},
        "isError": False,
        "com.example": {"unknown": True},
    }
    async with fronted(Upstream(lambda asked: result(asked, whole))) as (_, mcp):
        answer = (await mcp.post("tools/call", {"name": "up__t", "arguments": {}})).json()
    found = answer["result"]
    assert found["_meta"].pop(f"{META}serverInfo")["name"] == "roundgate"
    assert found["_meta"] == {"com.example/x": 1}
    whole.pop("_meta")
    found.pop("_meta")
    assert found == {**whole, "resultType": "complete"}


async def test_the_server_gets_arguments_meta_and_capabilities_of_this_request_alone() -> None:
    async with fronted(Upstream()) as (server, mcp):
        capabilities = {
            "elicitation": {"form": {}, "smell": {}},
            "sampling": {"tools": {}},
            "roots": {"listChanged": True},
            "experimental": {"x": {}},
        }
        meta = {
            "clientCapabilities": capabilities,
            "com.example/id": 7,
            "progressToken": "mine",
            "traceparent/x": "y",
        }
        await mcp.call("up__t", {"a": 1}, **meta)
        params = sent(server).params
        assert (params["name"], params["arguments"]) == ("t", {"a": 1})
        forwarded = params["_meta"]
        assert forwarded[f"{META}clientCapabilities"] == {
            "elicitation": {"form": {}},
            "sampling": {"tools": {}},
            "roots": {},
        }
        assert forwarded["com.example/id"] == 7
        assert forwarded["progressToken"] not in ("mine", None)
        assert forwarded[f"{META}clientInfo"]["name"] == "roundgate"
        await mcp.call("up__t")
        assert sent(server).params["_meta"][f"{META}clientCapabilities"] == {}
        listed = next(one for one in server.asked if one.rpc == "tools/list")
        assert listed.params["_meta"][f"{META}clientCapabilities"].keys() == {
            *("elicitation", "sampling", "roots", "extensions")
        }
        assert "progressToken" not in sent(server).params["_meta"]


async def test_the_trace_context_continues() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with fronted(Upstream()) as (server, mcp):
        asked = wire.message("tools/call", {"name": "up__t", "arguments": {}})
        asked["params"]["_meta"]["traceparent"] = parent
        response = await mcp.http.post(
            "/mcp", content=json.dumps(asked), headers=wire.headers(asked)
        )
        assert response.status_code == 200
        assert sent(server).params["_meta"]["traceparent"] == parent


async def test_arguments_are_checked_unless_told_otherwise() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    listed = Upstream(tools=[tool("t", inputSchema=schema)])
    async with scripted(listed) as server:
        async with gateway_of(entry(server)) as mcp:
            assert "arguments.n" in said(await mcp.call("up__t", {"n": "x"}))
            assert "tools/call" not in server.methods()
        async with gateway_of(entry(server, check_arguments=False)) as mcp:
            assert await mcp.text("up__t", {"n": "x"}) == "done"


async def test_results_are_not_held_against_the_output_schema() -> None:
    schema = {"type": "object", "required": ["x"]}
    wrong = {**text("y"), "structuredContent": {"z": 1}}
    listed = Upstream(lambda asked: result(asked, wrong), [tool("t", outputSchema=schema)])
    async with fronted(listed) as (_, mcp):
        answer = (await mcp.post("tools/call", {"name": "up__t", "arguments": {}})).json()
        assert answer["result"]["structuredContent"] == {"z": 1}


async def test_progress_and_log_messages_arrive_under_the_clients_token() -> None:
    async def talking(asked: Asked) -> AsyncGenerator[bytes, None]:
        token = asked.params["_meta"]["progressToken"]
        yield STREAM_HEAD
        for progress in (1, 2):
            words = f"step {progress}"
            yield notice("progress", progressToken=token, progress=progress, message=words)
        yield notice("progress", progressToken="another", progress=9)
        for level in ("debug", "error"):
            yield notice("message", level=level, data={"x": 1}, logger="l")
        yield result_event(asked, text("done"))

    async with fronted(Upstream(talking)) as (server, mcp):
        response = await mcp.post(
            "tools/call", {"name": "up__t", "arguments": {}}, progressToken=5, logLevel="info"
        )
        *notices, last = wire.events(response.text)
    assert [one["params"] for one in notices] == [
        {"progressToken": 5, "progress": 1, "message": "step 1"},
        {"progressToken": 5, "progress": 2, "message": "step 2"},
        {"level": "error", "data": {"x": 1}, "logger": "l"},
    ]
    assert last["result"]["content"][0]["text"] == "done"
    assert sent(server).params["_meta"][f"{META}logLevel"] == "info"


async def test_a_cancelled_call_is_cancelled_at_the_server() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        begun.set()
        try:
            while True:
                yield b": still here\n\n"
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    async with scripted(Upstream(slow)) as server, app_of(entry(server)) as app:
        asked = wire.message("tools/call", {"name": "up__t", "arguments": {}})
        async with Exchange(app, asked):
            await asyncio.wait_for(begun.wait(), 60)
        await asyncio.wait_for(ended.wait(), 60)


FAULTS: list[tuple[Any, str]] = [
    (lambda asked: None, "did not answer"),
    (lambda asked: http(200, b"{nonsense"), "not JSON"),
    (lambda asked: http(200, b"<html>", "text/html"), "text/html"),
    (lambda asked: http(500, b""), "500"),
    (lambda asked: error(asked, -32603, "it broke"), "it broke"),
    (lambda asked: error(asked, -32602, "Unknown tool: t"), "Unknown tool"),
    (lambda asked: result(asked, {"resultType": "complete"}), "malformed tool result"),
    (lambda asked: result(asked, {"resultType": "task", "taskId": "1"}), "'task'"),
    (lambda asked: result(asked, [1]), "not an object"),
    (lambda asked: http(200, b"x" * 2_000), "bytes (max_response_bytes)"),
    (lambda asked: http(302, b"", Location="http://elsewhere.example/"), "redirects"),
    (lambda asked: error(asked, True, "it broke", status=200), "error without a code"),
]


async def test_whatever_a_server_does_wrong_is_one_tool_error() -> None:
    upstream = Upstream()
    async with fronted(upstream, max_response_bytes=1_000) as (server, mcp):
        for count, (upstream.call, words) in enumerate(FAULTS, 1):
            told = said(await mcp.call("up__t"))
            assert told.startswith("up")
            assert words in told
            assert server.methods().count("tools/call") == count


@pytest.mark.parametrize("has_large_body", [True, False])
async def test_the_status_of_a_refusal_counts_though_its_body_cannot_be_read(
    has_large_body: bool,
) -> None:
    replies = [http(503, b"x" * 2_000), http(503, b"x", Content_Encoding="br")]
    if not has_large_body:
        replies = [http(503, b'"Not now"'), http(503, b"[1]")]
    left = iter(replies)
    settings: dict[str, Any] = {"max_response_bytes": 1_000, "breaker": {"failures": 2}}
    async with fronted(Upstream(lambda asked: next(left)), **settings) as (server, mcp):
        for _ in replies:
            assert "The server is not available now (HTTP status 503)" in await mcp.text("up__t")
        assert "is paused" in said(await mcp.call("up__t"))
        assert server.methods().count("tools/call") == 2


async def test_a_call_that_no_server_received_has_not_taken_effect() -> None:
    async with AsyncExitStack() as stack:
        async with scripted(Upstream()) as server:
            mcp = await stack.enter_async_context(gateway_of(entry(server)))
            assert await mcp.text("up__t") == "done"
        words = said(await mcp.call("up__t"))
    assert "did not answer" in words
    assert "may have taken effect" not in words


async def test_a_stream_that_ends_before_the_result_is_not_asked_again() -> None:
    async def dying(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        yield notice("x")

    async with fronted(Upstream(dying)) as (server, mcp):
        words = said(await mcp.call("up__t"))
        assert "may have taken effect" in words
        assert server.methods().count("tools/call") == 1


async def test_only_a_tool_that_may_be_repeated_is_sent_again() -> None:
    failures: list[str] = []

    def once(asked: Asked) -> Any:
        failures.append(asked.params["name"])
        return None if failures.count(asked.params["name"]) == 1 else result(asked, text("done"))

    tools = [tool("t"), tool("reads", annotations={"readOnlyHint": True})]
    async with fronted(Upstream(once, tools), retry={"attempts": 3, "pause_s": 0.01}) as (_, mcp):
        assert await mcp.text("up__reads") == "done"
        assert "did not answer" in said(await mcp.call("up__t"))
    assert failures == ["reads", "reads", "t"]


async def test_a_breaker_leaves_a_server_alone() -> None:
    upstream = Upstream(lambda asked: http(503))
    async with (
        scripted(upstream) as server,
        app_of(entry(server, breaker={"failures": 2, "pause_s": 60})) as app,
        client_of(app) as mcp,
    ):
        for _ in range(3):
            words = said(await mcp.call("up__t"))
        assert "is paused" in words
        (pause,) = app.state.core.serving.now.pause_reasons()["up"]
        assert "are paused: it answered 503" in pause
        assert server.methods().count("tools/call") == 2


@asynccontextmanager
async def pausing(
    script: Callable[[Asked], Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Scripted, Client, SkippingClock]]:
    """A gateway that pauses calls to its server after one failure, and whose calls are approved."""
    clock = SkippingClock()
    monkeypatch.setattr(mcp_backend, "Clock", lambda: clock)
    upstream = Upstream(script, [tool("t"), tool("fails", annotations={"readOnlyHint": True})])
    settings: dict[str, Any] = {"breaker": {"failures": 1, "pause_s": 60}, "approve": "destructive"}
    async with scripted(upstream) as server:
        one = entry(server, **settings, override={"t": {"task": "optional"}})
        async with gateway_of(one) as mcp:
            yield server, mcp, clock


async def approved(mcp: Client) -> Callable[[], Coroutine[Any, Any, str]]:
    """A function that sends the approved call again."""
    params = {"name": "up__t", "arguments": {}}
    again = retry(params, await ask(mcp, "tools/call", params), approve=accept(approve=True))

    async def send() -> str:
        done = await mcp.result("tools/call", again, clientCapabilities=CAPABILITIES)
        return str(done["content"][0]["text"])

    return send


def failing(asked: Asked) -> Any:
    return http(503) if asked.params["name"] == "fails" else result(asked, text("done"))


async def test_an_approved_call_that_a_pause_kept_from_its_server_may_be_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pausing(failing, monkeypatch) as (server, mcp, clock):
        send = await approved(mcp)
        await mcp.call("up__fails")
        for _ in range(2):
            assert (await send()).startswith("up is paused")
        clock.skip(61)
        assert [await send() for _ in range(2)] == ["done"] * 2
    assert [one.params["name"] for one in server.asked if one.rpc == "tools/call"] == ["fails", "t"]


async def test_an_approved_call_of_which_one_request_was_sent_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_answer = asyncio.Event()

    async def shedding(asked: Asked) -> Any:
        if asked.params["name"] == "t":
            await may_answer.wait()
            return result(asked, {"resultType": "input_required", "requestState": "s"})
        return http(503)

    async with pausing(shedding, monkeypatch) as (server, mcp, clock):
        send = await approved(mcp)
        first = asyncio.create_task(send())
        await until(1, lambda: _count(server, "t"))
        await mcp.call("up__fails")
        may_answer.set()
        assert (await first).startswith("up is paused")
        clock.skip(61)
        assert await send() == await first
        assert await _count(server, "t") == 1


async def _count(server: Scripted, name: str) -> int:
    return [one.params.get("name") for one in server.asked if one.rpc == "tools/call"].count(name)


async def test_an_approved_task_waits_for_the_end_of_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pausing(failing, monkeypatch) as (server, mcp, clock):
        ann = TaskClient(mcp, {**TASKS, **CAPABILITIES})
        params = {"name": "up__t", "arguments": {}}
        asked = valid_input_required((await ann.send("tools/call", params)).json())
        await mcp.call("up__fails")
        again = retry(params, asked, approve=accept(approve=True))
        task_id = valid_created((await ann.send("tools/call", again)).json())["taskId"]

        async def message() -> Any:
            return (await ann.get(task_id)).get("statusMessage")

        await until("Waiting for a place at its back end", message)
        clock.skip(61)
        assert await ann.text(task_id) == "done"
        assert await _count(server, "t") == 1


async def test_a_server_that_notifies_without_end_ends_in_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "MAX_NOTICES", 20)

    async def endless(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        while True:
            yield notice("x")

    async with fronted(Upstream(endless)) as (_, mcp):
        assert "more than 20 notifications" in said(await mcp.call("up__t"))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"timeout_s": 30}, "timeout_s"),
        ({"timeout_s": 60, "timeouts": {"read_s": 30}}, "timeouts.read_s"),
    ],
)
async def test_a_silent_server_is_a_tool_error_in_time(settings: dict[str, Any], name: str) -> None:
    async def silent(asked: Asked) -> AsyncGenerator[bytes, None]:
        pass_time(31)
        await asyncio.sleep(600)
        yield b""

    async with fronted(Upstream(silent), **settings) as (_, mcp):
        told = said(await mcp.call("up__t"))
    assert "did not answer" in told
    assert f"({name})" in told


async def test_credentials_go_to_the_server_and_never_come_back() -> None:
    secret = "kV9-very-secret-token"

    def echoing(asked: Asked) -> Any:
        return result(asked, text(f"you sent {asked.headers['authorization']}"))

    async with fronted(Upstream(echoing), credential={"bearer": secret}) as (server, mcp):
        assert await mcp.text("up__t") == "you sent Bearer [redacted]"
    assert {one.headers["authorization"] for one in server.asked} == {f"Bearer {secret}"}


async def test_a_refusal_that_repeats_a_credential_is_told_without_it() -> None:
    secret = "kV9-very-secret-token"

    def refusing(kind: str, asked: Asked) -> Any:
        told = f"unusable: {asked.headers['authorization']}"
        body = told if kind == "text/plain" else json.dumps({"message": told})
        return http(400, body.encode(), kind)

    upstream = Upstream()
    async with fronted(upstream, credential={"bearer": secret}) as (_, mcp):
        for kind in ("text/plain", "application/json"):
            upstream.call = partial(refusing, kind)
            words = said(await mcp.call("up__t"))
            assert "unusable" in words
            assert secret not in words


async def test_a_refusal_of_the_gateways_credentials_is_told_without_them() -> None:
    upstream = Upstream(lambda asked: http(401))
    async with fronted(upstream, credential={"bearer": "tttttttttt"}) as (_, mcp):
        words = said(await mcp.call("up__t"))
    assert "refuses the gateway's credentials (401)" in words
    assert "auth=" not in words


async def test_a_server_that_wants_credentials_is_told_apart_from_one_that_refuses_them() -> None:
    async with fronted(Upstream(lambda asked: http(401))) as (_, mcp):
        assert "requires credentials (401)" in said(await mcp.call("up__t"))


# -- older servers ---------------------------------------------------------------------------------


async def test_a_forgotten_session_is_opened_again_once_for_all_calls() -> None:
    upstream = Upstream(session="s1")
    async with fronted(upstream, questions=False) as (server, mcp):
        assert await mcp.text("up__t") == "done"
        before = server.methods().count("initialize")
        upstream.session = "s2"
        answers = await asyncio.gather(*(mcp.text("up__t") for _ in range(5)))
        assert answers == ["done"] * 5
        assert server.methods().count("initialize") == before + 1


async def test_a_session_is_opened_again_whatever_the_refusal_is() -> None:
    bodies = (b"", b"Not Found", b'"Not Found"', b"[]", b'{"detail": "gone"}')
    refusals: list[Any] = [lambda asked, body=body: http(404, body) for body in bodies]
    refusals.append(lambda asked: error(asked, -32000, "Bad Request: No valid session ID provided"))

    class Lost(Upstream):
        refusal: Any = None

        def __call__(self, asked: Asked) -> Any:
            if asked.rpc != "tools/call" or self.refusal is None:
                return super().__call__(asked)
            refusal, self.refusal = self.refusal, None
            self.session = f"{self.session}+"
            return refusal(asked)

    upstream = Lost(session="s1")
    async with fronted(upstream) as (_, mcp):
        for upstream.refusal in refusals:
            assert await mcp.text("up__t") == "done"
            assert upstream.refusal is None


async def test_a_server_that_forgets_every_session_is_one_tool_error() -> None:
    class Forgetful(Upstream):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "tools/call":
                return error(asked, -32001, "Session not found", status=404)
            return super().__call__(asked)

    async with fronted(Forgetful(session="s1")) as (server, mcp):
        assert "forgets each new session" in said(await mcp.call("up__t"))
        assert server.methods().count("tools/call") == 2


def declared(server: Scripted) -> list[Any]:
    """The capabilities of the sessions of an older server."""
    return [one.params["capabilities"] for one in server.asked if one.rpc == "initialize"]


async def test_an_older_server_gets_no_meta_of_this_revision_and_the_calls_capabilities() -> None:
    async with fronted(Upstream(session="s1")) as (server, mcp):
        meta: dict[str, Any] = {
            "clientCapabilities": {"elicitation": {"form": {}}},
            "com.example/x": 1,
        }
        await mcp.call("up__t", **meta)
        assert sent(server).params["_meta"] == {"com.example/x": 1}
        assert {**DECLARED, "elicitation": {"form": {}}} in declared(server)
        assert DECLARED not in declared(server)
        await mcp.call("up__t")
        assert DECLARED in declared(server)


async def test_an_older_server_that_asks_all_the_same_is_told_why_not() -> None:
    answered: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    class Asking(Upstream):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "(answer)":
                answered.put_nowait(asked.message)
            return super().__call__(asked)

    async def asks(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        question = {"id": "q", "method": "elicitation/create", "params": {"message": "Sure?"}}
        yield event({"jsonrpc": "2.0", **question})
        refused = await asyncio.wait_for(answered.get(), 60)
        yield result_event(asked, {**text(refused["error"]["message"]), "isError": True})

    async with fronted(Asking(asks, session="s1")) as (_, mcp):
        assert "elicitation/create is not supported" in said(await mcp.call("up__t"))


@pytest.mark.parametrize("has_session", [True, False], ids=["session", "no-session"])
@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"form": {}}}], ids=str)
async def test_a_server_that_becomes_another_revision_is_negotiated_anew(
    capabilities: Any, has_session: bool
) -> None:
    upstream = Upstream(session="s1")
    async with fronted(upstream) as (_, mcp):
        if has_session:
            assert not (await mcp.call("up__t", clientCapabilities=capabilities)).get("isError")
        upstream.session, upstream.call = None, lambda asked: result(asked, text("modern"))
        refused = await mcp.call("up__t", clientCapabilities=capabilities)
        assert "may have taken effect" not in said(refused)

        async def answer() -> str:
            answered = await mcp.call("up__t", clientCapabilities=capabilities)
            return str(answered["content"][0]["text"])

        await until("modern", answer)
