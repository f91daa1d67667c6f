"""Services that fail, are slow or have little room: tries, keys, places, the circuit
breaker, times of parts."""

import asyncio
import gzip
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from email.utils import formatdate
from typing import Any
from uuid import uuid4

import httpx
import pytest

from roundgate.backends.http import reliability
from roundgate.backends.http.config import BreakerConfig, TimeoutsConfig
from roundgate.backends.http.messages import ServiceAnswer
from roundgate.backends.http.reliability import Breaker, retry_after_s
from roundgate.backends.http.service import no_answer
from roundgate.errors import DOUBT, BackendError, NoAnswer
from roundgate.methods.rounds import IDEMPOTENCY_KEY
from tests.support.asgi import Client
from tests.support.clocks import FixedClock, SkippingClock
from tests.support.rounds import CAPABILITIES, accept, ask, retry
from tests.support.services import Service, answer, gateway_to, service
from tests.support.task_client import TaskClient
from tests.support.till import till

QUICK = {"pause_s": 0.01}
GOOD = answer(b'"good"')
AWAY = answer(b"{}", "503 Service Unavailable")
CUT = answer(b"{}", length=50, Connection="close")
GOOD_ANSWER = ServiceAnswer(200, "OK", "application/json", b"{}")
POST = {"method": "POST", "arguments": {"a": {}}}


async def said(
    *answers: bytes, retry: dict[str, Any] | None = None, **tool: Any
) -> tuple[str, int]:
    """What the tool says when the service answers so, and how often it was asked."""
    backend = {} if retry is None else {"retry": {**QUICK, **retry}}
    async with service(*answers) as told, gateway_to(told.url, tool, **backend) as gate:
        return await gate.text("tool"), len(told.requests)


# ---- tries


@pytest.mark.parametrize("failure", [AWAY, CUT, b"", answer(b"", "429 Too Many Requests")])
async def test_what_changes_nothing_is_sent_again_where_that_is_wanted(failure: bytes) -> None:
    assert await said(failure, failure, GOOD, retry={}) == ("good", 3)
    assert (await said(failure, failure, GOOD, retry={"attempts": 2}))[1] == 2
    assert (await said(failure, GOOD))[1] == 1
    assert await said(failure, GOOD, retry={}, method="DELETE") == ("good", 2)


REPEATABLE: list[tuple[dict[str, Any], int]] = [
    ({"method": "POST"}, 1),
    ({"method": "PATCH"}, 1),
    ({"method": "GET", "idempotent": False}, 1),
    ({"method": "POST", "idempotent": True}, 2),
    ({"method": "POST", "read_only": True}, 2),
    ({"method": "POST", "idempotency_key": "X-Request-Id"}, 2),
    ({"method": "POST", "headers": {"Idempotency-Key": "own"}}, 1),
]
"""Tools, and how often each is asked if the first answer is lost."""


async def test_what_may_change_something_twice_is_sent_once() -> None:
    tools = [{"name": f"tool{number}", **tool} for number, (tool, _) in enumerate(REPEATABLE)]
    async with service() as told, gateway_to(told.url, *tools, retry=QUICK) as gate:
        for tool, (_, requests) in zip(tools, REPEATABLE, strict=True):
            for failure in (AWAY, CUT):
                told.requests.clear()
                told.answers = (failure, GOOD)
                await gate.call(str(tool["name"]))
                assert len(told.requests) == requests, (tool, failure)


async def test_an_answer_that_will_be_the_same_is_not_asked_for_again() -> None:
    statuses = ("400 Bad", "401 No", "404 Not Found", "409 Conflict", "501 No")
    answers = [answer(b"", status) for status in statuses]
    async with service(*answers) as told, gateway_to(told.url, {}, retry=QUICK) as gate:
        for status in statuses:
            assert await gate.text("tool") == f"The service answered {status}"
        assert len(told.requests) == len(statuses)


async def test_a_service_that_is_still_at_a_key_is_asked_again_for_its_answer() -> None:
    busy = answer(b"", "409 Conflict")
    keyed = {"method": "POST", "idempotency_key": "Idempotency-Key"}
    assert await said(CUT, busy, GOOD, retry={}, **keyed) == ("good", 3)
    assert (await said(busy, GOOD, retry={}, **keyed))[1] == 1
    assert (await said(CUT, busy, GOOD, retry={}, method="PUT"))[1] == 2


