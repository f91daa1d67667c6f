"""Events with what attackers write into requests: both functions answer them, with the statuses that
other servers give, and nothing of a request becomes a header of the response."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias, cast

import pytest

from roundgate_aws import http as lambda_http
from roundgate_aws import stream as lambda_stream
from roundgate_aws.api_gateway import make_hosted
from roundgate_aws.stack.runtime_api import RuntimeApi, Streamed, parted
from tests.roundgate_aws.functions.conftest import LambdaContext, asking, environment
from tests.support import root_logger

KINDS = ["http_api_v2", "rest_api_v1"]
SECRET_VIEW = {"name": "few", "include": [{"name": "greet"}]}
Answer: TypeAlias = tuple[int, list[tuple[str, str]], str]
Ask: TypeAlias = Callable[[dict[str, Any]], Answer]


@contextmanager
def buffered(environ: dict[str, str]) -> Iterator[Ask]:
    with closing(lambda_http.make_handler(environ)) as handler:

        def ask(event: dict[str, Any]) -> Answer:
            answer = handler(json.loads(json.dumps(event)), cast("Any", LambdaContext()))
            headers = [*answer.get("headers", {}).items()]
            for name, values in answer.get("multiValueHeaders", {}).items():
                headers += [(name, value) for value in values]
            headers += [("set-cookie", cookie) for cookie in answer.get("cookies", ())]
            return answer["statusCode"], headers, answer["body"]

        yield ask


@contextmanager
def streamed(environ: dict[str, str]) -> Iterator[Ask]:
    with asyncio.Runner() as runner:
        api = RuntimeApi()

        async def begin() -> asyncio.Task[None]:
            serving = lambda_stream.serve(await api.start(), make_hosted(environ))
            return asyncio.create_task(serving)

        async def end() -> None:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
            api.close()

        async def answer(event: dict[str, Any]) -> Answer:
            async with asyncio.timeout(60):
                chunks = api.invoke(Streamed(json.dumps(event).encode(), 60)).chunks()
                head, body = await parted(chunks)
                body += b"".join([chunk async for chunk in chunks])
                return head.status, [*head.headers], body.decode()

        loop = runner.run(begin())
        yield lambda event: runner.run(answer(event))
        runner.run(end())


@pytest.fixture(scope="module", params=[buffered, streamed], ids=["buffered", "streamed"])
def ask(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """A function that answers an event. Its gateway has a view besides the endpoint of all tools."""
    sections = {"views": [SECRET_VIEW], "http": {"max_body_bytes": 10_000}}
    environ = environment(tmp_path_factory.mktemp("hostile"), **sections)
    with root_logger.lent(), request.param(environ) as ask:
        yield ask


def with_header(event: dict[str, Any], name: str, *values: str) -> dict[str, Any]:
    """The event with a header, spelt as API Gateway spells repeated ones in each payload."""
    for known in [known for known in event["headers"] if known.lower() == name.lower()]:
        del event["headers"][known]
        event.get("multiValueHeaders", {}).pop(known, None)
    if "multiValueHeaders" in event:
        event["headers"][name] = values[-1]
        event["multiValueHeaders"][name] = list(values)
    else:
        event["headers"][name] = ",".join(values)
    return event


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        *("Origin", "Host", "Accept", "Content-Type", "MCP-Protocol-Version", "Mcp-Method"),
        *("Mcp-Name", "Mcp-Session-Id", "Authorization", "traceparent", "X-Forwarded-Proto"),
        *("X-Forwarded-Host", "X-Forwarded-For", "Access-Control-Request-Headers"),
    ],
)
def test_no_header_of_a_request_adds_one_to_the_response(ask: Ask, kind: str, name: str) -> None:
    injected = "https://a.example\r\nSet-Cookie: stolen=1\r\n\r\n<script>"
    status, headers, _ = ask(with_header(asking(kind, "tools/list"), name, injected))
    assert status < 500
    for header in headers:
        assert not {"\r", "\n"} & {*"".join(header)}
        assert "stolen" not in "".join(header)


def at(kind: str, path: str) -> dict[str, Any]:
    """A request for a path that the API passes on as it is."""
    event = asking(kind, "tools/list", path=path)
    event["pathParameters"] = {"proxy": path[1:]}
    return event | ({"resource": "/{proxy+}"} if "resource" in event else {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "path",
    [
        *("//mcp", "//few/mcp", "/mcp//", "//a.example/mcp", "/./mcp", "/few/../mcp", "/mcp;x=1"),
        *("/%252Fmcp", "/%2Fmcp", "/few%252Fmcp", "/mcp%00", "/mcp%0d%0aX-A:1", "/MCP", "/\\mcp"),
        *("/..%2F.well-known%2Fmcp", "/%2e%2e/mcp", "/\ud800/mcp", "/mcp%ff", "/" + "a" * 100_000),
    ],
    ids=lambda path: ascii(path[:30]),
)
def test_a_path_that_is_no_endpoint_is_not_found(ask: Ask, kind: str, path: str) -> None:
    status, headers, body = ask(at(kind, path))
    assert status == 404, body[:200]
    assert "location" not in dict(headers)
    assert "inputSchema" not in body


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoded_slash_reaches_the_same_endpoint_as_elsewhere(ask: Ask, kind: str) -> None:
    status, _, body = ask(at(kind, "/few%2Fmcp"))
    assert status == 200
    assert [tool["name"] for tool in json.loads(body)["result"]["tools"]] == ["greet"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Mcp-Method", ("tools/list", "tools/call")),
        ("Mcp-Method", ("tools/call", "tools/list")),
        ("MCP-Protocol-Version", ("2026-07-28", "2025-06-18")),
        ("Content-Type", ("application/json", "text/plain")),
        ("Host", ("a.example:80:90",)),
    ],
)
def test_a_header_that_is_repeated_is_not_read_in_two_ways(
    ask: Ask, kind: str, name: str, values: tuple[str, ...]
) -> None:
    status, _, _ = ask(with_header(asking(kind, "tools/list"), name, *values))
    assert 400 <= status < 500


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("A", 400),
        ("not base64 \u00e9", 400),
        ("====", 400),
        (base64.b64encode(b"\xff\xfe").decode(), 400),
        (base64.b64encode(b" " * 10_001).decode(), 413),
    ],
    ids=["too short", "not ASCII", "padding only", "not UTF-8", "too large"],
)
def test_a_base64_body_is_refused_as_a_plain_one_would_be(
    ask: Ask, kind: str, body: str, status: int
) -> None:
    event = asking(kind, "tools/list") | {"body": body, "isBase64Encoded": True}
    assert ask(event)[0] == status


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["Authorization", "Mcp-Name", "Origin", "Cookie", "X-Other", "traceparent", "Accept"]
)
def test_a_header_of_a_megabyte_is_answered_and_not_repeated(
    ask: Ask, kind: str, name: str
) -> None:
    status, headers, body = ask(with_header(asking(kind, "tools/list"), name, "b" * 1_000_000))
    assert status < 500
    assert len(json.dumps(headers)) + len(body) < 100_000
