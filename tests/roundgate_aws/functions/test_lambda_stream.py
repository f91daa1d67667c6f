"""The loop on the Runtime API: each part of a response has arrived at Lambda before the app may
send the next one, and no failure stops the loop."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from roundgate.clock import Clock
from roundgate_aws import stream as lambda_stream
from roundgate_aws.api_gateway import Hosted, make_hosted
from roundgate_aws.stack.runtime_api import (
    Head,
    InvocationFailed,
    RuntimeApi,
    Streamed,
    parted,
)
from tests.roundgate_aws.functions.conftest import asking, recorded

App = Callable[[Any, Any, Any], Awaitable[None]]
WAIT_S = 60


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[RuntimeApi]:
    """A Runtime API whose events an app in this process gets."""
    api = RuntimeApi()
    address = await api.start()
    hosted = Hosted(cast("Any", app), ["/mcp"], Clock(), "")
    loop = asyncio.create_task(lambda_stream.serve(address, hosted))
    try:
        async with asyncio.timeout(WAIT_S):
            yield api
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        api.close()


def event(**members: Any) -> dict[str, Any]:
    """An event of a REST API."""
    return {**recorded("rest_api_v1"), **members}


def invoked(api: RuntimeApi, event: Any, timeout_s: float = 30) -> Streamed:
    return api.invoke(Streamed(json.dumps(event).encode(), timeout_s))


async def whole(streamed: Streamed) -> tuple[Head, bytes]:
    """The head and the body of a response that does not fail."""
    chunks = streamed.chunks()
    head, body = await parted(chunks)
    async for chunk in chunks:
        body += chunk
    return head, body


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Answers what it was asked."""
    body = (await receive())["body"]
    await send(start(200, (b"content-type", b"text/plain")))
    await send(part(scope["path"].encode() + b" " + body))


async def test_each_part_arrives_before_the_app_may_send_the_next() -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start(200, (b"content-type", b"text/event-stream")))
        for number, gate in enumerate(gates):
            await gate.wait()
            await send(part(b"data: %d\n\n" % number, more=True))
        await send(part(b""))

    async with serving(app) as api:
        chunks = invoked(api, event()).chunks()
        head, rest = await parted(chunks)  # before any gate is open
        assert head == Head(200, [("content-type", "text/event-stream")])
        assert rest == b""
        for number, gate in enumerate(gates):
            gate.set()
            assert await anext(chunks) == b"data: %d\n\n" % number
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)


async def test_the_head_has_every_header_and_each_cookie_alone() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"Vary", b"Origin"), (b"vary", b"Accept"), (b"X-Name", "é".encode("latin-1"))]
        cookies = [(b"set-cookie", b"a=1; Path=/"), (b"Set-Cookie", b"b=2")]
        await send(start(404, *headers, *cookies))
        await send(part(b"no"))

    async with serving(app) as api:
        head, body = await whole(invoked(api, event()))
    assert head.status == 404
    assert [*head.headers] == [
        ("vary", "Origin, Accept"),
        ("x-name", "é"),
        ("set-cookie", "a=1; Path=/"),
        ("set-cookie", "b=2"),
    ]
    assert body == b"no"


async def test_a_response_without_a_body_has_its_head() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start(202))
        await send(part(b""))

    async with serving(app) as api:
        assert await whole(invoked(api, event())) == (Head(202, []), b"")


@pytest.mark.parametrize(
    ("members", "body"),
    [
        ({"body": "Adá"}, "Adá".encode()),
        ({"body": base64.b64encode(b"\xff\x00").decode(), "isBase64Encoded": True}, b"\xff\x00"),
        ({"body": None}, b""),
    ],
    ids=["text", "base64", "none"],
)
async def test_the_app_gets_the_body_of_the_event(members: dict[str, Any], body: bytes) -> None:
    async with serving(hello) as api:
        assert (await whole(invoked(api, event(**members))))[1] == b"/mcp " + body


async def test_the_app_gets_queries_and_repeated_headers() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        await send(start())
        await send(part(f"{scope['query_string'].decode()} {headers['accept']}".encode()))

    asked = event(multiValueQueryStringParameters={"a": ["1", "2 3"]})
    asked["multiValueHeaders"] = {"Accept": ["text/event-stream", "application/json"]}
    async with serving(app) as api:
        _, body = await whole(invoked(api, asked))
    assert body == b"a=1&a=2+3 text/event-stream, application/json"


@pytest.mark.parametrize(
    "broken",
    [
        {"headers": {"Host": "a:b"}, "multiValueHeaders": None},
        {"body": "\ud800"},
        {"body": "A", "isBase64Encoded": True},
    ],
    ids=["a host that is none", "a lone surrogate", "no base64"],
)
async def test_an_event_that_is_no_request_is_answered_400(broken: dict[str, Any]) -> None:
    async with serving(hello) as api:
        head, body = await whole(invoked(api, event(**broken)))
        assert head.status == 400
        assert b"error" in body
        assert (await whole(invoked(api, event())))[0].status == 200


