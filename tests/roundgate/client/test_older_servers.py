"""Servers of revisions with a handshake: sessions, questions on streams, streams that go on,
and how all of it ends."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from roundgate.client import Client, Limits, Question
from roundgate.errors import (
    BadAnswer,
    ConnectionLost,
    HttpRefused,
    NoCommonVersion,
    RpcError,
    TaskEnded,
    TimedOut,
    Unanswered,
)
from tests.support.clocks import pass_time
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    Scripted,
    connected,
    error,
    event,
    http,
    notice,
    result,
    result_event,
    says,
    scripted,
    text,
)

SESSION: dict[str, Any] = {"Mcp_Session_Id": "s1"}
FORM = {
    "message": "Sure?",
    "requestedSchema": {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
    },
}


def question(
    request_id: Any = "q1", method: str = "elicitation/create", params: Any = FORM
) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


class Older:
    """A server of 2025-11-25 with one tool. `calls` answers it; answers to its questions arrive in
    `answers`."""

    def __init__(
        self, calls: Any, *, version: str = "2025-11-25", session_stream: Any = None
    ) -> None:
        self.calls = calls
        self.version = version
        self.session_stream = session_stream
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def __call__(self, asked: Asked) -> Any:
        match asked.rpc:
            case "server/discover":
                return error(asked, -32000, "Bad Request: Server not initialized")
            case "initialize":
                about = {"protocolVersion": self.version, "capabilities": {"tools": {}}}
                info = {"serverInfo": {"name": "old", "version": "1"}, "instructions": "Be kind"}
                return says(
                    {"jsonrpc": "2.0", "id": asked.message["id"], "result": {**about, **info}},
                    **SESSION,
                )
            case "notifications/initialized":
                return http(202)
            case "tools/list":
                return result(asked, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
            case "(answer)":
                self.answers.put_nowait(asked.message)
                return http(202)
            case "GET":
                stream = self.session_stream if "last-event-id" not in asked.headers else self.calls
                return http(405) if stream is None else stream(asked)
            case "DELETE":
                return http(200)
        return self.calls(asked)


async def asks(older: Older, asked: Asked) -> AsyncGenerator[bytes, None]:
    """A call that asks on its stream and ends with what was answered."""
    yield STREAM_HEAD
    yield event(question())
    answer = await asyncio.wait_for(older.answers.get(), 60)
    yield result_event(asked, text(str(answer.get("result"))))


async def test_an_older_server_is_spoken_to_in_its_own_way() -> None:
    async with scripted(Older(lambda asked: result(asked, text("old")))) as server:
        async with Client(server.url) as client:
            assert (await client.call("t", a=1)).value == "old"
            about = await client.connect()
            assert (about.name, about.protocol_version, about.is_modern) == (
                "old",
                "2025-11-25",
                False,
            )
            assert about.instructions == "Be kind"
        call = next(one for one in server.asked if one.rpc == "tools/call")
        assert call.headers["mcp-session-id"] == "s1"
        assert call.headers["mcp-protocol-version"] == "2025-11-25"
        assert "mcp-method" not in call.headers
        assert call.params == {"name": "t", "arguments": {"a": 1}}
        assert server.asked[-1].rpc == "DELETE"
        assert server.asked[-1].headers["mcp-session-id"] == "s1"


async def test_a_question_on_the_stream_of_a_call_is_answered_by_the_names_of_its_fields() -> None:
    older: Older = Older(lambda asked: asks(older, asked))
    async with connected(older) as (_, client):
        done = await client.call("t", answers={"ok": True})
    assert done.value == str({"action": "accept", "content": {"ok": True}})


@pytest.mark.parametrize(
    ("place", "limit"), [("call", "request_s"), ("call", "idle_s"), ("session", "idle_s")]
)
async def test_while_a_person_thinks_no_time_is_counted(place: str, limit: str) -> None:
    called = asyncio.Event()
    limits: Any = {limit: 30}
    older: Older
    pass_time(0)  # from here on the loop has the time of the test

    async def slow(_: Question) -> Any:
        pass_time(31)
        await asyncio.sleep(0.1)
        return True

    async def session_stream(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        await called.wait()
        yield event(question())
        await asyncio.sleep(60)

    async def call(asked: Asked) -> bytes:
        called.set()
        answer = await asyncio.wait_for(older.answers.get(), 60)
        return result(asked, text(str(answer["result"])))

    older = Older(lambda asked: asks(older, asked))
    if place == "session":
        older.calls, older.session_stream = call, session_stream
    async with connected(older, limits=Limits(**limits)) as (_, client):
        assert "accept" in (await client.call("t", answers=slow)).text


async def test_a_server_that_is_silent_after_an_answer_is_given_up() -> None:
    async def call(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        yield event(question())
        await asyncio.sleep(60)

    async with connected(Older(call), limits=Limits(idle_s=0.5)) as (_, client):
        with pytest.raises(TimedOut, match="idle_s"):
            await client.call("t", answers={"ok": True})


async def test_a_question_that_nobody_answers_ends_the_call() -> None:
    older: Older = Older(lambda asked: asks(older, asked))
    async with connected(older) as (_, client):
        with pytest.raises(Unanswered, match="Sure") as caught:
            await client.call("t")
    assert caught.value.questions[0].fields == {"ok": {"type": "boolean"}}


class Deaf(Older):
    """A server that refuses answers; it sends the result, if there is one, a moment later."""

    def __init__(self, *results: str) -> None:
        super().__init__(self._call)
        self.results = results
        self.refused = asyncio.Event()

    def __call__(self, asked: Asked) -> Any:
        if asked.rpc == "tools/list":
            hints = {"annotations": {"readOnlyHint": True}}
            listed = {"name": "t", "inputSchema": {"type": "object"}, **hints}
            return result(asked, {"tools": [listed]})
        if asked.rpc != "(answer)":
            return super().__call__(asked)
        self.refused.set()
        return http(400)

    async def _call(self, asked: Asked) -> AsyncGenerator[bytes, None]:
        self.refused.clear()
        yield STREAM_HEAD
        yield event(question())
        await asyncio.wait_for(self.refused.wait(), 60)
        await asyncio.sleep(0.02 if self.results else 0.1)
        for words in self.results:
            yield result_event(asked, text(words))


async def test_the_result_of_a_call_wins_over_an_answer_that_the_server_refuses() -> None:
    """A server that ends a call during its question refuses the answer, and may send the result on
    the other connection a moment later."""
    async with connected(Deaf("ended")) as (_, client):
        assert (await client.call("t", answers={"ok": True})).value == "ended"


async def test_a_stream_that_ends_after_a_refused_answer_is_not_a_lost_connection() -> None:
    """A tool that may be repeated is then not called again: the server would refuse that answer
    too."""
    async with connected(Deaf()) as (server, client):
        await client.tools()
        with pytest.raises(HttpRefused, match="refused an answer with HTTP status 400"):
            await client.call("t", answers={"ok": True})
    assert server.methods().count("tools/call") == 1


async def test_an_answer_that_the_server_refuses_ends_a_call_without_a_result() -> None:
    deaf = Deaf()
    deaf.calls = lambda asked: asks(deaf, asked)  # its stream stays open
    async with connected(deaf) as (_, client):
        with pytest.raises(HttpRefused, match="refused an answer with HTTP status 400"):
            await client.call("t", answers={"ok": True})


async def test_a_call_whose_answer_cannot_be_sent_is_not_sent_again() -> None:
    class Cut(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if "method" not in json.loads(request.content or b'{"method": "DELETE"}'):
                raise httpx.ConnectError("refused")
            return await super().handle_async_request(request)

    older: Older = Older(lambda asked: asks(older, asked))
    async with (
        scripted(older) as server,
        httpx.AsyncClient(transport=Cut()) as cut,
        Client(server.url, http=cut) as client,
    ):
        with pytest.raises(ConnectionLost, match="No connection") as caught:
            await client.call("t", answers={"ok": True})
    assert server.methods().count("tools/call") == 1
    assert caught.value.was_sent  # the call may have taken effect


async def test_a_server_may_ask_for_life_for_roots_and_for_what_no_client_knows() -> None:
    async def call(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        for number, method in enumerate(("ping", "secrets/list", "roots/list")):
            yield event(question(number, method, {}))
        for _ in range(3):
            answer = await asyncio.wait_for(older.answers.get(), 60)
            told[answer["id"]] = answer.get("result", answer.get("error", {}).get("code"))
        yield result_event(asked, text("done"))

    told: dict[int, Any] = {}
    older = Older(call)
    async with connected(older) as (_, client):
        assert (await client.call("t")).value == "done"
    assert told == {0: {}, 1: -32601, 2: {"roots": []}}


async def test_a_stream_that_breaks_goes_on_behind_its_last_event_after_the_time_it_named() -> None:
    ids: list[Any] = []

    async def call(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        if asked.rpc == "tools/call":
            ids.append(asked.message["id"])
            yield event(None, "e1", 30)
            return
        if asked.headers["last-event-id"] == "e1":
            yield event(
                {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}, "e2", 10
            )
            return
        yield event(
            {
                "jsonrpc": "2.0",
                "id": ids[0],
                "result": text("after " + asked.headers["last-event-id"]),
            }
        )

    async with connected(Older(call)) as (_, client):
        assert (await client.call("t")).value == "after e2"


async def test_a_stream_that_does_not_go_on_is_given_up() -> None:
    async def call(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        if asked.rpc == "tools/call":
            yield event(None, "e1", 1)

    async with connected(Older(call)) as (server, client):
        with pytest.raises(ConnectionLost, match="brought no events"):
            await client.call("t")
        assert server.methods().count("GET") == 4  # one is the session's


async def test_a_stream_without_ids_cannot_go_on() -> None:
    async def call(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        yield b": nothing\n\n"

    async with connected(Older(call)) as (_, client):
        with pytest.raises(ConnectionLost, match="before its answer"):
            await client.call("t")


async def test_too_many_questions_at_once_are_refused() -> None:
    async def call(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        for number in range(40):
            yield event(question(number))
        await asyncio.sleep(60)

    async def never(_: Question) -> Any:
        await asyncio.sleep(60)

    async with connected(Older(call)) as (_, client):
        with pytest.raises(BadAnswer, match="questions at once"):
            await client.call("t", answers=never)


async def test_questions_without_end_are_refused() -> None:
    older: Older

    async def call(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        for number in range(100):
            yield event(question(number))
            await asyncio.wait_for(older.answers.get(), 60)

    older = Older(call)
    limits = Limits(max_questions=5, max_rounds=2)
    async with connected(older, limits=limits) as (_, client):
        with pytest.raises(BadAnswer, match="more than 10 questions in a call"):
            await client.call("t", answers={"ok": True})


async def test_a_question_that_is_sent_again_is_asked_once() -> None:
    asked_for: list[Question] = []
    older: Older

    async def call(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        if "last-event-id" not in asked.headers:
            yield event(question(), "1", retry=10)
            return
        yield event(question(), "1")
        answer = await asyncio.wait_for(older.answers.get(), 60)
        yield event({"jsonrpc": "2.0", "id": call_id(server), "result": text(str(answer["id"]))})

    def answer(asked: Question) -> Any:
        asked_for.append(asked)
        return True

    older = Older(call)
    async with connected(older) as (server, client):
        assert (await client.call("t", answers=answer)).text == "q1"
    assert len(asked_for) == 1
    assert older.answers.empty()


def call_id(server: Scripted) -> Any:
    return next(one.message["id"] for one in server.asked if one.rpc == "tools/call")


NO_ID: tuple[Any, ...] = (None, True, {}, ["q"], 1.5)
LONG_ID = ("q" * 257, 2**64, -(2**64))


@pytest.mark.parametrize("odd", NO_ID + LONG_ID)
async def test_a_question_without_a_usable_id_is_refused(odd: Any) -> None:
    async def call(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        yield event(question(odd))
        await asyncio.sleep(60)

    async with connected(Older(call)) as (_, client):
        with pytest.raises(
            BadAnswer, match="longer than 256" if odd in LONG_ID else "neither text nor a number"
        ):
            await client.call("t", answers={"ok": True})


async def test_a_stream_is_not_resumed_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    resumed: list[str | None] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def call(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        resumed.append(asked.headers.get("last-event-id"))
        if len(resumed) == 4:
            done = {"jsonrpc": "2.0", "id": call_id(server), "result": text("done")}
            yield event(done, "4")
        else:
            yield event(None, str(len(resumed)), retry=0)

    async with connected(Older(call)) as (server, client):
        await client.tools()
        monkeypatch.setattr("roundgate.client.link.asyncio.sleep", noted)
        assert (await client.call("t")).text == "done"
    assert pauses.count(0.1) == 3
    assert resumed == [None, "1", "1", "1"]


async def test_what_nobody_declared_is_refused_and_the_call_goes_on() -> None:
    older: Older

    async def call(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        for method, params in (
            ("sampling/createMessage", {"messages": []}),
            ("roots/list", {}),
            ("elicitation/create", FORM),
        ):
            yield event(question(method, method, params))
            answer = await asyncio.wait_for(older.answers.get(), 60)
            assert answer["error"]["code"] == -32601, answer
        yield result_event(asked, text("done"))

    older = Older(call)

    def nobody(_: Question) -> Any:
        raise AssertionError("nobody is asked")

    async with connected(older, capabilities={}, answers=nobody) as (_, client):
        assert (await client.call("t")).text == "done"


@pytest.mark.parametrize("odd", ["", "a b", "caf\xe9", "x" * 9_000])
async def test_a_session_whose_id_cannot_be_sent_back_is_refused(odd: str) -> None:
    older = Older(lambda asked: result(asked, text("x")))

    def script(asked: Asked) -> Any:
        reply = older(asked)
        return reply.replace(b": s1\r\n", f": {odd}\r\n".encode("latin-1"))

    async with connected(script) as (_, client):
        with pytest.raises(BadAnswer, match="session with an id"):
            await client.call("t")


async def test_a_notification_that_is_never_received_ends_in_time() -> None:
    older = Older(lambda asked: result(asked, text("x")))

    async def drops() -> AsyncGenerator[bytes, None]:
        yield b"H"
        pass_time(31)
        while True:
            await asyncio.sleep(0.05)
            yield b"H"

    def script(asked: Asked) -> Any:
        return drops() if asked.rpc == "notifications/initialized" else older(asked)

    async with connected(script, limits=Limits(request_s=30)) as (_, client):
        with pytest.raises(TimedOut, match="notifications/initialized"):
            await client.call("t")


async def test_silence_ends_in_time_with_an_older_server_too() -> None:
    async def call(_: Asked) -> None:
        await asyncio.sleep(60)

    async with connected(Older(call), limits=Limits(idle_s=0.3)) as (_, client):
        with pytest.raises(TimedOut):
            await client.call("t")


async def test_a_cancelled_request_is_cancelled_at_an_older_server() -> None:
    cancelled: list[Any] = []

    async def call(asked: Asked) -> bytes:
        if asked.rpc == "notifications/cancelled":
            cancelled.append(asked.params["requestId"])
            return http(202)
        begun.set()
        await asyncio.sleep(60)
        return b""

    begun = asyncio.Event()
    async with scripted(Older(call)) as server, asyncio.timeout(60):
        async with Client(server.url) as client:
            calling = asyncio.create_task(client.call("t"))
            await begun.wait()
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        assert cancelled == [call_id(server)]


async def test_an_error_of_an_older_server_is_an_error() -> None:
    older = Older(lambda asked: error(asked, -32602, "wrong", status=200))
    async with connected(older) as (_, client):
        with pytest.raises(RpcError, match="wrong"):
            await client.call("t")


async def test_resources_are_subscribed_to_again_in_another_session() -> None:
    is_told = asyncio.Event()

    async def session_stream(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        await is_told.wait()
        params = {"uri": "file:///a"}
        yield event(
            {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}
        )
        await asyncio.sleep(60)

    forgotten: list[Asked] = []

    def call(asked: Asked) -> bytes:
        if asked.rpc == "resources/subscribe":
            if forgotten:
                is_told.set()
            return result(asked, {})
        if not forgotten:
            forgotten.append(asked)
            return http(404)
        return result(asked, text("again"))

    older = Older(call, session_stream=session_stream)
    async with connected(older) as (server, client), client.listen(uris=["file:///a"]) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        while "resources/subscribe" not in server.methods():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await client.call("t")).value == "again"
        change = await waiting
    assert change.was_interrupted
    assert server.methods().count("resources/subscribe") == 2


async def test_a_server_without_such_a_stream_says_so() -> None:
    async with connected(Older(lambda asked: http(405))) as (_, client):
        with pytest.raises(HttpRefused, match="no stream"):
            async with client.listen(tools=True) as changes:
                await anext(changes)


async def test_who_is_asked_while_no_call_is_under_way_says_so_and_answers_a_ping() -> None:
    async def session_stream(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        yield event({"jsonrpc": "2.0", "id": 9, "result": {}})  # of nobody's request: passed over
        yield event(question("p", "ping", {}))
        yield event(question("q"))
        await asyncio.sleep(60)

    older = Older(lambda asked: result(asked, text("x")), session_stream=session_stream)
    async with connected(older) as (_, client):
        await client.connect()
        ping, asked = await older.answers.get(), await older.answers.get()
    assert (ping["id"], ping["result"]) == ("p", {})
    assert (asked["id"], asked["error"]["code"]) == ("q", -32601)


async def test_the_stream_of_a_session_that_breaks_is_reopened_and_waits_for_changes() -> None:
    opened = 0

    async def session_stream(_: Asked) -> AsyncGenerator[bytes, None]:
        nonlocal opened
        opened += 1
        if opened == 1:  # shorter than it says
            yield STREAM_HEAD.replace(b"Connection: close", b"Content-Length: 900")
            return
        yield STREAM_HEAD
        await asyncio.sleep(1.5)  # longer than one look at whether the stream is still open
        yield notice("tools/list_changed")
        await asyncio.sleep(60)

    older = Older(lambda asked: result(asked, {}), session_stream=session_stream)
    async with connected(older) as (_, client), client.listen(tools=True) as changes:
        assert (await anext(changes)).method == "notifications/tools/list_changed"
    assert opened == 2


async def test_a_client_may_be_told_which_revisions_to_speak() -> None:
    async with scripted(Older(lambda asked: result(asked, text("x")))) as server:
        async with Client(server.url, versions=["2026-07-28"]) as client:
            with pytest.raises(NoCommonVersion, match="2026-07-28"):
                await client.call("t")
        async with Client(server.url, versions=["2025-11-25"]) as client:
            await client.call("t")
        assert server.methods().count("server/discover") == 1


def test_nothing_is_sent_before_something_is_asked() -> None:
    assert Client("http://127.0.0.1:9/mcp").server is None


class WithTasks(Older):
    """A server of 2025-11-25 whose tool has to be called as a task; it ends as `ends` says."""

    def __init__(self, ends: str = "completed", *, support: str = "required") -> None:
        super().__init__(lambda asked: result(asked, text("at once")))
        self.ends = ends
        self.support = support
        self.asks = asyncio.Event()
        self.status = "working"

    def __call__(self, asked: Asked) -> Any:
        match asked.rpc:
            case "initialize":
                capabilities: Any = {"logging": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
                about = {"protocolVersion": self.version, "capabilities": capabilities}
                return result(
                    asked, {**about, "serverInfo": {"name": "o", "version": "1"}}, **SESSION
                )
            case "tools/list":
                tool = {"name": "t", "inputSchema": {"type": "object"}}
                return result(
                    asked, {"tools": [{**tool, "execution": {"taskSupport": self.support}}]}
                )
            case "GET":
                return self._session()
            case "tools/call" if "task" in asked.params:
                self.asks.set()
                return result(asked, {"task": self._task()})
            case "tasks/get":
                return result(asked, self._task())
            case "tasks/result":
                if self.ends == "failed":
                    return error(asked, -32603, "broken", status=200)
                return result(asked, text("dug"))
            case "logging/setLevel":
                return result(asked, {})
        return super().__call__(asked)

    async def _session(self) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        await asyncio.wait_for(self.asks.wait(), 60)
        yield event(question())
        await asyncio.wait_for(self.answers.get(), 60)
        self.status = self.ends
        await asyncio.sleep(60)

    def _task(self) -> dict[str, Any]:
        return {"taskId": "t1", "status": self.status, "ttl": None, "pollInterval": 50}


async def test_a_tool_that_has_to_be_a_task_is_one_and_may_ask_while_nothing_is_sent() -> None:
    seen: list[str] = []
    async with connected(WithTasks()) as (server, client):
        done = await client.call(
            "t", answers={"ok": True}, on_task=lambda task: seen.append(task.status)
        )
        assert done.text == "dug"
    assert (seen[0], seen[-1]) == ("working", "completed")
    assert [one.params for one in server.asked if one.rpc == "tools/call"] == [
        {"name": "t", "arguments": {}, "task": {}}
    ]


@pytest.mark.parametrize("support", ["required", "optional"])
async def test_such_a_task_is_handed_over_and_waited_for(support: str) -> None:
    async with connected(WithTasks(support=support), answers={"ok": True}) as (_, client):
        task = await client.start("t")
        assert (await client.resume(str(task.handle)).get()).task_id == "t1"
        assert (await task.wait()).text == "dug"


async def test_a_person_answers_what_such_a_task_asks_while_its_call_ends() -> None:
    is_asked = asyncio.Event()

    class AsksAtOnce(WithTasks):
        def __call__(self, asked: Asked) -> Any:
            began = super().__call__(asked)
            return self._after(began) if asked.rpc == "tools/call" else began

        async def _after(self, began: bytes) -> bytes:
            await asyncio.wait_for(is_asked.wait(), 60)
            return began

    async def person(question: Question) -> dict[str, Any]:
        is_asked.set()
        await asyncio.sleep(0.2)
        return {"ok": True}

    async with connected(AsksAtOnce(), answers=person) as (_, client):
        assert (await (await client.start("t")).wait()).text == "dug"


async def test_a_tool_that_may_be_a_task_is_none_where_the_caller_waits() -> None:
    async with connected(WithTasks(support="optional")) as (_, client):
        assert (await client.call("t")).text == "at once"


@pytest.mark.parametrize(("ends", "said"), [("failed", "broken"), ("cancelled", "cancelled")])
async def test_such_a_task_without_a_result_says_how_it_ended(ends: str, said: str) -> None:
    async with connected(WithTasks(ends), answers={"ok": True}) as (_, client):
        with pytest.raises(TaskEnded, match=said) as caught:
            await client.call("t")
    assert caught.value.status == ends


async def test_what_such_a_task_asks_and_nobody_answers_ends_the_call() -> None:
    async with connected(WithTasks()) as (_, client):
        with pytest.raises(Unanswered, match="Sure"):
            await client.call("t")


async def test_an_older_server_is_told_once_from_which_level_on_to_log() -> None:
    async with connected(WithTasks(support="forbidden")) as (server, client):
        for level in ("info", "info", "debug"):
            await client.call("t", on_log=print, log_level=level)
        await client.call("t")
    assert [one.params["level"] for one in server.asked if one.rpc == "logging/setLevel"] == [
        "info",
        "debug",
    ]


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_new_session_begins_with_the_log_level_of_the_forgotten_one(refuses: bool) -> None:
    class Forgets(WithTasks):
        def __call__(self, asked: Asked) -> Any:
            counts = Counter(server.methods())
            if asked.rpc == "tools/call" and counts["tools/call"] == 2:
                return http(404)
            if refuses and asked.rpc == "logging/setLevel" and counts["logging/setLevel"] == 2:
                return error(asked, -32603, "not now", status=200)
            return super().__call__(asked)

    async with connected(Forgets(support="forbidden")) as (server, client):
        for _ in range(3):
            await client.call("t", on_log=print, log_level="debug")
    steps = ("initialize", "logging/setLevel", "tools/call")
    assert [method for method in server.methods() if method in steps] == [
        *("initialize", "logging/setLevel", "tools/call", "tools/call"),
        *("initialize", "logging/setLevel", "tools/call"),
        *(["logging/setLevel"] if refuses else []),
        "tools/call",
    ]
