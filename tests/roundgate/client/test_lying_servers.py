"""Whatever a server says: a clear error, no hang, and no secret to anyone else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import pytest

from roundgate.client import Bearer, Client, Limits, by_schema
from roundgate.errors import (
    AnswerInvalid,
    AuthorizationFailed,
    BadAnswer,
    ClientError,
    ConnectionLost,
    HttpRefused,
    RpcError,
    TimedOut,
    TooManyRounds,
)
from tests.support.clocks import pass_time
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    Script,
    connected,
    error,
    event,
    http,
    modern,
    notice,
    result,
    result_event,
    says,
    scripted,
    text,
)

LIMITS = Limits(max_message=20_000, max_state=1_000)
TIGHT = Limits(idle_s=0.3, request_s=30)


async def called(script: Script, limits: Limits = LIMITS, **options: Any) -> Any:
    async with connected(modern(script), limits=limits) as (_, client):
        return await client.call("t", **options)


def a_stream(*pieces: bytes) -> Callable[[Asked], AsyncGenerator[bytes, None]]:
    async def stream(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        for piece in pieces:
            yield piece

    return stream


def about(asked: Asked, value: Any) -> bytes:
    return result_event(asked, value)


QUESTION = {"jsonrpc": "2.0", "id": 5, "method": "elicitation/create", "params": {}}
LONG = "x" * 2_000
FORM = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}
VISIT = {"method": "elicitation/create", "params": {"mode": "url", "url": "file:///etc/passwd"}}


def form(schema: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema}}


def asking(question: Any, count: int = 1) -> dict[str, Any]:
    """A result with so many questions; the first has the key `q`."""
    keys = ["q", *(f"q{number}" for number in range(1, count))]
    return {"resultType": "input_required", "inputRequests": dict.fromkeys(keys, question)}


def replies(value: dict[str, Any]) -> Script:
    """A server whose result is this."""
    return lambda asked: result(asked, value)


def answers_as(request_id: Any) -> bytes:
    return says({"jsonrpc": "2.0", "id": request_id, "result": {}})


@pytest.mark.parametrize(
    ("script", "kind", "complaint"),
    [
        (lambda asked: http(200, b"<html>", kind="text/html"), BadAnswer, "text/html"),
        (lambda asked: http(200, b"{"), BadAnswer, "not JSON"),
        (lambda asked: http(200, b"[]"), BadAnswer, "not a JSON-RPC"),
        (lambda asked: http(200, b"{]"), BadAnswer, "not JSON"),
        (lambda asked: says({"jsonrpc": "2.0", "id": 999, "result": {}}), BadAnswer, "another request"),
        (lambda asked: says({"jsonrpc": "2.0", "id": asked.message["id"], "result": 5}), BadAnswer, "not an object"),
        (lambda asked: says({"jsonrpc": "2.0", "id": asked.message["id"]}), BadAnswer, "not a JSON-RPC response"),
        (lambda asked: says({"jsonrpc": "2.0", "id": asked.message["id"], "error": "no"}), BadAnswer, "without a code"),
        (lambda asked: http(202), BadAnswer, "not a JSON-RPC response"),
        (lambda asked: http(200, b"", kind="image/png"), BadAnswer, "instead of JSON"),
        (lambda asked: http(200, b"x", Content_Encoding="gzip"), BadAnswer, "content encoding 'gzip'"),
        (lambda asked: http(200, b"x", Content_Encoding="br"), BadAnswer, "content encoding 'br'"),
        (lambda asked: http(500, b"oops", kind="text/plain"), HttpRefused, "500"),
        (lambda asked: http(500, b"oops"), HttpRefused, "500"),
        (lambda asked: result(asked, {"content": "text"}), BadAnswer, "'content'"),
        (lambda asked: result(asked, {"content": [1]}), BadAnswer, "objects"),
        (lambda asked: result(asked, {}), BadAnswer, "without 'content'"),
        (lambda asked: result(asked, {**text("x"), "isError": "yes"}), BadAnswer, "'isError'"),
        (lambda asked: result(asked, text("x" * 30_000)), BadAnswer, "max_message"),
        (lambda asked: result(asked, {"resultType": "input_required"}), BadAnswer, "neither questions"),
        (lambda asked: result(asked, {"resultType": "input_required", "requestState": LONG}), BadAnswer, "max_state"),
        (lambda asked: result(asked, {"resultType": "input_required", "requestState": "on"}), TooManyRounds, "rounds"),
        (lambda asked: error(asked, -32603, "broken"), RpcError, "broken"),
        (lambda asked: b"SSH-2.0-Open\r\n\r\n", BadAnswer, "sent an invalid HTTP response"),
        (lambda asked: b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, BadAnswer, "sent an invalid HTTP response"),
        (lambda asked: b"HTTP/1.1 101 Switching\r\n\r\n", BadAnswer, "sent an invalid HTTP response"),
        (lambda asked: None, ConnectionLost, "closed"),
        (a_stream(b"data: {", b""), ConnectionLost, "before its answer"),
        (a_stream(b": only comments\n\n"), ConnectionLost, "before its answer"),
        (a_stream(b"data: x" * 5_000), BadAnswer, "max_message"),
        (a_stream(event(QUESTION)), BadAnswer, "forbids"),
        (replies({"resultType": "input_required", "inputRequests": [FORM]}), BadAnswer, "not an object"),
        (replies({"resultType": "input_required", "inputRequests": {"q": 5}}), BadAnswer, "not a request object"),
        (replies(asking({"method": "tools/call"})), BadAnswer, "unknown method"),
        (replies({"resultType": "input_required", "requestState": 7}), BadAnswer, "not text"),
        (replies(asking({"method": "sampling/createMessage", "params": {}})), BadAnswer, "without messages"),
        (replies(asking(VISIT)), BadAnswer, "not a page to send a user to"),
        (replies(asking(FORM, count=200)), BadAnswer, "max_questions"),
        (replies(asking(form({"type": "object", "allOf": [False]}))), AnswerInvalid, "q"),
        (replies(asking(form({"$ref": "https://evil.example/schema"}))), BadAnswer, "unusable schema"),
        (replies(asking(form({"required": [{}, 5], "properties": {"x": {}}}))), BadAnswer, "unusable schema"),
        (replies({"resultType": "task", "taskId": 5, "status": "working"}), BadAnswer, "'taskId'"),
        (replies({"resultType": {"of": "another type"}}), BadAnswer, "unknown type"),
        (lambda asked: answers_as(f"{asked.message['id']}x"), BadAnswer, "another request"),
        (lambda asked: answers_as(True), BadAnswer, "another request"),
        (lambda asked: http(503, b"", "text/plain", Retry_After="~").replace(b"~", b"\xb2"), HttpRefused, "503"),
    ],
)  # fmt: skip
async def test_an_answer_that_is_none_is_an_error_in_words(
    script: Script, kind: type[ClientError], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        await called(
            script, answers=[{"x": 1}, by_schema({"type": "string"}, "x"), lambda question: {}]
        )


async def test_a_stream_of_comments_does_not_keep_a_call_for_ever() -> None:
    async def chatty(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        while True:
            yield b": still here\n\n"
            await asyncio.sleep(0.05)

    with pytest.raises(TimedOut, match="request_s"):
        await called(chatty, Limits(request_s=1))


async def test_a_call_has_the_time_that_its_caller_gives_it() -> None:
    with pytest.raises(TimedOut, match="timeout_s"):
        await called(lambda asked: asyncio.sleep(60), timeout_s=0.3)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_to_another_host_is_not_followed_and_hears_no_secret(status: int) -> None:
    async with (
        scripted(lambda asked: http(200)) as other,
        scripted(lambda asked: http(status, b"", Location=f"{other.origin}/mcp")) as server,
        httpx.AsyncClient(timeout=60) as of_caller,
    ):
        for given in (None, of_caller):
            async with Client(server.url, auth="secret", http=given) as client:
                with pytest.raises(HttpRefused, match="not followed") as caught:
                    await client.call("t")
            assert other.asked == []
            assert "secret" not in str(caught.value)


async def test_a_redirect_within_the_server_keeps_the_request() -> None:
    answering = modern(lambda asked: result(asked, text("here")))

    def script(asked: Asked) -> Any:
        return answering(asked) if asked.target == "/mcp/" else http(307, b"", Location="/mcp/")

    async with connected(script, auth="secret") as (server, client):
        assert (await client.call("t")).value == "here"
        assert {one.headers["authorization"] for one in server.asked} == {"Bearer secret"}


async def test_a_circle_of_redirects_ends() -> None:
    async with connected(lambda asked: http(308, b"", Location="/mcp")) as (_, client):
        with pytest.raises(HttpRefused, match="circle"):
            await client.call("t")


@pytest.mark.parametrize(
    ("status", "given"), [(401, "requires credentials"), (403, "refuses access")]
)
async def test_a_refusal_without_credentials_says_what_to_give(status: int, given: str) -> None:
    async with connected(lambda asked: http(status)) as (_, client):
        with pytest.raises(AuthorizationFailed, match=given):
            await client.call("t")


async def test_a_token_goes_to_no_plain_http_beyond_this_machine() -> None:
    async with Client("http://mcp.example:1/mcp", auth=Bearer("secret")) as client:
        with pytest.raises(ClientError, match="plain http") as caught:
            await client.call("t")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["ftp://host/", "http://", "https://user:pw@host/", "http://host:port/", "https://h/a b"]
)
def test_an_address_that_is_none_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ClientError) as caught:
        Client(url)
    assert "pw" not in str(caught.value)


async def test_nobody_at_home_is_said_so() -> None:
    async with scripted(lambda asked: None) as server:
        url = server.url
    with pytest.raises(ConnectionLost, match=r"No connection to 127\.0\.0\.1"):
        await Client(url).call("t")


async def test_an_unsafe_call_is_not_repeated_when_its_answer_is_lost() -> None:
    calls: list[Asked] = []

    def script(asked: Asked) -> None:
        calls.append(asked)

    with pytest.raises(ConnectionLost):
        await called(script)
    assert len(calls) == 1


async def test_a_round_with_a_state_is_repeated_with_the_same_state_and_answers() -> None:
    rounds: list[dict[str, Any]] = []

    def script(asked: Asked) -> bytes | None:
        rounds.append({"id": asked.message["id"], **asked.params})
        if "requestState" not in asked.params:
            return result(asked, {**asking(form({"type": "object"})), "requestState": "s"})
        return None if len(rounds) < 4 else result(asked, text("once"))

    assert (await called(script, answers={"q": {}})).value == "once"
    assert len({one["id"] for one in rounds}) == 4
    assert {json.dumps([one["requestState"], one["inputResponses"]]) for one in rounds[1:]} == {
        json.dumps(["s", {"q": {"action": "accept", "content": {}}}])
    }


async def test_a_tool_that_may_be_repeated_is_repeated() -> None:
    calls: list[Asked] = []
    tools = [
        {"name": "t", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    ]

    def script(asked: Asked) -> bytes | None:
        calls.append(asked)
        return None if len(calls) == 1 else result(asked, text("again"))

    async with connected(modern(script, tools)) as (_, client):
        assert (await client.call("t")).value == "again"


async def test_a_server_that_is_not_available_is_asked_again_for_what_may_be_repeated() -> None:
    lists: list[Asked] = []
    answering = modern(lambda asked: result(asked, text("x")))

    def script(asked: Asked) -> Any:
        if asked.rpc == "tools/list" and not lists:
            lists.append(asked)
            return http(503, b"", kind="text/plain", Retry_After="0")
        return answering(asked)

    async with connected(script) as (_, client):
        assert [tool.name for tool in await client.tools()] == ["t"]


async def test_notifications_on_a_stream_reach_who_asked_for_them() -> None:
    seen: list[Any] = []

    async def script(asked: Asked) -> AsyncGenerator[bytes, None]:
        token = asked.params["_meta"]["progressToken"]
        yield STREAM_HEAD
        for mine, done in ((token, 1), ("another", 2), (token, 3)):
            params = {"progressToken": mine, "progress": done, "total": "many", "message": 5}
            yield notice("progress", **params)
        yield event(
            {
                "jsonrpc": "2.0",
                "method": "notifications/message",
                "params": {"level": "info", "data": "hi"},
            }
        )
        yield about(asked, text("done"))

    done = await called(lambda asked: script(asked), on_progress=seen.append, on_log=seen.append)
    assert done.value == "done"
    assert [getattr(one, "progress", None) or one.data for one in seen] == [1, 3, "hi"]
    assert (seen[0].total, seen[0].message) == (None, None)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("sampling", {"method": "sampling/createMessage", "params": {"messages": []}}),
        ("roots", {"method": "roots/list"}),
        ("url", {"method": "elicitation/create", "params": {"mode": "url", "url": "https://h/"}}),
    ],
)
async def test_what_nobody_declared_is_not_answered(kind: str, asked: dict[str, Any]) -> None:
    script = modern(lambda one: result(one, asking(asked)))
    declared: dict[str, Any] = {"elicitation": {"form": {}}}

    def answer(_: object) -> Any:
        raise AssertionError("nobody is asked")

    async with connected(script, capabilities=declared, answers=answer) as (_, client):
        with pytest.raises(BadAnswer, match=f"{kind}, which this client did not declare"):
            await client.call("t")


@pytest.mark.parametrize("modes", [{}, {"form": {}}])
async def test_a_client_that_declares_elicitation_without_a_mode_takes_forms(
    modes: dict[str, Any],
) -> None:
    replies = iter([asking(FORM), text("thanks")])
    async with connected(
        modern(lambda one: result(one, next(replies))),
        capabilities={"elicitation": modes},
        answers={"q": {}},
    ) as (_, client):
        assert (await client.call("t")).text == "thanks"


async def test_tools_that_break_the_rules_do_not_pile_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listed = [[{"name": f"{turn}-{n}"} for n in range(500)] for turn in range(2)]
    turns = iter(listed)

    def script(asked: Asked) -> Any:
        if asked.rpc == "tools/list":
            return result(asked, {"tools": next(turns), "ttlMs": 0, "cacheScope": "private"})
        return modern(lambda one: http(500))(asked)

    async with connected(script) as (_, client):
        assert await client.tools() == []
        assert await client.tools() == []
        assert client.rejected.keys() == {tool["name"] for tool in listed[1]}
    assert len(caplog.records) == 40


@pytest.mark.parametrize(
    ("first", "kind", "said"),
    [
        (a_stream(b""), ConnectionLost, "before the server confirmed"),
        (lambda asked: None, ConnectionLost, "closed the connection"),
        (a_stream(notice("x")), BadAnswer, "before it"),
        (a_stream(event([1])), ConnectionLost, "before the server confirmed"),
        (lambda asked: http(503, b"", "text/plain"), HttpRefused, "503"),
        (lambda asked: drops(), TimedOut, "request_s"),
    ],
)
async def test_a_subscription_that_does_not_begin_ends(
    first: Script, kind: type[ClientError], said: str
) -> None:
    async with connected(modern(first), limits=Limits(request_s=30)) as (_, client):
        with pytest.raises(kind, match=said):
            async with client.listen(tools=True):
                pass


async def drops() -> AsyncGenerator[bytes, None]:
    yield STREAM_HEAD
    pass_time(31)
    while True:
        await asyncio.sleep(0.05)
        yield b": soon\n\n"


async def test_a_subscription_goes_on_when_the_server_is_away_for_a_moment() -> None:
    agreed = notice("subscriptions/acknowledged")
    changed = notice("tools/list_changed")
    away = http(503, b"", "text/plain")
    streams = iter([a_stream(agreed), lambda asked: away, a_stream(agreed + changed)])

    async with (
        connected(modern(lambda asked: next(streams)(asked))) as (_, client),
        client.listen(tools=True) as changes,
    ):
        change = await anext(changes)
        assert change.method == "notifications/tools/list_changed"
        assert change.was_interrupted


async def test_a_subscription_that_the_server_ends_is_at_its_end() -> None:
    async def ends(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        yield notice("subscriptions/acknowledged")
        yield notice("tools/list_changed")
        yield about(asked, {"resultType": "complete"})

    async with connected(modern(ends)) as (server, client), client.listen(tools=True) as changes:
        told = [change.method async for change in changes]
        assert told == ["notifications/tools/list_changed"]
        assert server.methods().count("subscriptions/listen") == 1


@pytest.mark.parametrize(
    ("then", "kind", "said"),
    [
        ({"id": 1, "error": {"code": -32603, "message": "It is gone"}}, RpcError, "It is gone"),
        ({"id": 1, "method": "ping"}, BadAnswer, "messages other than notifications"),
        (
            {"method": "notifications/x", "params": [1]},
            BadAnswer,
            "messages other than notifications",
        ),
    ],
)
async def test_a_subscription_ends_with_what_the_server_says_instead_of_changes(
    then: dict[str, Any], kind: type[ClientError], said: str
) -> None:
    async def script(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        yield notice("subscriptions/acknowledged")
        own = {"id": asked.message["id"]} if "id" in then else {}
        yield event({"jsonrpc": "2.0", **then, **own})

    async with connected(modern(script)) as (_, client), client.listen(tools=True) as changes:
        with pytest.raises(kind, match=said):
            await anext(changes)


async def test_a_task_that_is_gone_is_said_so() -> None:
    def script(asked: Asked) -> bytes:
        if asked.rpc == "tools/call":
            created = {"taskId": "t1", "status": "working", "pollIntervalMs": 1}
            return result(asked, {"resultType": "task", **created})
        return error(asked, -32602, "Unknown task")

    with pytest.raises(RpcError, match="Unknown task"):
        await called(script)


async def test_what_a_server_says_in_an_error_does_not_fill_the_screen() -> None:
    with pytest.raises(RpcError) as caught:
        await called(lambda asked: error(asked, -1, "x" * 15_000))
    assert len(str(caught.value)) < 3_000
