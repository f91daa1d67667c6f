"""Calls of older servers that keep their events: no process holds them, and any continues them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from roundgate.backends.mcp import backend, held
from roundgate.clock import Clock
from roundgate.main import build_app
from tests.support import wire
from tests.support.asgi import Client as Mcp
from tests.support.asgi import client, config_of
from tests.support.older_servers import (
    ADA,
    BOB,
    BOTH,
    CAPABLE,
    SAMPLE,
    again,
    call,
    clients,
    gateways,
    older_server,
    replica,
    said,
    to_the_end,
)
from tests.support.scripted import STREAM_HEAD, Asked, Scripted, event, http, result, scripted, text
from tests.support.task_client import task_settings
from tests.support.upstreams import Upstream, entry, names, until

KEEPS = "2.x keeps"
LATE_S = 600
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


def question(number: int, method: str = "elicitation/create") -> dict[str, Any]:
    """A request of the server."""
    params = {"message": "Who?", "requestedSchema": SCHEMA} if method != "ping" else {}
    return {"jsonrpc": "2.0", "id": f"q{number}", "method": method, "params": params}


@dataclass
class Keeping:
    """An older server that keeps the events of its only tool, which asks."""

    begin: Sequence[bytes] | Callable[[], AsyncIterator[bytes]]
    """The events of the call, or its whole stream."""
    go_on: Callable[[int, Asked], Any]
    """Returns the reply to the n-th resumption of the call's stream."""
    answered: Callable[[Asked], Any] = lambda asked: http(202)
    up: Upstream = field(default_factory=lambda: Upstream(session="s1"))
    call_id: Any = None
    resumed: list[str] = field(default_factory=list)
    """The events after which the stream was resumed."""
    server: Scripted | None = None

    def __call__(self, asked: Asked) -> Any:
        if asked.rpc == "GET" and "last-event-id" in asked.headers:
            self.resumed.append(asked.headers["last-event-id"])
            return self.go_on(len(self.resumed) - 1, asked)
        if asked.rpc == "tools/call":
            self.call_id = asked.message["id"]
            return self.begin() if callable(self.begin) else self.stream(*self.begin)
        if asked.rpc == "(answer)":
            return self.answered(asked)
        return self.up(asked)

    async def stream(self, *events: bytes, stays: bool = True) -> AsyncIterator[bytes]:
        """A stream that begins with events."""
        yield STREAM_HEAD
        for each in events:
            yield each
        if stays:
            await asyncio.sleep(60)

    def result(self, number: int) -> bytes:
        """The event with the result."""
        message = {"jsonrpc": "2.0", "id": self.call_id, "result": text("done")}
        return event(message, str(number))

    @property
    def positions(self) -> list[str]:
        """`resumed` without repetitions, because a stream that is silent for 0.25 s, as on a busy machine, is resumed
        again after the same event."""
        return [position for position, _ in groupby(self.resumed)]

    def count(self, rpc: str) -> int:
        """How many requests of a method there were."""
        assert self.server is not None
        return self.server.methods().count(rpc)


@asynccontextmanager
async def served(folder: Path, keeping: Keeping, **settings: Any) -> AsyncIterator[tuple[Mcp, Mcp]]:
    """Clients of two gateways in front of a server."""
    async with scripted(keeping) as server:
        keeping.server = server
        async with clients(folder, entry(server, **settings)) as both:
            yield both


ASKS = [event(None, "1"), event(question(1), "2")]


async def test_a_call_continues_after_the_last_event_at_another_replica(tmp_path: Path) -> None:
    keeping = Keeping(ASKS, lambda n, asked: keeping.stream(keeping.result(3)))
    async with served(tmp_path, keeping) as (one, two):
        asked = await call(one, "t")
        ends = keeping.count("DELETE")
        assert said(await again(two, "t", asked, ADA)) == "done"
        assert keeping.positions == ["2"]

        await until(1, lambda: keeping.count("DELETE") - ends)  # the session, once the call is over
        resumed = len(keeping.resumed)
        assert said(await again(one, "t", asked, ADA)) == "done"  # from its row
    assert len(keeping.resumed) == resumed
    assert keeping.count("tools/call") == 1


