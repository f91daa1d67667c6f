"""Authentication in front of every route but health and metadata, and who may use what
is not the MCP endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette._utils import get_route_path
from starlette.requests import Request
from starlette.responses import JSONResponse

from roundgate import tool
from roundgate.errors import ConfigError
from roundgate.http import make_metrics_router
from roundgate.http.exchange import Exchange, Responder, exchange_of, route_path
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import STATE_KEY, Client, built, client, config_file
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, guarded, jwks, token
from tests.support.services import answer, service

METADATA = "/.well-known/oauth-protected-resource"
ELSEWHERE = [
    "/",
    "/console",
    "/mcp/x",
    "/docs",
    "/metrics",
    "/healthz/",
    "/healthzz",
    "/readyz/",
    "/.well-known",
    "/console/.well-known/x",
    "/events",
    "/events/a/b",
    "/console/events/x",
]
OPERATOR = "gateway:operate"


@tool
async def hello() -> str:
    """Says hello."""
    return "hello"


async def console(request: Request) -> JSONResponse:
    """A route of the kind that operators get."""
    return JSONResponse({"subject": exchange_of(request.scope).caller.subject})


def with_console(app: FastAPI) -> FastAPI:
    app.add_route("/console", console)
    return app


@asynccontextmanager
async def served(using: Settings | None = None, **sections: Any) -> AsyncIterator[Client]:
    """A client of a gateway that asks for tokens and has a console."""
    async with service(answer(jwks("ec"))) as keys:
        file = guarded(f"{keys.url}/jwks", hello, **sections)
        settings = using or Settings(public_url=PUBLIC_URL, state_keys=STATE_KEY)
        app = with_console(built(file, settings))
        async with app.router.lifespan_context(app), client(app) as made:
            yield made


@pytest.fixture
async def mcp() -> AsyncIterator[Client]:
    async with served(auth={"operator_scope": OPERATOR}) as made:
        yield made


def headers(**claims: Any) -> dict[str, str]:
    return {name: value for name, value in bearer(token(**claims)).items() if value is not None}


async def test_without_a_token_every_other_address_is_a_challenge(mcp: Client) -> None:
    for method, path in product(("GET", "POST", "OPTIONS", "DELETE"), ELSEWHERE):
        response = await mcp.http.request(method, f"http://127.0.0.1{path}")
        assert response.status_code == 401, (method, path)
        challenge = response.headers["www-authenticate"]
        assert f'resource_metadata="{PUBLIC_URL}{METADATA}/mcp"' in challenge


async def test_probes_and_clients_without_a_token_find_health_and_metadata(mcp: Client) -> None:
    for path in ("/healthz", "/readyz", METADATA, f"{METADATA}/mcp"):
        assert (await mcp.http.get(path)).status_code == 200, path
    assert (await mcp.http.get("/.well-known/openid-configuration")).status_code == 404


async def test_health_names_the_gateway_to_operators_alone(mcp: Client) -> None:
    brief = {"status": "ok"}
    assert (await mcp.http.get("/healthz")).json() == brief
    for claims in ({"scope": "files:read"}, {"scope": OPERATOR, "exp": 1}):
        response = await mcp.http.get("/healthz", headers=headers(**claims))
        assert (response.status_code, response.json()) == (200, brief)
    whole = await mcp.http.get("/healthz", headers=headers(scope=OPERATOR))
    assert {"name", "version"} <= whole.json().keys()
    head = await mcp.http.head("/healthz", headers=headers(scope=OPERATOR))
    assert head.headers["content-length"] == whole.headers["content-length"]


async def test_without_authentication_health_names_the_gateway_on_this_machine_alone() -> None:
    async with client(built(config_file(hello), Settings(state_keys=STATE_KEY))) as mcp:
        assert "name" in (await mcp.http.get("/healthz")).json()
        elsewhere = {"host": "evil.example", "x-forwarded-for": "203.0.113.7", "via": "1.1 proxy"}
        for name, value in elsewhere.items():
            response = await mcp.http.get("/healthz", headers={name: value})
            assert (response.status_code, response.json()) == (200, {"status": "ok"}), name
    using = Settings(state_keys=STATE_KEY, allow_anonymous=True)
    async with client(built(config_file(hello), using)) as mcp:
        assert (await mcp.http.get("/healthz")).json() == {"status": "ok"}


async def test_a_service_needs_no_token_but_that_of_its_event(mcp: Client) -> None:
    forged = await mcp.http.post("/events/forged", json=7)
    assert (forged.status_code, forged.json()) == (404, {"error": "There is no such event"})
    assert (await mcp.http.get("/events/forged")).status_code == 401


async def test_a_token_without_the_scope_of_operators_is_told_which(mcp: Client) -> None:
    response = await mcp.http.get("/console", headers=headers(scope="files:read"))
    assert response.status_code == 403
    assert 'error="insufficient_scope"' in response.headers["www-authenticate"]
    assert f'scope="{OPERATOR}"' in response.headers["www-authenticate"]


async def test_an_operator_gets_the_route_and_the_route_knows_who_it_is(mcp: Client) -> None:
    response = await mcp.http.get("/console", headers=headers(scope=f"files:read {OPERATOR}"))
    assert (response.status_code, response.json()) == (200, {"subject": "ann"})
    nothing = await mcp.http.get("/elsewhere", headers=headers(scope=OPERATOR))
    assert (nothing.status_code, "POST /mcp" in nothing.json()["error"]) == (404, True)


async def test_only_an_operator_reads_the_metrics() -> None:
    async with service(answer(jwks("ec"))) as keys:
        settings = Settings(public_url=PUBLIC_URL, state_keys=STATE_KEY)
        app = built(guarded(f"{keys.url}/jwks", hello, auth={"operator_scope": OPERATOR}), settings)
        app.include_router(make_metrics_router(lambda accept: (b"up 1\n", "text/plain")))
        async with app.router.lifespan_context(app), client(app) as mcp:
            refused = await mcp.http.get("/metrics", headers=headers(scope="files:read"))
            read = await mcp.http.get("/metrics", headers=headers(scope=OPERATOR))
    assert (refused.status_code, read.status_code, read.text) == (403, 200, "up 1\n")


async def test_a_token_that_does_not_hold_makes_nobody_an_operator(mcp: Client) -> None:
    wrong = {"exp": 1, "aud": "other", "kid": "rsa", "iss": "https://other/"}
    for claim, value in wrong.items():
        sent = headers(**{"scope": OPERATOR, claim: value})
        assert (await mcp.http.get("/console", headers=sent)).status_code == 401, claim


async def test_unless_a_scope_is_named_nobody_is_an_operator() -> None:
    async with served() as mcp:
        assert (await mcp.http.get("/console")).status_code == 401
        for scope in ("", "None", OPERATOR, "*"):
            response = await mcp.http.get("/console", headers=headers(scope=scope))
            assert (response.status_code, "nothing here" in response.json()["error"]) == (404, True)


async def test_the_scopes_that_every_call_needs_are_needed_elsewhere_too() -> None:
    async with served(auth={"operator_scope": OPERATOR, "scopes": ["mcp"]}) as mcp:
        assert (await mcp.http.get("/console", headers=headers(scope=OPERATOR))).status_code == 403
        assert (
            await mcp.http.get("/console", headers=headers(scope=f"mcp {OPERATOR}"))
        ).status_code == 200


async def test_the_scope_of_operators_opens_and_closes_nothing_at_the_endpoint(mcp: Client) -> None:
    for scope in ("", OPERATOR):
        response = await mcp.post("tools/call", {"name": "hello"}, headers={**headers(scope=scope)})
        assert response.json()["result"]["content"][0]["text"] == "hello"


async def test_the_metadata_does_not_offer_the_scope_of_operators(mcp: Client) -> None:
    assert OPERATOR not in (await mcp.http.get(METADATA)).text


async def test_what_the_endpoint_takes_from_nobody_needs_no_token(mcp: Client) -> None:
    json = {"content-type": "application/json"}
    assert (await mcp.http.get("/mcp", headers=json)).status_code == 405
    plain = {"content-type": "text/plain"}
    assert (await mcp.http.post("/mcp", headers=plain)).status_code == 415
    html = {**json, "accept": "text/html"}
    assert (await mcp.http.post("/mcp", headers=html)).status_code == 406


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/.well-known/mcp", METADATA])
async def test_the_endpoint_asks_for_a_token_wherever_it_is(path: str) -> None:
    asked = wire.message("tools/list")
    async with served(http={"path": path}) as mcp:
        assert (
            await mcp.http.post(path, json=asked, headers=wire.headers(asked))
        ).status_code == 401


async def test_without_authentication_this_machine_s_user_is_the_operator() -> None:
    app = with_console(built(config_file(hello), Settings(state_keys=STATE_KEY)))
    async with client(app) as mcp:
        assert (await mcp.http.get("/console")).json() == {"subject": "local"}


async def test_where_anybody_may_call_nobody_is_an_operator() -> None:
    using = Settings(state_keys=STATE_KEY, allow_anonymous=True)
    async with client(with_console(built(config_file(hello), using))) as mcp:
        response = await mcp.http.get("/console")
        assert (response.status_code, "nothing here" in response.json()["error"]) == (404, True)
        assert await mcp.text("hello") == "hello"


async def test_a_web_socket_is_closed_whoever_opens_it() -> None:
    app = with_console(built(config_file(hello), Settings(state_keys=STATE_KEY)))
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": "/console",
        "headers": [],
        "query_string": b"",
        "subprotocols": [],
    }
    await app(scope, asyncio.Queue[Any]().get, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_a_refusal_elsewhere_is_a_line_in_the_log_and_what_is_served_is_not(
    mcp: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roundgate.request")
    await mcp.http.get("/healthz")
    await mcp.http.get("/console", headers=headers(scope=OPERATOR))
    await mcp.http.get("/console")
    await mcp.http.get("/console", headers=headers())
    lines = [
        vars(record)["fields"] for record in caplog.records if record.name == "roundgate.request"
    ]
    assert [(line["status"], line["outcome"], line.get("subject")) for line in lines] == [
        (401, "unauthorized", None),
        (403, "unauthorized", "ann"),
    ]


async def test_a_failure_of_another_route_is_the_server_s_to_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(request: Request) -> JSONResponse:
        raise RuntimeError("the console is broken")

    app = built(config_file(hello), Settings(state_keys=STATE_KEY))
    app.add_route("/broken", broken)
    async with client(app) as mcp:
        with pytest.raises(RuntimeError, match="the console is broken"):
            await mcp.http.get("/broken")


def test_a_request_that_no_layer_authenticated_has_no_caller() -> None:
    async def send(message: MutableMapping[str, Any]) -> None:
        """To nowhere."""

    with pytest.raises(RuntimeError, match="not authenticated"):
        _ = Exchange({"path": "/mcp", "headers": []}, {"/mcp": ""}, Responder(send)).caller


PARTS = st.lists(
    st.sampled_from(["", "/", "/mcp", "/healthz", "/a", "z", "/.well-known"]), max_size=4
).map("".join)


@given(PARTS, PARTS)
def test_the_path_that_is_looked_at_is_the_one_that_is_routed(path: str, root: str) -> None:
    scope = {"type": "http", "path": path, "root_path": root}
    assert route_path(scope) == get_route_path(scope)


@pytest.mark.parametrize(
    ("auth", "says"),
    [
        ({"scopes": ["mcp"], "operator_scope": "mcp"}, "every caller has"),
        ({"operator_scope": "two words"}, "operator_scope"),
        ({"operator_scope": ""}, "operator_scope"),
    ],
)
def test_a_scope_that_makes_everybody_or_nobody_an_operator_is_not_taken(
    auth: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        config_file(hello, auth={"issuer": ISSUER, "jwks_url": "https://x", **auth})


def test_callers_of_an_authorizer_may_be_operators_too() -> None:
    auth = {"authorizer": "api-gateway", "issuer": ISSUER, "operator_scope": OPERATOR}
    config = config_file(hello, auth=auth).config
    assert config.auth != "none"
    assert config.auth.operator_scope == OPERATOR