async def test_a_pause_that_the_service_asks_for_is_kept_if_there_is_time() -> None:
    wait = answer(b"", "429 Too Many Requests", Retry_After="0")
    assert await said(wait, GOOD, retry={}) == ("good", 2)
    longer = answer(b"", "429 Too Many Requests", Retry_After="3600")
    text, requests = await said(longer, GOOD, retry={})
    assert (text, requests) == (
        "The service answered 429 Too Many Requests; try again in 3600 s",
        1,
    )


def test_a_pause_is_asked_for_in_seconds_or_as_a_date() -> None:
    clock = FixedClock()
    at = formatdate(clock.now_ms() / 1000 + 90, usegmt=True)
    gone = formatdate(clock.now_ms() / 1000 - 90, usegmt=True)
    told = {
        "7": 7.0,
        " 0 ": 0.0,
        at: 90.0,
        gone: 0.0,
        "-5": None,
        "soon": None,
        "": None,
        None: None,
    }
    told |= {"9" * 400: 999999999.0, "١": None, "Mon, 99 Foo 2026 99:99:99 GMT": None}
    assert {value: retry_after_s(value, clock) for value in told} == told


async def test_a_charge_whose_answer_is_lost_is_charged_once_where_the_service_takes_keys() -> None:
    async with till() as one:
        one.lose = 2
        keyed = {"retry": QUICK, "idempotency_key": "Idempotency-Key"}
        async with gateway_to(one.url, POST, **keyed) as gate:
            result = await gate.call("tool", {"a": "x"})
            assert result["structuredContent"] == {"receipt": 1}
            await gate.call("tool", {"a": "x"})  # another call is another charge
        assert (one.charges, len(one.keys), len(set(one.keys))) == (['{"a":"x"}'] * 2, 4, 2)
    async with till() as one:
        one.lose = 2
        async with gateway_to(one.url, POST, retry=QUICK) as gate:
            assert (await gate.call("tool", {"a": "x"}))["isError"] is True
        assert (one.charges, one.keys) == (['{"a":"x"}'], [None])


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_later_attempt_that_is_not_sent_leaves_the_doubt_of_an_earlier_one(
    keyed: bool,
) -> None:
    breaker = {"retry": QUICK, "breaker": {"failures": 1}}
    safe = {"idempotency_key": "Idempotency-Key"} if keyed else {"idempotent": True}
    async with service(CUT, GOOD) as told, gateway_to(told.url, POST | safe, **breaker) as gate:
        text = await gate.text("tool")
        assert "is paused" in text
        assert text.endswith(DOUBT) is keyed
        assert "is paused" in (text := await gate.text("tool"))
        assert DOUBT not in text
        assert len(told.requests) == 1


async def test_the_key_of_a_client_makes_two_calls_one_charge() -> None:
    async with till() as one:
        async with gateway_to(one.url, POST, idempotency_key="Idempotency-Key") as gate:
            for key in ("a\r\nX-Evil: 1", "k", "k", "l"):
                params = {"name": "tool", "arguments": {"a": "x"}}
                named: dict[str, Any] = {"roundgate/idempotencyKey": key}
                await gate.post("tools/call", params, **named)
        assert len(one.keys) == 3
        assert len(one.charges) == 2


# ---- places


async def test_a_hundred_calls_never_have_more_than_eight_requests_under_way() -> None:
    async with till() as one:
        one.pause_s = 0.01
        limits = {"concurrent": 8, "waiting": 100}
        async with gateway_to(one.url, POST, limits=limits) as gate:
            calls = [gate.call("tool", {"a": str(number)}) for number in range(100)]
            results = await asyncio.gather(*calls)
        assert not [result for result in results if "isError" in result]
        assert (one.most_at_once, len(one.charges)) == (8, 100)


# ---- the breaker


