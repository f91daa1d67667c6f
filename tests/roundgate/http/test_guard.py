"""Host and Origin: who may talk to the gateway at all, and what a browser is told."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from roundgate.http.request import host_allowed, origin_allowed
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import Client, Exchange, client, gateway
from tests.support.functions import add

DISCOVER = wire.message("server/discover")


@pytest.fixture(scope="module")
def local() -> FastAPI:
    """A gateway without authentication, for this machine alone."""
    return gateway(add)


@pytest.fixture(scope="module")
def anonymous() -> FastAPI:
    """A gateway that anybody may use."""
    return gateway(add, using=Settings(allow_anonymous=True))


async def ask(app: FastAPI, **headers: str | bytes) -> httpx.Response:
    async with client(app) as mcp:
        sent: dict[str, Any] = {**wire.headers(DISCOVER), **headers}
        return await mcp.http.post("/mcp", content=json.dumps(DISCOVER), headers=sent)


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", "[::1]", "LOCALHOST", "localhost:8000", "[::1]:8000", " localhost "],
)
async def test_loopback_names_are_served_on_any_port(everything: FastAPI, host: str) -> None:
    assert (await ask(everything, host=host)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.localhost",
        "::1",
        "",
        "127.0.0.2",
        b"\xff",
        "localhost:8000@evil.test",
        "localhost:@evil.test",
        "localhost:8000.evil.test",
        "localhost:8000/evil.test",
        "localhost:8000:80",
        "localhost:",
        "localhost@evil.test",
        "[::1]evil.test",
        "[::1]:8000@evil.test",
        "[::1].evil.test:8000",
        "evil.test/.localhost",
    ],
)
async def test_another_host_is_refused_and_the_setting_named(
    everything: FastAPI, host: str
) -> None:
    response = await ask(everything, host=host)
    assert response.status_code == 403
    message = wire.valid_error(response)["message"]
    assert "http.allowed_hosts" in message
    assert "GATEWAY_PUBLIC_URL" in message


@pytest.mark.parametrize(
    "lines",
    [
        [("host", "localhost"), ("host", "localhost")],
        [("host", "localhost:80"), ("host", "evil.example")],
        [("host", "evil.example"), ("host", "localhost")],
        [("host", "localhost"), ("origin", "http://evil.example"), ("origin", "http://localhost")],
        [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.example")],
    ],
)
async def test_host_and_origin_are_not_sent_twice(
    everything: FastAPI, lines: list[tuple[str, str]]
) -> None:
    async with client(everything) as mcp:
        others = [
            (name, value)
            for name, value in wire.headers(DISCOVER).items()
            if name not in ("host", "origin")
        ]
        response = await mcp.http.post(
            "/mcp", content=json.dumps(DISCOVER), headers=[*others, *lines]
        )
    assert response.status_code == 403
    assert "once" in wire.valid_error(response)["message"]


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost", "http://localhost"),
        ("localhost:5173", "http://localhost:5173"),
        ("127.0.0.1:8443", "https://127.0.0.1:8443"),
        ("[::1]:3000", "http://[::1]:3000"),
        ("LocalHost:80", "HTTP://localhost:80"),
    ],
)
async def test_pages_of_the_gateways_own_origin_are_served_and_told_so(
    everything: FastAPI, host: str, origin: str
) -> None:
    response = await ask(everything, host=host, origin=origin)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] in ("*", origin)


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:5173",
        "http://127.0.0.1",
        "ftp://localhost:8000",
        "https://evil.example",
        "null",
        "",
        "http://localhost.evil.example",
        "ftp://localhost",
        "file://",
        "localhost",
        b"\xff",
    ],
)
async def test_another_origin_is_refused_and_the_setting_named(
    everything: FastAPI, origin: str
) -> None:
    response = await ask(everything, host="localhost:8000", origin=origin)
    assert response.status_code == 403
    assert "http.allowed_origins" in wire.valid_error(response)["message"]
    assert "access-control-allow-origin" not in response.headers


async def test_what_is_refused_is_shown_shortened_and_escaped(everything: FastAPI) -> None:
    message = wire.valid_error(await ask(everything, host=b"\x80" + b"x" * 10_000))["message"]
    assert r"\x80xxx" in message
    assert len(message) < 300


async def test_the_guard_stands_before_everything_else(everything: FastAPI) -> None:
    async with client(everything) as mcp:
        for path in ("/mcp", "/healthz", "/readyz", "/readyz/", "/healthz/", "/nothing"):
            for method in ("GET", "POST", "OPTIONS", "DELETE"):
                headers = {"host": "evil.example", "origin": "https://evil.example"}
                refused = await mcp.http.request(method, path, headers=headers, content=b"\xff")
                assert refused.status_code == 403
                if (method, path) not in (("GET", "/healthz"), ("GET", "/readyz")):
                    refused = await mcp.http.request(
                        method, path, headers={"host": "evil.example"}, content=b"\xff"
                    )
                    assert refused.status_code == 403


async def test_a_load_balancer_may_ask_at_an_address_whether_the_gateway_is_alive(
    everything: FastAPI,
) -> None:
    async with client(everything) as mcp:
        alive = await mcp.http.get("/healthz", headers={"host": "10.1.2.3:8080"})
        assert (alive.status_code, alive.json()["status"]) == (200, "ok")


@pytest.mark.parametrize(
    "rule", ["api.example.com", "api.example.com:8443", "*.example.com", "*", "API.Example.com"]
)
async def test_a_host_on_the_list_is_served(rule: str) -> None:
    app = gateway(add, http={"allowed_hosts": [rule]})
    assert (await ask(app, host="api.example.com:8443")).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.test/.example.com",
        "evil.test#.example.com",
        "evil.test:8000@api.example.com",
        "evil.test?.example.com:8443",
        "*.example.com",
    ],
)
async def test_a_host_that_only_ends_like_a_rule_is_refused(host: str) -> None:
    app = gateway(add, http={"allowed_hosts": ["*.example.com"]})
    assert (await ask(app, host=host)).status_code == 403


@pytest.mark.parametrize(
    "rule", ["example.com", "api.example.com:443", "*.api.example.com", "*example.com"]
)
async def test_a_host_that_no_rule_matches_is_refused(rule: str) -> None:
    app = gateway(add, http={"allowed_hosts": [rule]})
    assert (await ask(app, host="api.example.com:8443")).status_code == 403
    assert (await ask(app, host="localhost")).status_code == 403


async def test_a_host_that_was_refused_stays_refused_after_others_passed() -> None:
    app = gateway(add)
    for number in range(150):
        assert (await ask(app, host=f"localhost:{number}")).status_code == 200
        assert (await ask(app, host=f"evil{number}.example")).status_code == 403


@pytest.mark.parametrize(
    "rule",
    ["https://app.example.com", "https://app.example.com/", "*", "https://app.example.com:*"],
)
async def test_an_origin_on_the_list_is_served(rule: str) -> None:
    app = gateway(add, http={"allowed_origins": [rule]})
    assert (await ask(app, origin="https://app.example.com")).status_code == 200


async def test_a_list_of_origins_replaces_the_loopback_ones() -> None:
    app = gateway(add, http={"allowed_origins": ["https://app.example.com"]})
    for origin in ("http://localhost", "http://app.example.com", "https://app.example.com:444"):
        assert (await ask(app, origin=origin)).status_code == 403


@pytest.mark.parametrize(
    ("public_url", "host", "origin"),
    [
        ("https://mcp.example.com", "mcp.example.com", "https://mcp.example.com"),
        (
            "https://MCP.example.com:8443/mcp",
            "mcp.example.com:8443",
            "https://mcp.example.com:8443",
        ),
        ("http://[2001:db8::1]:8000", "[2001:db8::1]:8000", "http://[2001:db8::1]:8000"),
    ],
)
async def test_the_host_and_origin_of_the_public_url_are_served(
    public_url: str, host: str, origin: str
) -> None:
    app = gateway(add, using=Settings(public_url=public_url))
    assert (await ask(app, host=host, origin=origin)).status_code == 200
    assert (await ask(app, host="localhost:1", origin="http://localhost:1")).status_code == 200
    assert (await ask(app, host="localhost", origin="http://localhost:1")).status_code == 403
    assert (await ask(app, host=host, origin="https://evil.example")).status_code == 403
    assert (await ask(app, host="evil.example")).status_code == 403


async def test_on_lambda_any_host_is_served_but_not_any_origin() -> None:
    app = gateway(add, using=Settings(on_lambda=True, allow_anonymous=True))
    assert (await ask(app, host="x1.execute-api.eu-west-1.amazonaws.com")).status_code == 200
    assert (await ask(app, host="x1.example", origin="https://evil.example")).status_code == 403


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_page_at_a_name_that_anybody_may_have_is_not_the_gateways_own(scheme: str) -> None:
    app = gateway(add, http={"allowed_hosts": ["*"]})
    assert (
        await ask(app, host="rebound.example", origin=f"{scheme}://rebound.example")
    ).status_code == 403
    assert (await ask(app, host="localhost:1", origin=f"{scheme}://localhost:1")).status_code == 200


@pytest.mark.parametrize("server", ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::7", "0.0.0.0"])
async def test_without_authentication_only_this_machine_is_served(
    local: FastAPI, anonymous: FastAPI, server: str
) -> None:
    async with exchange(local, DISCOVER, server) as refused:
        body = json.loads(await refused.body())
    assert refused.status == 403
    assert "GATEWAY_ALLOW_ANONYMOUS" in body["error"]["message"]
    async with exchange(anonymous, DISCOVER, server) as served:
        await served.body()
    assert served.status == 200


@pytest.mark.parametrize("server", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
async def test_without_authentication_this_machine_is_served(local: FastAPI, server: str) -> None:
    async with exchange(local, DISCOVER, server) as served:
        await served.body()
    assert served.status == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-forwarded-for", "203.0.113.7"),
        ("x-forwarded-for", "127.0.0.1, 203.0.113.7"),
        ("x-forwarded-for", "127.0.0.1, " * 40 + "203.0.113.7"),
        ("x-real-ip", "192.168.0.7"),
        ("forwarded", 'for="[2001:db8::7]";proto=https'),
        ("cf-connecting-ip", "203.0.113.7"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-for", "::1, 127.0.0.1:80"),
        ("x-forwarded-for", "unknown"),
        ("x-forwarded-for", ""),
        ("forwarded", "for=127.0.0.1;proto=http"),
        ("via", "1.1 proxy"),
        ("x-forwarded-host", "mcp.example.com"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-port", "443"),
        ("x-forwarded", "for=203.0.113.7"),
        ("true-client-ip", "203.0.113.7"),
        ("x-client-ip", "203.0.113.7"),
        ("x-cluster-client-ip", "203.0.113.7"),
        ("x-original-forwarded-for", "203.0.113.7"),
        ("x-envoy-external-address", "203.0.113.7"),
        ("fastly-client-ip", "203.0.113.7"),
        ("cf-ray", "8d1f"),
        ("cf-visitor", '{"scheme":"https"}'),
    ],
)
async def test_without_authentication_what_a_proxy_here_forwards_is_refused(
    local: FastAPI, anonymous: FastAPI, name: str, value: str
) -> None:
    for app, status in ((local, 403), (anonymous, 200)):
        async with client(app) as mcp:
            response = await mcp.post("server/discover", headers={name: value})
        assert response.status_code == status


def exchange(app: FastAPI, asked: dict[str, Any], server: str) -> Exchange:
    made = Exchange(app, asked)
    made.scope["server"] = (server, 8000)
    return made


async def test_a_browser_of_an_allowed_origin_may_send_every_header_of_the_revision(
    mcp: Client,
) -> None:
    wanted = "content-type, mcp-method, mcp-name, mcp-param-region, mcp-protocol-version"
    preflight = {
        "host": "localhost:5173",
        "origin": "http://localhost:5173",
        "access-control-request-method": "POST",
        "access-control-request-headers": wanted,
    }
    response = await mcp.http.options("/mcp", headers=preflight)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] in ("*", "http://localhost:5173")
    assert "POST" in response.headers["access-control-allow-methods"]
    allowed = {name.strip() for name in response.headers["access-control-allow-headers"].split(",")}
    assert allowed >= set(wanted.split(", "))


async def test_a_preflight_of_another_origin_is_refused(mcp: Client) -> None:
    preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    response = await mcp.http.options("/mcp", headers=preflight)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


async def test_an_error_can_be_read_by_a_browser_of_an_allowed_origin(everything: FastAPI) -> None:
    response = await ask(
        everything, host="localhost:5173", origin="http://localhost:5173", accept="text/html"
    )
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (406, "*")


async def test_a_client_without_an_origin_gets_no_cors_headers(mcp: Client) -> None:
    response = await mcp.post("server/discover")
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "host", ["[", "[]", "]", ":", ":80", "[::1", "a]:b[", "*", "*.x", ".", "\u0130"]
)
def test_odd_hosts_are_refused_without_a_stumble(host: str) -> None:
    assert not host_allowed(host, frozenset({"localhost", "[::1]", "*.example.com"}))


@pytest.mark.parametrize(
    "origin",
    [
        "",
        ":",
        "*",
        ":*",
        "http://localhost:*x",
        "http://localhost:",
        "https://localhost",
        "http://a:1:2",
        "http://localhost:8000@evil.test",
        "http://localhost@evil.test:8000",
        "http://localhost:8000/",
    ],
)
def test_odd_origins_are_refused_without_a_stumble(origin: str) -> None:
    assert not origin_allowed(origin, frozenset({"http://localhost:*", "http://a:1"}))