async def test_a_result_that_was_lost_before_an_event_without_data_arrives(tmp_path: Path) -> None:
    progress = {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}

    def go_on(n: int, asked: Asked) -> Any:
        if asked.headers["last-event-id"] == "2":
            return keeping.stream(event({"jsonrpc": "2.0", **progress}, "3"), event(None, "5"))
        is_before = asked.headers["last-event-id"] == "3"
        return keeping.stream(*([keeping.result(4)] if is_before else []))

    keeping = Keeping(ASKS, go_on)
    async with served(tmp_path, keeping) as (one, two):
        asked = await call(one, "t")
        assert said(await again(two, "t", asked, ADA)) == "done"
    assert keeping.positions == ["2", "3"]


async def test_a_stream_is_opened_again_while_it_is_busy_silent_or_at_its_end(
    tmp_path: Path,
) -> None:
    def go_on(n: int, asked: Asked) -> Any:
        other = {"jsonrpc": "2.0", "id": 999, "result": text("of another request")}
        match n:
            case 0 | 1:
                return http(409 if n == 0 else 503)
            case 2:
                return None
            case 3:
                return keeping.stream()
            case _ if asked.headers["last-event-id"] == "2":
                return keeping.stream(event({}, "3"), event(other, "4"), stays=False)
        return keeping.stream(event(question(1), "2"), keeping.result(5))

    keeping = Keeping(ASKS, go_on)
    async with served(tmp_path, keeping) as (one, two):
        asked = await call(one, "t")
        assert said(await again(two, "t", asked, ADA)) == "done"
    assert keeping.resumed[:5] == ["2"] * 5
    assert keeping.positions == ["2", "4"]
    assert keeping.count("(answer)") == 1


async def test_an_answer_that_may_be_lost_is_sent_again(tmp_path: Path) -> None:
    replies = [None, http(503), http(202)]
    keeping = Keeping(
        ASKS,
        lambda n, asked: keeping.stream(keeping.result(3)),
        lambda asked: replies.pop(0),
    )
    async with served(tmp_path, keeping) as (one, two):
        assert said(await again(two, "t", await call(one, "t"), ADA)) == "done"
    assert not replies


async def test_a_session_that_the_server_no_longer_knows_is_an_honest_error(
    tmp_path: Path,
) -> None:
    keeping = Keeping(ASKS, lambda n, asked: http(405))
    refusals = [(status, status) for status in (400, 404)]
    refusals += [(202, status) for status in (400, 404, 405)]
    async with served(tmp_path, keeping) as (one, two):
        for on_answer, on_stream in refusals:
            keeping.answered = lambda asked, status=on_answer: http(status)  # type: ignore[misc]
            keeping.go_on = lambda n, asked, status=on_stream: http(status)  # type: ignore[misc]
            ended = await again(two, "t", await call(one, "t"), ADA)
            assert ended["result"]["isError"] is True
            told = "405" if on_stream == 405 else "no longer knows the session"
            assert told in said(ended)
            assert "may have taken effect" in said(ended)
    assert keeping.count("tools/call") == len(refusals)


async def test_an_error_of_the_server_is_the_outcome(tmp_path: Path) -> None:
    def go_on(n: int, asked: Asked) -> Any:
        error = {"code": -32602, "message": "no such Ada"}
        return keeping.stream(event({"jsonrpc": "2.0", "id": keeping.call_id, "error": error}, "3"))

    keeping = Keeping(ASKS, go_on)
    async with served(tmp_path, keeping) as (one, two):
        ended = await again(two, "t", await call(one, "t"), ADA)
    assert ended["result"]["isError"] is True
    assert "no such Ada" in said(ended)
    assert "may have taken effect" not in said(ended)


async def test_ids_without_a_first_event_that_has_no_data_are_not_a_promise(tmp_path: Path) -> None:
    """The Java SDK gives ids to all events, but keeps none unless it is told to."""

    async def asks() -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        yield event(question(1), "1")
        while keeping.count("(answer)") == 0:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        yield keeping.result(2)

    keeping = Keeping(asks, lambda n, asked: http(404))
    async with served(tmp_path, keeping) as (one, two):
        assert said(await again(two, "t", await call(one, "t"), ADA)) == "done"
    assert keeping.resumed == []


async def test_a_request_that_is_not_answered_yet_is_read_again(tmp_path: Path) -> None:
    answers: list[Any] = []

    async def answered(asked: Asked) -> Any:
        answers.append(asked.message["id"])
        if len(answers) == 1:  # of the ping: it does not arrive before the call is left
            await asyncio.sleep(60)
        return http(202)

    ping, asks = event(question(0, "ping"), "2"), event(question(1), "3")

    async def begin() -> AsyncIterator[bytes]:
        yield STREAM_HEAD + event(None, "1") + ping
        while not answers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield asks
        await asyncio.sleep(60)

    keeping = Keeping(
        begin, lambda n, asked: keeping.stream(ping, asks, keeping.result(4)), answered
    )
    async with served(tmp_path, keeping) as (one, two):
        assert said(await again(two, "t", await call(one, "t"), ADA)) == "done"
    assert keeping.resumed[0] == "1"
    assert answers[:2] == ["q0", "q1"]