async def test_a_breaker_opens_lets_one_through_and_heals_or_opens_again() -> None:
    clock = FixedClock()
    breaker = Breaker(BreakerConfig(failures=3, pause_s=30), "api", "h:80", clock)

    async def fail(reason: str = "it broke") -> None:
        async def send() -> ServiceAnswer:
            raise NoAnswer("It failed", reason, reached=True)

        with pytest.raises(NoAnswer):
            await breaker.watch(send)

    async def wait_for(outcome: asyncio.Future[ServiceAnswer]) -> ServiceAnswer:
        return await outcome

    async def begin() -> tuple[asyncio.Task[ServiceAnswer], asyncio.Future[ServiceAnswer]]:
        outcome = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(breaker.watch(lambda: wait_for(outcome)))
        await asyncio.sleep(0)
        return task, outcome

    async def succeed() -> None:
        task, outcome = await begin()
        outcome.set_result(GOOD_ANSWER)
        await task

    for _ in range(2):
        await fail()
    await succeed()
    late, outcome = await begin()
    for _ in range(3):
        await fail()
    with pytest.raises(
        BackendError, match=r"failed 3 times in a row, last because it broke; .* 30 s"
    ):
        breaker.check()
    outcome.set_result(GOOD_ANSWER)  # to a request that was sent before the breaker opened
    await late
    assert breaker.pause_reason() == "requests to h:80 are paused: it broke"
    clock.skip(29.5)
    with pytest.raises(BackendError, match="try again in 1 s"):
        breaker.check()
    clock.skip(1)
    assert breaker.pause_reason() == "requests to h:80 are tried again, one at a time: it broke"
    tried, _ = await begin()
    with pytest.raises(BackendError, match="in a moment"):
        await succeed()
    tried.cancel()  # the caller went away: another request may be sent
    await asyncio.gather(tried, return_exceptions=True)
    await fail("it broke again")
    with pytest.raises(
        BackendError, match=r"4 times in a row, last because it broke again; .* 30 s"
    ):
        breaker.check()
    clock.skip(31)
    await succeed()
    assert breaker.pause_reason() is None
    await succeed()


async def test_a_service_that_is_away_is_left_alone_and_heals(
    caplog: pytest.LogCaptureFixture, skipping: SkippingClock
) -> None:
    caplog.set_level(logging.INFO, "roundgate.backends")
    breaker = {"failures": 2, "pause_s": 60}
    async with service(AWAY, CUT, AWAY, GOOD) as told:
        port = told.port
        async with gateway_to(told.url, {}, breaker=breaker) as gate:
            for _ in range(2):
                await gate.call("tool")
            text = await gate.text("tool")
            assert text.startswith("api is paused: its service has failed 2 times in a row")
            assert len(told.requests) == 2
            skipping.skip(61)
            await gate.call("tool")  # the one that is tried
            assert "is paused" in await gate.text("tool")
            skipping.skip(61)
            assert [await gate.text("tool") for _ in range(3)] == ["good"] * 3
    records = [record for record in caplog.records if record.name == "roundgate.backends"]
    assert [record.getMessage() for record in records] == [
        *["requests to a host are paused"] * 2,
        "requests to a host are resumed",
    ]
    assert records[0].fields["host"] == f"127.0.0.1:{port}"  # type: ignore[attr-defined]


PAUSING: dict[str, Any] = {"breaker": {"failures": 1, "pause_s": 60}}
DONE = answer(b'{"id":"j","status":"done"}')
JOB = {"job": {"poll": "/j/{id}", "succeeded": ["done"], "failed": ["no"]}}


@pytest.fixture
def skipping(monkeypatch: pytest.MonkeyPatch) -> SkippingClock:
    """The clock of the breakers."""
    clock = SkippingClock()
    monkeypatch.setattr(reliability, "Clock", lambda: clock)
    return clock


@asynccontextmanager
async def repeated(
    told: Service, by: str, tool: dict[str, Any], **backend: Any
) -> AsyncIterator[tuple[Client, Callable[[], Awaitable[str]]]]:
    """A gateway, and a function that sends the same call of a `once` tool again."""
    override = {"tool": {"approve": "always"} if by == "approval" else {}}
    declared, other = {**POST, "once": True, **tool}, {"name": "other"}
    gateway = gateway_to(told.url, declared, other, override=override, **PAUSING, **backend)
    async with gateway as gate:
        meta: dict[str, Any] = {"clientCapabilities": CAPABILITIES}
        params: dict[str, Any] = {"name": "tool", "arguments": {"a": "1"}}
        if by == "approval":
            asked = await ask(gate, "tools/call", params)
            params = retry(params, asked, approve=accept(approve=True))
        else:
            meta[IDEMPOTENCY_KEY] = str(uuid4())  # tests share a store

        async def send() -> str:
            result = await gate.result("tools/call", params, **meta)
            return str(result["content"][0]["text"])

        yield gate, send