async def fails_before_its_head(scope: Any, receive: Any, send: Any) -> None:
    raise KeyError("password=hunter2")


async def sends_nothing(scope: Any, receive: Any, send: Any) -> None:
    pass


async def cancels_itself(scope: Any, receive: Any, send: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def raises_cancelled_error(scope: Any, receive: Any, send: Any) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("app", "kind"),
    [
        (fails_before_its_head, "KeyError"),
        (sends_nothing, "RuntimeError"),
        (cancels_itself, "RuntimeError"),
        (raises_cancelled_error, "RuntimeError"),
    ],
    ids=["an error", "no response", "cancels itself", "CancelledError"],
)
async def test_an_app_that_fails_before_its_head_is_an_error_of_the_function(
    app: App, kind: str
) -> None:
    async with serving(app) as api:
        for _ in range(2):  # the loop goes on
            with pytest.raises(InvocationFailed) as failed:
                await whole(invoked(api, event()))
            assert failed.value.report["errorType"] == kind
            assert "hunter2" not in json.dumps(failed.value.report)


@pytest.mark.parametrize(
    "error",
    [ValueError("password=hunter2"), asyncio.CancelledError(), None],
    ids=["an error", "CancelledError", "no end"],
)
async def test_an_app_that_fails_after_its_head_breaks_the_stream_off(
    error: BaseException | None,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(part(b"one", more=True))
        if error is not None:
            raise error

    async with serving(app) as api:
        for _ in range(2):
            chunks = invoked(api, event()).chunks()
            head, rest = await parted(chunks)
            assert head.status == 200
            assert (rest or await anext(chunks)) == b"one"
            with pytest.raises(InvocationFailed) as failed:
                await anext(chunks)
            assert failed.value.report["errorType"] == "Runtime.TruncatedResponse"


async def test_an_app_that_fails_after_its_response_leaves_it_whole() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start(500))
        await send(part(b"x" * 1_000_000))
        raise ValueError  # as Starlette does after its page for an error

    async with serving(app) as api:
        for _ in range(2):
            head, body = await whole(invoked(api, event()))
            assert (head.status, len(body)) == (500, 1_000_000)


async def test_an_event_of_another_kind_is_an_error_of_the_function() -> None:
    async with serving(hello) as api:
        odd_events: list[Any] = [{"Records": []}, [], "text", {"requestContext": {}}]
        for odd in odd_events:
            with pytest.raises(InvocationFailed):
                await whole(invoked(api, odd))
        assert (await whole(invoked(api, event())))[0].status == 200


async def test_a_receiver_that_leaves_is_a_client_that_hung_up() -> None:
    told = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(start())
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send(part(b": keep-alive\n\n", more=True))
            await asyncio.sleep(0)
        assert gone.result() == {"type": "http.disconnect"}
        await send(part(b"late"))  # no error
        told.set()

    async with serving(app) as api:
        streamed = invoked(api, event())
        await parted(streamed.chunks())
        streamed.leave()
        await told.wait()
        again = invoked(api, event())
        assert (await parted(again.chunks()))[0].status == 200
        again.leave()


async def test_an_app_that_reads_on_after_its_response_gets_a_disconnect() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await hello(scope, receive, send)
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(app) as api:
        for _ in range(2):
            assert (await whole(invoked(api, event())))[1].startswith(b"/mcp ")


@pytest.mark.parametrize("completes", [True, False], ids=["complete", "failed"])
async def test_a_response_that_lambda_does_not_read_is_broken_off(
    monkeypatch: pytest.MonkeyPatch, completes: bool
) -> None:
    if completes:  # a failed response has nothing to wait for
        monkeypatch.setattr(lambda_stream, "END_S", 0.1)

    runs: list[Any] = []
    goes_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(scope)
        if len(runs) > 1:
            goes_on.set()
            return
        await send(start())
        await send(part(bytes(50_000_000), more=True))
        if completes:
            await send(part(b""))

    async with serving(app) as api:
        streamed = Streamed(json.dumps(event()).encode(), 30)
        streamed.is_read.clear()
        api.invoke(streamed)
        invoked(api, event())
        await goes_on.wait()
        streamed.is_read.set()
        with pytest.raises(InvocationFailed) as failed:
            await whole(streamed)
        assert failed.value.report["errorType"] == "Runtime.TruncatedResponse"


@pytest.mark.parametrize("turns", range(4))
async def test_a_runtime_api_that_ends_closes_connections_that_are_just_accepted(
    turns: int,
) -> None:
    """A function asks for its next event while its environment ends."""
    api = RuntimeApi()
    host, port = (await api.start()).split(":")
    with socket.create_connection((host, int(port))) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        api.close()
        client.settimeout(WAIT_S)
        with suppress(ConnectionResetError):  # before it was accepted
            assert await asyncio.to_thread(client.recv, 1) == b""


async def test_the_app_knows_how_long_the_invocation_may_take() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(part(str(scope["aws.context"].get_remaining_time_in_millis()).encode()))

    async with serving(app) as api:
        assert 540_000 < int((await whole(invoked(api, event(), 600)))[1]) <= 600_000