async def test_further_questions_are_further_rounds(tmp_path: Path) -> None:
    def go_on(n: int, asked: Asked) -> Any:
        if asked.headers["last-event-id"] == "2":
            return keeping.stream(event(question(2), "3"), event(question(3), "4"))
        return keeping.stream(*([keeping.result(5)] if keeping.count("(answer)") == 3 else []))

    keeping = Keeping(ASKS, go_on)
    async with served(tmp_path, keeping) as (one, two):
        first = await call(one, "t")
        second = await again(two, "t", first, ADA)
        assert list(second["result"]["inputRequests"]) == ["question-2", "question-3"]
        assert said(await again(one, "t", second, ADA, BOB)) == "done"
    assert keeping.positions == ["2", "4"]
    assert keeping.server is not None
    answers = [each.message for each in keeping.server.asked if each.rpc == "(answer)"]
    assert [each["id"] for each in answers] == ["q1", "q2", "q3"]
    assert answers[2]["result"] == BOB


async def test_questions_after_the_time_for_answers_are_cancelled_at_once(tmp_path: Path) -> None:
    async def asks_again() -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        yield event(question(2), "3")
        while keeping.count("(answer)") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield keeping.result(4)

    keeping = Keeping(ASKS, lambda n, asked: asks_again())
    async with served(tmp_path, keeping, held_s=1) as (one, _):
        await call(one, "t")
        ends = keeping.count("DELETE")

        await until(1, lambda: keeping.count("DELETE") - ends)
    assert keeping.server is not None
    answers = [each.message for each in keeping.server.asked if each.rpc == "(answer)"]
    assert [each["result"] for each in answers] == [{"action": "cancel"}] * 2
    assert keeping.resumed[0] == "2"