@pytest.mark.parametrize("tool", [{}, {"interactive": True}, JOB], ids=["plain", "asks", "job"])
@pytest.mark.parametrize("by", ["approval", "key"])
async def test_a_call_of_which_nothing_was_sent_during_a_pause_runs_after_it(
    by: str, tool: dict[str, Any], skipping: SkippingClock
) -> None:
    async with service(AWAY, DONE) as told, repeated(told, by, tool) as (gate, send):
        await gate.call("other")
        for _ in range(2):
            assert (await send()).startswith("api is paused")
        skipping.skip(61)
        assert ["done" in await send() for _ in range(3)] == [True] * 3
        assert told.request_lines.count("POST / HTTP/1.1") == 1


@pytest.mark.parametrize("failure", [AWAY, CUT])
async def test_a_call_of_which_an_attempt_was_sent_before_a_pause_does_not_run_again(
    failure: bytes, skipping: SkippingClock
) -> None:
    tool = {"idempotent": True}
    async with (
        service(failure, DONE) as told,
        repeated(told, "key", tool, retry=QUICK) as (_, send),
    ):
        first = await send()
        assert first.startswith("api is paused")
        skipping.skip(61)
        assert await send() == first
        assert len(told.requests) == 1


@pytest.mark.parametrize("tool", [{}, {"interactive": True}, JOB], ids=["plain", "asks", "job"])
async def test_a_task_waits_for_the_end_of_a_pause(
    tool: dict[str, Any], skipping: SkippingClock
) -> None:
    declared = {**POST, "task": "required", **tool}
    async with (
        service(AWAY, DONE) as told,
        gateway_to(told.url, declared, {"name": "other"}, **PAUSING) as gate,
    ):
        await gate.call("other")
        ann = TaskClient(gate)
        task_id = await ann.begin("tool", a="1")
        async with asyncio.timeout(30):
            while "statusMessage" not in (task := await ann.get(task_id)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert task["statusMessage"] == "Waiting for a place at its back end"
        assert len(told.requests) == 1
        skipping.skip(61)
        assert "done" in await ann.text(task_id)
        assert told.request_lines.count("POST / HTTP/1.1") == 1


async def test_what_a_caller_can_bring_about_opens_nothing() -> None:
    statuses = ("400 Bad", "401 No", "404 No", "429 Slow", "500 Oops")
    answers = [answer(b"", status) for status in statuses for _ in range(3)]
    async with (
        service(*answers) as told,
        gateway_to(told.url, {}, breaker={"failures": 1}) as gate,
    ):
        for status in statuses:
            for _ in range(3):
                assert status in await gate.text("tool")
        assert len(told.requests) == len(answers)


WHERE = ("http://other.example/", "http://[::1", ":http://[/?", "//", "ftp://x/", "/")


async def test_a_redirect_that_is_not_followed_is_an_answer_of_a_host_that_is_there() -> None:
    async with (
        service() as told,
        gateway_to(told.url, {}, breaker={"failures": 1}, retry=QUICK) as gate,
    ):
        for where in WHERE:
            told.answers = (answer(b"", "302 Found", Location=where),)
            texts = [await gate.text("tool") for _ in range(3)]
            assert all("redirects" in text for text in texts), (where, texts)


UNREADABLE: dict[str, dict[str, Any]] = {
    "in an unknown encoding": {"body": b"x", "Content_Encoding": "br"},
    "cut within its encoding": {"body": gzip.compress(b"x" * 999)[:-9], "Content_Encoding": "gzip"},
    "too large": {"body": b"x" * 5_000},
}


@pytest.mark.parametrize("how", UNREADABLE)
async def test_the_status_of_an_error_counts_though_its_body_cannot_be_read(how: str) -> None:
    away, gone = (
        answer(status=status, content_type="text/html", **UNREADABLE[how])
        for status in ("503 Service Unavailable", "404 Not Found")
    )
    assert await said(away, away, GOOD, retry={}) == ("good", 3)
    small: dict[str, Any] = {"max_response_bytes": 2_000, "method": "POST"}
    assert await said(gone, **small) == ("The service answered 404 Not Found", 1)
    async with service(away) as told:
        async with gateway_to(told.url, small, breaker={"failures": 2}) as gate:
            assert await gate.text("tool") == "The service answered 503 Service Unavailable"
            await gate.text("tool")
            assert "is paused" in await gate.text("tool")
        assert len(told.requests) == 2


async def test_a_redirect_that_is_refused_ends_a_row_of_failures() -> None:
    elsewhere = answer(b"", "302 Found", Location="http://other.example/")
    breaker = {"failures": 2, "pause_s": 60}
    async with (
        service(AWAY, elsewhere, AWAY, GOOD) as told,
        gateway_to(told.url, {}, breaker=breaker) as gate,
    ):
        for _ in range(3):
            await gate.call("tool")
        assert await gate.text("tool") == "good"


# ---- times of parts


async def test_a_service_that_falls_silent_is_given_up_early() -> None:
    times = {"timeouts": {"read_s": 0.1}, "timeout_s": 60}
    async with service(GOOD, pause_s=600) as told, gateway_to(told.url, {}, **times) as gate:
        assert await gate.text("tool") == (
            "GET / of api failed: the service was silent for 0.1 s (timeouts.read_s); try again later"
        )


async def test_a_tool_may_have_its_own_bound_of_an_answer() -> None:
    tools = ({"name": "small", "max_response_bytes": 10}, {"name": "usual"})
    async with (
        service(answer(b'"' + b"x" * 100 + b'"')) as told,
        gateway_to(told.url, *tools) as gate,
    ):
        assert "more than 10 bytes" in await gate.text("small")
        assert len(await gate.text("usual")) == 100


# ---- why there is no answer

PARTS = TimeoutsConfig(connect_s=1, write_s=2, read_s=3)


@pytest.mark.parametrize(
    ("error", "parts", "text", "reached"),
    [
        (
            httpx.PoolTimeout(""),
            PARTS,
            "GET / was not sent: no connection became free within 20 s (timeout_s); try again later",
            False,
        ),
        (
            httpx.ConnectTimeout(""),
            PARTS,
            "GET / could not be sent: there was no connection within 1 s (timeouts.connect_s)",
            False,
        ),
        (
            httpx.WriteTimeout(""),
            PARTS,
            "GET / failed: the service was silent for 2 s (timeouts.write_s); try again later",
            True,
        ),
        (
            httpx.ReadTimeout(""),
            PARTS,
            "GET / failed: the service was silent for 3 s (timeouts.read_s); try again later",
            True,
        ),
        (
            TimeoutError(),
            PARTS,
            "GET / did not answer within 20 s (timeout_s); try again later or ask for less",
            True,
        ),
        (
            httpx.ConnectTimeout(""),
            None,
            "GET / could not be sent: there was no connection within 20 s (timeout_s)",
            False,
        ),
    ],
)
def test_why_a_service_gave_no_answer_in_time_is_said_and_whether_it_may_have_acted(
    error: TimeoutError | httpx.HTTPError, parts: TimeoutsConfig | None, text: str, reached: bool
) -> None:
    found = no_answer(error, "GET /", 20, parts)
    assert (str(found), found.reached) == (text, reached)


async def test_a_request_that_got_no_connection_in_time_was_not_sent() -> None:
    tools = ({"name": "slow", "timeout_s": 600}, {"name": "tool", "timeout_s": 0.2})
    async with (
        service(GOOD, pause_s=600) as told,
        gateway_to(told.url, *tools, max_connections=1) as gate,
    ):
        slow = asyncio.create_task(gate.call("slow"))
        while not told.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert await gate.text("tool") == (
            "GET / of api was not sent: no connection became free within 0.2 s (timeout_s); try again later"
        )
        slow.cancel()
        assert len(told.requests) == 1


async def test_a_request_to_a_host_that_does_not_answer_was_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        for _ in range(3):  # more than the backlog holds: the next connection is not accepted
            waiting = stack.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with gateway_to(url, {}, timeout_s=0.2) as gate:
            assert await gate.text("tool") == (
                "GET / of api could not be sent: there was no connection within 0.2 s (timeout_s)"
            )