async def test_invocations_share_one_event_loop_and_leave_nothing_behind() -> None:
    loops = set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        loops.add(id(asyncio.get_running_loop()))
        await hello(scope, receive, send)

    async with serving(app) as api:
        for _ in range(50):
            assert (await whole(invoked(api, event())))[1].startswith(b"/mcp ")
        assert len(loops) == 1
        assert not api._running


# The authorizer of the API

AUTH = {"issuer": "https://issuer.example", "jwks_url": "https://127.0.0.1:9/keys"}
ARN = "arn:aws:execute-api:eu-central-1:123456789012:f6g7h8i9j0/live/POST/mcp"


def token() -> str:
    """A token that nobody has signed."""
    parts = ({"alg": "RS256", "kid": "1"}, {"iss": AUTH["issuer"], "sub": "ada"})
    encoded = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in parts]
    return "Bearer " + b".".join([*encoded, b"c2lnbmF0dXJl"]).decode()


@pytest.mark.parametrize(
    ("authorization", "effect"),
    [
        ("Bearer nonsense", "Deny"),
        ("Basic YWRhOmFkYQ==", "Deny"),
        (token(), "Allow"),  # the keys cannot be had: the gateway itself answers that
        ("Bearer \ud800", "Deny"),
    ],
    ids=["no token", "another scheme", "no keys", "a lone surrogate"],
)
async def test_the_authorizer_refuses_what_no_endpoint_would_take(
    environ: dict[str, str], authorization: str, effect: str
) -> None:
    file = Path(environ["GATEWAY_CONFIG"])
    file.write_text(json.dumps({**json.loads(file.read_text()), "auth": AUTH}))  # noqa: ASYNC240
    del environ["GATEWAY_ALLOW_ANONYMOUS"]
    environ["GATEWAY_PUBLIC_URL"] = "https://mcp.example.com"
    hosted = make_hosted(environ)
    api = RuntimeApi()
    loop = asyncio.create_task(lambda_stream.serve(await api.start(), hosted))
    asked = event(type="REQUEST", methodArn=ARN, headers={"authorization": authorization})
    del asked["body"], asked["isBase64Encoded"]
    try:
        answer = b"".join([chunk async for chunk in invoked(api, asked).chunks()])
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        api.close()
    (statement,) = json.loads(answer)["policyDocument"]["Statement"]
    assert statement == {
        "Action": "execute-api:Invoke",
        "Effect": effect,
        "Resource": "arn:aws:execute-api:eu-central-1:123456789012:f6g7h8i9j0/live/*",
    }


# The process that the wrapper script starts


@asynccontextmanager
async def running(environ: Mapping[str, str]) -> AsyncIterator[tuple[RuntimeApi, Any]]:
    """The gateway as a process of its own, and the Runtime API that it asks."""
    api = RuntimeApi()
    address = await api.start()
    path = {"PATH": os.environ["PATH"], "AWS_LAMBDA_RUNTIME_API": address}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "roundgate_aws.stream"),
        env={**path, **environ},
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(WAIT_S):
            yield api, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        api.close()


async def test_progress_of_a_tool_leaves_the_function_as_it_is_made(
    environ: dict[str, str], tmp_path: Path
) -> None:
    params = {"name": "counted", "arguments": {"gates": str(tmp_path)}}
    asked = asking("rest_api_v1", "tools/call", params)
    message = json.loads(asked["body"])
    message["params"]["_meta"]["progressToken"] = "p"
    asked["body"] = json.dumps(message)
    async with running(environ) as (api, _):
        chunks = invoked(api, asked, 60).chunks()
        for step in range(1, 4):
            (tmp_path / str(step)).touch()
            if step == 1:
                head, text = await parted(chunks)
                assert ("content-type", "text/event-stream") in head.headers
            else:
                text = b""
            while f'"progress":{step}'.encode() not in text:
                text += await anext(chunks)
            assert f'"progress":{step + 1}'.encode() not in text
        rest = b"".join([chunk async for chunk in chunks])
        assert b"counted" in rest
        plain = asking("rest_api_v1", "tools/call", {"name": "greet", "arguments": {"name": "A"}})
        head, body = await whole(invoked(api, plain, 60))
        assert json.loads(body)["result"]["content"][0]["text"] == "Hello, A!"


async def test_a_stop_signal_ends_the_process_properly(environ: dict[str, str]) -> None:
    async with running(environ) as (api, process):
        plain = asking("rest_api_v1", "tools/list")
        assert (await whole(invoked(api, plain, 60)))[0].status == 200
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")


async def test_an_app_that_cannot_start_is_reported_in_the_init_phase(
    environ: dict[str, str],
) -> None:
    del environ["GATEWAY_ALLOW_ANONYMOUS"]
    async with running(environ) as (api, process):
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert api.init_error is not None
        assert api.init_error["errorType"] == "ConfigError"
        assert b"GATEWAY_ALLOW_ANONYMOUS" in errors