@pytest.fixture
def until_answers_are_late(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event that ends the time for answers."""
    are_late = asyncio.Event()

    class LateClock(Clock):
        async def sleep(self, seconds: float) -> None:
            if seconds < LATE_S / 2:
                await super().sleep(seconds)
            else:
                await are_late.wait()

    monkeypatch.setattr(backend, "Clock", LateClock)
    return are_late


async def test_a_process_cancels_the_questions_of_a_bounded_number_of_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until_answers_are_late: asyncio.Event
) -> None:
    """Two of this caller. A call that was answered here does not count."""
    monkeypatch.setattr(held, "MAX_EXPIRING", 2 * held.SHARE)
    keeping = Keeping(ASKS, lambda n, asked: keeping.stream(keeping.result(3)))
    async with served(tmp_path, keeping, held_s=LATE_S) as (one, _):
        for _ in range(3):
            await call(one, "t")
        assert said(await again(one, "t", await call(one, "t"), ADA)) == "done"
        await call(one, "t")
        until_answers_are_late.set()

        async def cancelled() -> int:
            assert keeping.server is not None
            answers = [each.message for each in keeping.server.asked if each.rpc == "(answer)"]
            return sum(each["result"] == {"action": "cancel"} for each in answers)

        await until(2, cancelled)
        await asyncio.sleep(0.3)
        assert await cancelled() == 2


async def test_progress_arrives_under_the_clients_token_at_another_replica(tmp_path: Path) -> None:
    async with (
        older_server(tmp_path, KEEPS) as up,
        clients(tmp_path, up.entry) as (one, two),
    ):
        params = {"name": "up__slow", "arguments": {}}
        meta: Any = {"clientCapabilities": CAPABLE, "progressToken": 5}
        asked = (await one.post("tools/call", params, **meta)).json()
        state = {"requestState": asked["result"]["requestState"]}
        answers = {"inputResponses": {"question-1": ADA}}
        response = await two.post("tools/call", {**params, **state, **answers}, **meta)
        *notices, last = wire.events(response.text)
        assert said(await to_the_end(two, "slow", last)) == "Slowly, Ada"
    assert {each["params"]["progressToken"] for each in notices} == {5}


async def test_a_round_ends_before_its_deadline_and_a_retry_waits_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping = Keeping(ASKS, lambda n, asked: keeping.stream(keeping.result(3)))
    async with served(tmp_path, keeping) as (one, two):
        asked = await call(one, "t")
        with monkeypatch.context() as patch:
            patch.setattr(held, "SHED_MS", 10**9)  # the deadline is always near
            pending = await again(two, "t", asked, ADA)
            assert pending["result"]["resultType"] == "input_required"
        assert said(await to_the_end(one, "t", pending)) == "done"
    assert keeping.count("tools/call") == 1


async def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    async with older_server(tmp_path, KEEPS) as up:
        with gateways(tmp_path, up.entry, 3) as (first, second, third):
            async with httpx.AsyncClient(timeout=60) as http_:
                one, two, three = (Mcp(http_, f"{each.url}/mcp") for each in (first, second, third))
                asked = await call(one, "slow")
                first.stop(signal.SIGKILL)
                answering = asyncio.create_task(again(two, "slow", asked, ADA))

                await until(["slow"], up.noted)  # the server works on the answer
                second.stop(signal.SIGKILL)
                with pytest.raises(httpx.TransportError):
                    await answering
                assert said(await again(three, "slow", asked, ADA)) == "Slowly, Ada"
    assert up.noted() == ["slow", "done"]


async def test_a_server_that_restarts_is_an_honest_error(tmp_path: Path) -> None:
    async with (
        older_server(tmp_path, KEEPS) as up,
        clients(tmp_path, up.entry) as (one, two),
    ):
        asked = await call(one, "greet")
        await up.kill()
        await up.start()
        ended = await again(two, "greet", asked, ADA)
        assert ended["result"]["isError"] is True
        assert "no longer knows the session" in said(ended)
        assert said(await again(one, "greet", await call(two, "greet"), ADA)) == "Hello, Ada"
    assert up.noted() == ["greet", "greet", "greeted"]


async def test_answers_are_not_sent_to_a_server_that_changed_its_revision(tmp_path: Path) -> None:
    """Either revision would take the answers for the first request, and process it again."""
    form = {"method": "elicitation/create", "params": question(1)["params"]}
    questions = {
        "resultType": "input_required",
        "inputRequests": {"who": form},
        "requestState": "s",
    }
    keeping = Keeping(ASKS, lambda n, asked: keeping.stream(keeping.result(3)))

    def asks(asked: Asked) -> Any:
        return result(asked, questions) if asked.rpc == "tools/call" else http(400)

    modern = Upstream(call=asks)
    async with scripted(keeping) as older, scripted(modern) as newer:
        keeping.server = older
        entries = [entry(each) for each in (older, newer)]
        async with (
            replica(tmp_path, entries[0]) as a,
            replica(tmp_path, entries[1]) as b,
            client(a) as one,
            client(b) as two,
        ):
            for asked_at, answered_at, told in (
                (one, two, "no longer knows the session"),
                (two, one, "cannot be sent"),
            ):
                asked = await call(asked_at, "t")
                ended = await again(answered_at, "t", asked, ADA)
                assert ended["result"]["isError"] is True
                assert told in said(ended)
                assert "may have taken effect" in said(ended)
    assert keeping.count("tools/call") == newer.methods().count("tools/call") == 1


async def test_calls_that_are_not_held_do_not_count(tmp_path: Path) -> None:
    async with (
        older_server(tmp_path, KEEPS, max_held_calls=1) as up,
        clients(tmp_path, up.entry) as (one, two),
    ):
        asked = [await call(one, "greet") for _ in range(3)]
        ended = [await again(two, "greet", each, ADA) for each in asked]
    assert [said(each) for each in ended] == ["Hello, Ada"] * 3


async def test_a_resumed_stream_has_no_events_of_other_sessions(tmp_path: Path) -> None:
    """The Python SDK keeps the events of all sessions together, by the ids of requests."""
    async with (
        older_server(tmp_path, KEEPS) as up,
        clients(tmp_path, up.entry) as (one, two),
    ):
        greetings: list[dict[str, Any]] = [{"greeting": f"Hello {number}"} for number in range(4)]
        asked = [await call(one, "greet", each) for each in greetings]
        sampled = [await call(two, "motto") for _ in range(2)]
        for each, greeting in reversed([*zip(asked, greetings, strict=True)]):
            ended = await again(two, "greet", each, ADA, arguments=greeting)
            assert said(ended) == f"{greeting['greeting']}, Ada"
        for number, each in enumerate(sampled):
            sample = {**SAMPLE, "content": {"type": "text", "text": f"Carpe {number}"}}
            assert said(await again(one, "motto", each, sample)) == f"sampled: Carpe {number}"


# -- prompts and resources -------------------------------------------------------------------------


async def rounds(one: Mcp, other: Mcp, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that asks once, with its answer at another replica."""
    asked = (await one.post(method, params, clientCapabilities=CAPABLE)).json()["result"]
    more = {
        "inputResponses": dict.fromkeys(asked["inputRequests"], ADA),
        "requestState": asked["requestState"],
    }
    body: dict[str, Any] = (
        await other.post(method, {**params, **more}, clientCapabilities=CAPABLE)
    ).json()
    return body


PARTS: list[tuple[str, dict[str, Any]]] = [
    ("prompts/get", {"name": "up__toned", "arguments": {"subject": "rain"}}),
    ("resources/read", {"uri": "asked://rain"}),
]


@pytest.mark.parametrize("kind", BOTH)
async def test_prompts_and_resources_ask_at_any_replica(kind: str, tmp_path: Path) -> None:
    async with older_server(tmp_path, kind) as up, clients(tmp_path, up.entry) as (one, two):
        (method, params), (other_method, other_params) = PARTS
        prompt = (await rounds(one, two, method, params))["result"]
        assert prompt["messages"][0]["content"]["text"] == "rain, by Ada"
        read = (await rounds(two, one, other_method, other_params))["result"]
        assert read["contents"][0]["text"] == "rain of Ada"


async def test_a_lost_prompt_or_resource_is_one_clear_error(tmp_path: Path) -> None:
    async with older_server(tmp_path, KEEPS) as up, clients(tmp_path, up.entry) as (one, two):
        asked = [(await one.post(*part, clientCapabilities=CAPABLE)).json() for part in PARTS]
        await up.kill()
        await up.start()
        for (method, params), body in zip(PARTS, asked, strict=True):
            more = {
                "inputResponses": dict.fromkeys(body["result"]["inputRequests"], ADA),
                "requestState": body["result"]["requestState"],
            }
            _, error = await two.error(method, {**params, **more}, clientCapabilities=CAPABLE)
            assert "no longer knows the session" in error["message"]


# -- AWS Lambda ------------------------------------------------------------------------------------


async def function(folder: Path, backend: dict[str, Any], **sections: Any) -> FastAPI:
    """A gateway on AWS Lambda, over the store of a folder."""
    file = config_of({"backends": [backend], **sections})
    using = task_settings(folder, on_lambda=True, allow_anonymous=True)
    return await asyncio.to_thread(build_app, file, using)


async def test_any_function_of_aws_lambda_continues_a_call(tmp_path: Path) -> None:
    async with (
        older_server(tmp_path, KEEPS) as up,
        client(await function(tmp_path, up.entry)) as one,
        client(await function(tmp_path, up.entry)) as two,
    ):
        asked = await call(one, "greet")
        assert said(await again(two, "greet", asked, ADA)) == "Hello, Ada"
        asked = await again(one, "twice", await call(two, "twice"), ADA)
        assert said(await again(two, "twice", asked, BOB)) == "Ada and Bob"
    assert up.noted() == ["greet", "greeted"]


async def test_a_server_that_keeps_no_events_cannot_ask_on_aws_lambda(tmp_path: Path) -> None:
    async with (
        older_server(tmp_path) as up,
        client(await function(tmp_path, up.entry)) as mcp,
    ):
        assert "up__greet" in await names(mcp)
        ended = await call(mcp, "greet")
        assert ended["result"]["isError"] is True
        assert said(await call(mcp, "plain")) == "done"


async def test_a_session_that_does_not_end_does_not_delay_a_deadline_on_aws_lambda(
    tmp_path: Path,
) -> None:
    up = Upstream(session="s1")

    def slow(asked: Asked) -> Any:
        is_end = asked.rpc == "DELETE" and "tools/call" in server.methods()
        return asyncio.sleep(60, http(200)) if is_end else up(asked)

    async with scripted(slow) as server:
        app = await function(tmp_path, entry(server), limits={"call_timeout_s": 1})
        async with client(app) as mcp:
            await names(mcp)
            now = asyncio.get_running_loop().time
            since = now()
            ended = await call(mcp, "t")
            assert now() - since < 6  # the end of the session is given up after 10 s
    assert "DELETE" in server.methods()
    assert "did not finish within" in said(ended)
