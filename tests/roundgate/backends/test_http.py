"""The gateway in front of real HTTP: httpbin, and services that misbehave."""

import asyncio
import gzip
import json
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from roundgate import observability as logs
from roundgate.backends.http.config import HttpBackendConfig
from roundgate.errors import ConfigError
from roundgate_aws.machine import reserved_port
from tests.support import root_logger, wire
from tests.support.services import answer, gateway_to, service

ANY: dict[str, Any] = {"schema": {}}


async def anything(
    base_url: str, arguments: dict[str, Any], tool: dict[str, Any], **backend: Any
) -> dict[str, Any]:
    """What httpbin says it was sent."""
    async with gateway_to(base_url, {"path": "/anything", **tool}, **backend) as gate:
        found: dict[str, Any] = (await gate.call("tool", arguments))["structuredContent"]
        return found


async def test_arguments_arrive_where_they_were_placed(httpbin_url: str) -> None:
    tool = {
        "method": "PUT",
        "path": "/anything/{user}",
        "query": {"v": "2"},
        "headers": {"X-Fixed": "f"},
        "arguments": {
            "user": {},
            "tags": {"in": "query", "as": "tag", **ANY},
            "kind": {"in": "header", "as": "X-Kind"},
            "note": ANY,
        },
    }
    arguments = {"user": "ann é", "tags": ["a b", "c&d"], "kind": "k", "note": {"n": None}}
    found = await anything(httpbin_url, arguments, tool, headers={"X-All": "a"})
    assert found["method"] == "PUT"
    assert found["url"].startswith(f"{httpbin_url}/anything/ann")
    assert found["args"] == {"v": "2", "tag": ["a b", "c&d"]}
    assert found["json"] == {"note": {"n": None}}
    sent = found["headers"]
    assert (sent["X-All"], sent["X-Fixed"], sent["X-Kind"]) == ("a", "f", "k")
    assert (sent["Content-Type"], sent["User-Agent"]) == ("application/json", "roundgate")


async def test_each_method_is_used(httpbin_url: str) -> None:
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    tools = [{"name": method, "method": method, "path": "/anything"} for method in methods]
    async with gateway_to(httpbin_url, *tools) as gate:
        assert [(await gate.call(one))["structuredContent"]["method"] for one in methods] == methods


