"""Events of payload 2.0 are answered as Mangum answers them, and without it."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
from mangum import Mangum
from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate import lambda_events
from tests.functions.conftest import LambdaContext, asking, recorded


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield made
    made.close()
    asyncio.set_event_loop(None)


class Scripted:
    """An app that sends these messages, and keeps what it has been given."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = messages
        self.scopes: list[Scope] = []
        self.received: list[Any] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append({key: value for key, value in scope.items() if "aws" not in key})
        self.received.append(await receive())
        for message in self.messages:
            await send(message)
        self.received.append(await receive())


def both(loop: asyncio.AbstractEventLoop, app: ASGIApp, event: dict[str, Any]) -> tuple[Any, Any]:
    """Our answer, and Mangum's."""
    ours = loop.run_until_complete(lambda_events.answer(app, event, LambdaContext()))
    return ours, Mangum(cast("Any", app), lifespan="off")(event, cast("Any", LambdaContext()))


def start(status: int, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [*headers]}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


JSON = (b"content-type", b"application/json")
ANSWERS = {
    "JSON": [start(200, JSON, (b"X-Other", b"1")), body('{"a":"é"}'.encode())],
    "in parts": [start(200, JSON), body(b"[", more=True), body(b"", more=True), body(b"]")],
    "an event stream": [start(200, (b"content-type", b"text/event-stream")), body(b"data: 1\n\n")],
    "empty": [start(202), body(b"")],
    "no headers at all": [{"type": "http.response.start", "status": 204}, body(b"")],
    "a header twice": [start(200, JSON, (b"vary", b"a"), (b"Vary", b"b")), body(b"1")],
    "cookies": [start(200, JSON, (b"set-cookie", b"a=1"), (b"Set-Cookie", b"b=2")), body(b"1")],
    "an image": [start(200, (b"content-type", b"image/png")), body(b"\x89PNG")],
    "text that is none": [start(200, (b"content-type", b"text/plain")), body(b"\xff")],
    "a charset": [start(200, (b"content-type", b"text/html; charset=utf-8")), body(b"<p>")],
    "JSON of a vendor": [start(200, (b"content-type", b"application/vnd.x+json")), body(b"{}")],
}


@pytest.mark.parametrize("messages", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_is_returned_as_by_mangum(
    loop: asyncio.AbstractEventLoop, messages: list[dict[str, Any]]
) -> None:
    ours, theirs = both(loop, Scripted(*messages), asking("http_api_v2", "tools/list"))
    assert ours == theirs
    assert json.dumps(ours) == json.dumps(theirs)


def changed(**facts: Any) -> dict[str, Any]:
    event = asking("http_api_v2", "tools/list")
    http = event["requestContext"]["http"]
    http.update({key: facts.pop(key) for key in ("path", "method") if key in facts})
    headers = facts.pop("headers", {})
    return {**event, **facts, "headers": {**event["headers"], **headers}}


EVENTS = {
    "an HTTP API": asking("http_api_v2", "tools/list"),
    "a Function URL": asking("function_url", "tools/list"),
    "base64": changed(body=base64.b64encode(b"\xff\x00").decode(), isBase64Encoded=True),
    "no body": {key: value for key, value in changed().items() if key != "body"},
    "an empty body": changed(body=""),
    "a body that is null": changed(body=None),
    "cookies": changed(cookies=["a=1", "b=2"]),
    "a path with escapes": changed(path="/caf%C3%A9/mcp%2Fx"),
    "an empty path": changed(path=""),
    "a query": changed(rawQueryString="a=1&b=%20"),
    "a port": changed(headers={"Host": "mcp.example.com:8443"}),
    "a forwarded port": changed(headers={"X-Forwarded-Port": "443"}),
    "letters of other scripts": changed(headers={"x-name": "Adá"}),
    "GET": changed(method="GET"),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())
def test_a_request_reaches_the_app_as_by_mangum(
    loop: asyncio.AbstractEventLoop, event: dict[str, Any]
) -> None:
    app = Scripted(start(200), body(b""))
    both(loop, app, event)
    ours, theirs = app.scopes
    assert {**ours, "headers": [list(one) for one in ours["headers"]]} == theirs
    assert app.received[:2] == app.received[2:]


@pytest.mark.parametrize("host", ["[::1]:8000", "a:b:c", "x:y", ":", "", "x:٣"])
def test_an_odd_host_is_no_end_of_the_function(loop: asyncio.AbstractEventLoop, host: str) -> None:
    """Mangum raises for some: the client then is told 502, and the log has a traceback."""
    app = Scripted(start(421), body(b""))
    event = changed(headers={"host": host})
    answer = loop.run_until_complete(lambda_events.answer(app, event, LambdaContext()))
    assert answer["statusCode"] == 421


def test_headers_that_are_null_are_none(loop: asyncio.AbstractEventLoop) -> None:
    app = Scripted(start(200), body(b""))
    event = {**asking("http_api_v2", "tools/list"), "headers": None}
    assert loop.run_until_complete(lambda_events.answer(app, event, None))["statusCode"] == 200


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, SystemExit])
@pytest.mark.parametrize("sent", [[], [start(200, JSON), body(b"[", more=True)]])
def test_an_app_that_ends_without_an_answer_is_a_500(
    loop: asyncio.AbstractEventLoop, error: type[BaseException], sent: list[dict[str, Any]]
) -> None:
    class Failing(Scripted):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            for message in sent:
                await send(message)
            raise error("it fails")

    ours, theirs = both(loop, Failing(), asking("http_api_v2", "tools/list"))
    assert ours == theirs
    assert ours["statusCode"] == 500


def test_who_watches_for_the_end_of_the_request_is_told_after_the_answer(
    loop: asyncio.AbstractEventLoop,
) -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

        async def watch() -> None:
            told.append((await receive())["type"])

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        assert not told
        await send(start(200, JSON))
        await send(body(b"{}"))
        await watching

    event = asking("http_api_v2", "tools/list")
    assert loop.run_until_complete(lambda_events.answer(app, event, None))["body"] == "{}"
    assert told == ["http.disconnect"]


@pytest.mark.parametrize(
    ("event", "is_known"),
    [
        (recorded("http_api_v2"), True),
        (recorded("function_url"), True),
        (recorded("rest_api_v1"), False),
        ({"version": "1.0", "requestContext": {"http": {}}}, False),
        ({"version": "2.0", "requestContext": {}}, False),
        ({"requestContext": {"http": {}}}, False),
    ],
)
def test_which_events_are_ours(event: dict[str, Any], is_known: bool) -> None:
    assert lambda_events.is_known(event) is is_known


def test_mangum_is_loaded_when_an_event_needs_it_and_fastapi_never(
    environ: dict[str, str],
) -> None:
    asked = [
        asking("http_api_v2", "tools/list"),
        asking("function_url", "tools/list", path="/mcp/"),
        asking("rest_api_v1", "tools/list"),
        asking("http_api_v2", "tools/list", path="/healthz"),
        asking("http_api_v2", "tools/list", path="/elsewhere"),
    ]
    code = (
        "import json, sys\n"
        "import roundgate.lambda_http as m\n"
        "class Context:\n"
        "    def get_remaining_time_in_millis(self): return 29_000\n"
        "for event in json.load(sys.stdin):\n"
        "    answer = m.handler(event, Context())\n"
        "    print(answer['statusCode'], 'mangum' in sys.modules, 'fastapi' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(
        command, env=environ, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [
        "200 False False",
        "200 False False",
        "200 True False",
        "405 True False",
        "404 True False",
    ]