async def test_a_request_looks_for_no_module(
    httpbin_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import that fails is tried again each time, and asks the disk (docs/decisions/0003)."""
    sought: list[str] = []

    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            sought.append(name)

    tool = {"name": "get", "path": "/anything"}
    async with gateway_to(httpbin_url, tool) as gate:
        await gate.call("get")
        monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
        await gate.call("get")
    assert sought == []


async def test_head_has_no_answer_but_its_status(httpbin_url: str) -> None:
    async with gateway_to(httpbin_url, {"path": "/get", "method": "HEAD"}) as gate:
        assert await gate.text("tool") == "200 OK"


SEGMENTS = {
    "100%": "100%25",
    "%41": "%2541",
    "...": "...",
    "a..b": "a..b",
    "é?x#y": "%C3%A9%3Fx%23y",
    "a b+c": "a%20b%2Bc",
    "a\r\nX: y": "a%0D%0AX%3A%20y",
}


async def test_a_path_value_is_one_segment_on_the_wire() -> None:
    async with service() as told, gateway_to(f"{told.url}/base/", {"path": "/v/{a}/w"}) as gate:
        for value in SEGMENTS:
            assert "isError" not in await gate.call("tool", {"a": value})
    assert told.request_lines == [
        f"GET /base/v/{segment}/w HTTP/1.1" for segment in SEGMENTS.values()
    ]


async def test_an_argument_that_allows_slashes_is_several_segments_but_never_climbs() -> None:
    tool = {"path": "/v/{a}/w", "arguments": {"a": {"allow_slash": True}}}
    async with service() as told, gateway_to(told.url, tool) as gate:
        for value in ("a/b c/d.txt", "a"):
            assert "isError" not in await gate.call("tool", {"a": value})
        for value in (
            "../b",
            "a/../b",
            "a/%2e%2e/b",
            "a//b",
            "/a",
            "a/",
            "a\\b",
            "a/..;x/b",
            "..",
            "",
        ):
            assert "arguments.a: may not" in await gate.text("tool", {"a": value})
    assert told.request_lines == ["GET /v/a/b%20c/d.txt/w HTTP/1.1", "GET /v/a/w HTTP/1.1"]


async def test_invalid_or_unknown_arguments_are_refused_before_anything_is_sent() -> None:
    tool = {"arguments": {"n": {"schema": {"type": "integer", "maximum": 5}, "required": True}}}
    async with service() as told, gateway_to(told.url, tool) as gate:
        assert "arguments.n: 6 is greater than the maximum of 5" in await gate.text(
            "tool", {"n": 6}
        )
        assert '"n" is a required property' in await gate.text("tool")
        assert "'m' was unexpected" in await gate.text("tool", {"n": 1, "m": 1})
    assert told.requests == []


SECRET = "s3cret-of-the-service"
CREDENTIALS = [
    ({"bearer": SECRET}, {"Authorization": f"Bearer {SECRET}"}),
    ({"basic": f"user:{SECRET}"}, {"Authorization": "Basic dXNlcjpzM2NyZXQtb2YtdGhlLXNlcnZpY2U="}),
    ({"header": "X-Api-Key", "value": SECRET}, {"X-Api-Key": SECRET}),
    ({"query": "api key", "value": SECRET}, {}),
]


credentials = pytest.mark.parametrize(
    ("credential", "headers"), CREDENTIALS, ids=["bearer", "basic", "header", "query"]
)


@credentials
async def test_a_credential_is_sent_with_every_request(
    credential: dict[str, str], headers: dict[str, str]
) -> None:
    tool: dict[str, Any] = {"arguments": {"a": {}}}
    async with service() as told, gateway_to(told.url, tool, credential=credential) as gate:
        await gate.call("tool", {"a": "b"})
    for name, value in headers.items():
        assert told.header(name) == [value]
    assert told.request_lines == [f"GET /?a=b{'' if headers else f'&api+key={SECRET}'} HTTP/1.1"]


ECHOES = ("/anything", "/headers", "/status/418", "/basic-auth/a/b")


@credentials
async def test_a_credential_that_a_service_echoes_is_taken_out(
    httpbin_url: str, credential: dict[str, str], headers: Any
) -> None:
    tools = [{"name": path.replace("/", "_"), "path": path} for path in ECHOES]
    fixed = {"X-Session-Token": "another-s3cret", "X-Plain": "a-plain-header"}
    async with gateway_to(httpbin_url, *tools, credential=credential, headers=fixed) as gate:
        said = [json.dumps(await gate.call(tool["name"])) for tool in tools]
    for secret in (SECRET, "another-s3cret", "dXNlcjpzM2NyZXQtb2YtdGhlLXNlcnZpY2U"):
        assert secret not in "".join(said)
    for text in said[:2]:
        assert "a-plain-header" in text
        assert "[redacted]" in text


async def test_a_credential_in_a_reason_phrase_a_type_or_an_error_is_taken_out() -> None:
    says = [
        answer(SECRET.encode(), f"500 {SECRET}"),
        answer(b"x", content_type=f"text/plain; was={SECRET}"),
        answer(f'{{"token": "{SECRET}"'.encode()),
        answer(b"\x00", content_type=f"application/{SECRET}"),
    ]
    async with (
        service(*says) as told,
        gateway_to(told.url, {}, credential={"bearer": SECRET}) as gate,
    ):
        for _ in says:
            assert SECRET not in json.dumps(await gate.call("tool"))


@pytest.mark.parametrize(
    ("credential", "argument"),
    [
        ({"bearer": SECRET}, {"in": "header", "as": "authorization"}),
        ({"basic": SECRET}, {"in": "header", "as": "Authorization"}),
        ({"header": "X-Api-Key", "value": SECRET}, {"in": "header", "as": "x-api-key"}),
        ({"query": "key", "value": SECRET}, {"in": "query", "as": "key"}),
        ({"bearer": SECRET}, {"in": "header", "as": "X-Fixed"}),
        ({"bearer": SECRET}, {"in": "query", "as": "fixed"}),
        ({"bearer": SECRET}, {"in": "header", "as": "Host"}),
        ({"bearer": SECRET}, {"in": "header", "as": "transfer-encoding"}),
    ],
)
async def test_an_argument_cannot_take_the_place_of_what_the_gateway_sends(
    credential: dict[str, str], argument: dict[str, str]
) -> None:
    tool = {"arguments": {"a": argument}, "headers": {"x-fixed": "1"}, "query": {"fixed": "1"}}
    with pytest.raises(ConfigError, match="is reserved for the gateway"):
        async with gateway_to("http://127.0.0.1:1", tool, credential=credential):
            pass


async def test_httpbin_lets_in_whom_it_knows(httpbin_url: str) -> None:
    tool = {"path": "/basic-auth/user/pass"}
    async with gateway_to(httpbin_url, tool, credential={"basic": "user:pass"}) as gate:
        assert (await gate.call("tool"))["structuredContent"] == {
            "authenticated": True,
            "user": "user",
        }
    async with gateway_to(httpbin_url, tool, credential={"basic": "user:wrong"}) as gate:
        assert (await gate.text("tool")).startswith("The service answered 401 UNAUTHORIZED")


FAILURES = [
    answer(b'{"ok": true}', "500 Oops"),
    answer(b"", "302 Found", Location="http://elsewhere.example/?k=v"),
    answer(b"", "302 Found", Location="http://[::1"),
    answer(b'"%b"' % (b"x" * 200)),
    answer(b"{"),
    answer(b"{}", length=50, Connection="close"),
    b"what?\r\n\r\n",
]


@credentials
async def test_a_credential_is_in_no_error_and_no_log(
    capfd: pytest.CaptureFixture[str], credential: dict[str, str], headers: Any
) -> None:
    limits = {"credential": credential, "max_response_bytes": 100}
    with root_logger.lent() as logger:
        logs.configure("debug")
        async with service(*FAILURES) as told, gateway_to(told.url, {}, **limits) as gate:
            responses = [
                await gate.post("tools/call", {"name": "tool"}, logLevel="debug") for _ in FAILURES
            ]
        logger.handlers.clear()
    assert all('"isError":true' in response.text for response in responses)
    logged = capfd.readouterr().err
    assert logged.count('"msg":"request"') == len(FAILURES)
    for text in (logged, *(response.text for response in responses)):
        assert SECRET not in text
        assert "dXNlcjpzM2NyZXQtb2YtdGhlLXNlcnZpY2U" not in text


@credentials
def test_a_credential_and_fixed_headers_are_in_no_repr(
    credential: dict[str, str], headers: Any
) -> None:
    tool = {"name": "t", "description": "d", "path": "/", "headers": {"X-Key": SECRET}}
    config = HttpBackendConfig.model_validate(
        {
            "kind": "http",
            "name": "a",
            "base_url": "http://h",
            "credential": credential,
            "headers": {"X": SECRET},
            "tools": [tool],
        }
    )
    assert SECRET not in f"{config!r} {config} {config.model_dump()} {config.model_dump_json()}"


async def test_the_token_of_the_caller_is_never_passed_on() -> None:
    async with service() as told, gateway_to(told.url, {}) as gate:
        headers: dict[str, str | None] = {
            "authorization": "Bearer of-the-caller",
            "cookie": "a=b",
            "x-any": "z",
        }
        response = await gate.post("tools/call", {"name": "tool"}, headers=headers)
    assert "isError" not in response.json()["result"]
    assert {"authorization", "cookie", "x-any"}.isdisjoint(
        told.requests[0].decode().lower().replace(":", " ").split()
    )


async def test_a_cookie_that_one_call_was_given_is_not_sent_with_another(httpbin_url: str) -> None:
    tools = (
        {"name": "set", "path": "/cookies/set/session/ann"},
        {"name": "show", "path": "/cookies"},
    )
    async with gateway_to(httpbin_url, *tools) as gate:
        assert (await gate.call("set"))["structuredContent"] == {"cookies": {}}
        assert (await gate.call("show"))["structuredContent"] == {"cookies": {}}


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(answer(b'"proxy"')) as proxy, service(answer(b'"service"')) as told:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        async with gateway_to(told.url, {}) as gate:
            assert await gate.text("tool") == "service"
    assert proxy.requests == []


@pytest.mark.parametrize("hops", [1, 5])
async def test_redirects_on_the_same_origin_are_followed_with_the_credential(
    httpbin_url: str, hops: int
) -> None:
    async with gateway_to(
        httpbin_url, {"path": f"/redirect/{hops}"}, credential={"bearer": SECRET}
    ) as gate:
        found = (await gate.call("tool"))["structuredContent"]
    assert found["url"] == f"{httpbin_url}/get"
    assert found["headers"]["Authorization"] == "Bearer [redacted]"


@pytest.mark.parametrize(
    ("location", "asked"),
    [("/b", "/b?key="), ("/b?x=1", "/b?x=1&key="), ("/b?key=own", "/b?key=own")],
)
async def test_a_key_in_the_query_goes_with_a_redirect_unless_it_has_one(
    location: str, asked: str
) -> None:
    async with service(answer(b"", "302 Found", Location=location), answer(b'"arrived"')) as told:
        async with gateway_to(
            told.url, {"path": "/a"}, credential={"query": "key", "value": SECRET}
        ) as gate:
            assert await gate.text("tool") == "arrived"
        assert told.request_lines == [
            f"GET /a?key={SECRET} HTTP/1.1",
            f"GET {asked}{SECRET if asked.endswith('key=') else ''} HTTP/1.1",
        ]


async def test_redirects_without_end_are_not_followed_for_ever(httpbin_url: str) -> None:
    async with gateway_to(httpbin_url, {"path": "/redirect/6"}) as gate:
        assert await gate.text("tool") == "GET /redirect/6 of api redirects more than 5 times"


async def test_a_redirected_post_keeps_its_body_where_the_status_says_so(httpbin_url: str) -> None:
    tool = {
        "method": "POST",
        "path": "/redirect-to",
        "arguments": {"url": {"in": "query"}, "status_code": {"in": "query"}, "a": {}},
    }
    async with gateway_to(httpbin_url, tool) as gate:
        kept = await gate.call("tool", {"url": "/anything", "status_code": "307", "a": "b"})
        changed = await gate.call("tool", {"url": "/anything", "status_code": "303", "a": "b"})
    assert (kept["structuredContent"]["method"], kept["structuredContent"]["json"]) == (
        "POST",
        {"a": "b"},
    )
    assert (changed["structuredContent"]["method"], changed["structuredContent"]["json"]) == (
        "GET",
        None,
    )


ELSEWHERE = (
    "http://127.0.0.1:{other}/x",
    "http://localhost:{port}/x",
    "https://127.0.0.1:{port}/x",
    "//127.0.0.1:{other}/x",
    "http://127.0.0.1:{port}@localhost:{other}/x",
    "http://[::1]:{port}/x",
    "ftp://127.0.0.1:{port}/x",
    "file:///etc/passwd",
    "http://127.0.0.1:99999/",
    "http://127.0.0.1:-1/",
    "http://xn--/",
    "mailto:ann@example.com",
)


async def test_a_redirect_to_another_origin_is_a_tool_error_and_never_followed() -> None:
    async with (
        service() as other,
        service() as told,
        gateway_to(told.url, {"path": "/a"}, credential={"bearer": SECRET}) as gate,
    ):
        for number, location in enumerate(ELSEWHERE, 1):
            target = location.format(other=other.port, port=told.port)
            redirects = answer(b"", "302 Found", Location=target)
            told.answers = (*[redirects] * number, answer(b'"arrived"'))
            result = await gate.call("tool")
            assert result["isError"] is True, location
            assert "redirects to" in result["content"][0]["text"]
            assert (len(told.requests), other.requests) == (number, []), location


@pytest.mark.parametrize(
    "body", [gzip.compress(b"0" * 300_000), b"[" + b"0," * 600 + b"0]"], ids=["packed", "plain"]
)
async def test_too_large_an_answer_is_a_tool_error_that_says_the_limit(body: bytes) -> None:
    encoding: dict[str, Any] = {"Content_Encoding": "gzip"} if body.startswith(b"\x1f") else {}
    async with (
        service(answer(body, **encoding)) as told,
        gateway_to(told.url, {}, max_response_bytes=1000) as gate,
    ):
        result = await gate.call("tool")
    assert result["isError"] is True
    assert (
        result["content"][0]["text"]
        == "GET / of api answered more than 1000 bytes (max_response_bytes); ask for less at once"
    )


async def test_an_answer_of_just_the_largest_size_is_a_result() -> None:
    body = b'"' + b"x" * 998 + b'"'
    async with (
        service(answer(body)) as told,
        gateway_to(told.url, {}, max_response_bytes=1000) as gate,
    ):
        assert await gate.text("tool") == "x" * 998


async def test_a_slow_answer_is_a_tool_error_that_says_how_long_it_was_waited_for(
    httpbin_url: str,
) -> None:
    async with gateway_to(httpbin_url, {"path": "/delay/1"}, timeout_s=0.1) as gate:
        text = await gate.text("tool")
    assert (
        text
        == "GET /delay/1 of api did not answer within 0.1 s (timeout_s); try again later or ask for less"
    )


async def test_an_answer_that_trickles_in_is_timed_as_a_whole_or_by_the_tools_own_limit() -> None:
    tools = ({"name": "short", "timeout_s": 0.15}, {"name": "long", "timeout_s": 60})
    trickle = service(answer(b'{"a": 1}'), pause_s=0.05, at_once=20)
    async with trickle as told, gateway_to(told.url, *tools, timeout_s=0.01) as gate:
        assert "did not answer within 0.15 s" in await gate.text("short")
        assert await gate.text("long") == '{"a":1}'


BROKEN = {
    "truncated": answer(b"{}", length=50, Connection="close"),
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
    "garbage": b"garbage\r\n\r\n",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "nothing": b"",
    "endless header": b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
}


async def test_a_broken_answer_is_a_tool_error() -> None:
    async with service(*BROKEN.values()) as told, gateway_to(told.url, {"path": "/a"}) as gate:
        for name in BROKEN:
            result = await gate.call("tool")
            assert result["isError"] is True, name
            assert result["content"][0]["text"].startswith(
                "GET /a of api failed: the connection ended before there was an answer to read ("
            ), name


@pytest.mark.parametrize(("keep_alive_s", "connections"), [(60, 1), (0.05, 2)])
async def test_a_connection_is_used_again_while_the_service_surely_keeps_it(
    keep_alive_s: float, connections: int
) -> None:
    async with service() as told, gateway_to(told.url, {}, keep_alive_s=keep_alive_s) as gate:
        await gate.call("tool")
        await asyncio.sleep(0.1)
        await gate.call("tool")
        assert told.connections == connections


async def test_a_service_that_is_not_there_is_a_tool_error() -> None:
    with reserved_port() as port:  # nothing listens there
        async with gateway_to(f"http://127.0.0.1:{port}", {}) as gate:
            result = await gate.call("tool")
    assert result["isError"] is True
    assert (
        result["content"][0]["text"]
        == "GET / of api failed: the service could not be reached (ConnectError)"
    )


async def test_a_failure_leaves_the_gateway_able_to_serve_the_next_call() -> None:
    good = answer(b'"good"')
    bad = answer(b"{}", length=50, Connection="close")
    limits = {"max_connections": 1, "max_response_bytes": 100}
    async with (
        service(bad, good, answer(b"x" * 500), good) as told,
        gateway_to(told.url, {}, **limits) as gate,
    ):
        assert [(await gate.call("tool")).get("isError") for _ in range(4)] == [
            True,
            None,
            True,
            None,
        ]


def packed(layers: int, size: int, behind: bytes = b"", less: int = 0) -> Callable[[], bytes]:
    """Return a function that compresses zeros, because it takes a second in every process that collects."""

    def make() -> bytes:
        body = b"0" * size
        for _ in range(layers):
            body = gzip.compress(body)
        return body[: len(body) - less] + behind

    return make


@pytest.mark.parametrize(
    ("make", "encoding", "told_so"),
    [
        (packed(2, 60_000_000), "gzip, gzip", "an encoding that was not requested: 'gzip, gzip'"),
        (packed(1, 60_000_000), "gzip", "answered more than 1000 bytes"),
        (lambda: b"x", "br", "an encoding that was not requested: 'br'"),
        (lambda: b"not gzip", "gzip", "an encoding that was not requested: 'gzip'"),
        (packed(1, 500, less=9), "gzip", "an encoding that was not requested: 'gzip'"),
        (packed(1, 500, behind=b"x" * 4000), "gzip", "answered more than 1000 bytes"),
    ],
    ids=["two layers", "one layer", "unknown", "a lie", "half of it", "more behind it"],
)
async def test_a_bomb_is_refused_before_it_goes_off(
    make: Callable[[], bytes], encoding: str, told_so: str
) -> None:
    said = answer(make(), Content_Encoding=encoding)
    async with service(said) as told, gateway_to(told.url, {}, max_response_bytes=1000) as gate:
        tracemalloc.start()
        result = await gate.call("tool")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert result["isError"] is True
    assert told_so in result["content"][0]["text"]
    assert peak < 20_000_000  # some of it is what the first call imports


async def test_a_charset_that_no_page_is_written_in_is_not_tried() -> None:
    charsets = "punycode", "idna", "utf-7", "unicode_escape", "rot13", "zip", "hex", "nonsense"
    body = b"a" * 100_000 + b"-" + b"b" * 100_000
    says = [answer(body, content_type=f"text/plain; charset={charset}") for charset in charsets]
    async with service(*says) as told, gateway_to(told.url, {}) as gate:
        for charset in charsets:
            (block,) = (await asyncio.wait_for(gate.call("tool"), 60))["content"]
            assert block["type"] == "resource", charset


async def test_a_packed_answer_is_unpacked(httpbin_url: str) -> None:
    tools = [{"name": name, "path": f"/{name}"} for name in ("gzip", "deflate")]
    async with gateway_to(httpbin_url, *tools) as gate:
        for tool in tools:
            assert (await gate.call(tool["name"]))["structuredContent"]["method"] == "GET"


async def test_debug_messages_show_a_client_the_request_without_its_query(
    httpbin_url: str,
) -> None:
    tool = {"path": "/get", "query": {"fixed": SECRET}}
    async with gateway_to(httpbin_url, tool, credential={"query": "key", "value": SECRET}) as gate:
        response = await gate.post("tools/call", {"name": "tool"}, logLevel="debug")
    logged = wire.events(response.text)[0]
    assert logged["params"]["data"] == {"upstream": "api", "method": "GET", "status": 200}


@pytest.mark.parametrize(
    "said",
    [
        answer(b'"first"') + answer(b'"forged"'),
        answer(b'"first" and more', length=7),
        answer(b"", "204 No Content", length=0) + answer(b'"forged"'),
        answer(b"0" * 9, "500 Oops", length=0) + answer(b'"forged"'),
    ],
    ids=["two answers", "more than announced", "behind nothing", "behind an error"],
)
async def test_what_comes_behind_an_answer_is_nobodys_answer(said: bytes) -> None:
    async with (
        service(said, answer(b'"honest"')) as told,
        gateway_to(told.url, {}, max_connections=1) as gate,
    ):
        texts = [await gate.text("tool") for _ in range(3)]
    assert texts[1:] == ["honest", "honest"]
    assert "forged" not in texts[0]


async def test_connections_are_kept_bounded_and_closed_at_shutdown() -> None:
    async with service(answer(), pause_s=0.02) as told:
        async with gateway_to(told.url, {}, max_connections=2) as gate:
            await asyncio.gather(*(gate.call("tool") for _ in range(8)))
            assert told.open_connections == told.most_connections == 2
            await gate.call("tool")
            assert told.open_connections == 2
        for _ in range(3000):
            if told.open_connections == 0:
                break
            await asyncio.sleep(0.01)
        assert told.open_connections == 0
    assert len(told.requests) == 9


async def test_a_call_that_is_given_up_frees_its_connection() -> None:
    async with (
        service(answer(), pause_s=1) as told,
        gateway_to(told.url, {}, max_connections=1) as gate,
    ):
        given_up = asyncio.create_task(gate.call("tool"))
        for _ in range(6_000):
            if told.requests:
                break
            await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert await gate.text("tool") == "{}"
