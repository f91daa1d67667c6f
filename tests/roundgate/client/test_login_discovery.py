"""Where a login is, as servers of all kinds describe it, and how the token
endpoint is spoken to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx
import jwt
import pytest

from roundgate.client import Client
from roundgate.client.auth import ClientCredentials, InMemory
from roundgate.errors import AuthorizationFailed

SERVER = "https://mcp.example/mcp"
RESOURCE = "/.well-known/oauth-protected-resource"
ISSUER = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
DESCRIBED = {"issuer": "https://as.example", "token_endpoint": "https://as.example/token"}


@dataclass
class World:
    """An MCP server and an authorization server, by the path of what they publish."""

    documents: Mapping[str, Any]
    challenge: str = "Bearer"
    granted: Mapping[str, Any] = field(default_factory=dict)
    refuse: Callable[[httpx.Request, int], httpx.Response | None] = lambda request, number: None
    asked: list[str] = field(default_factory=list)
    forms: list[tuple[dict[str, str], httpx.Headers]] = field(default_factory=list)
    calls: list[httpx.Headers] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        if request.url.path == "/mcp":
            return self._mcp(request)
        if request.url.path.endswith("/token"):
            form = {name: one[0] for name, one in parse_qs(request.content.decode()).items()}
            self.forms.append((form, request.headers))
            refused = self.refuse(request, len(self.forms))
            token = {"access_token": "granted", "token_type": "Bearer", **self.granted}
            return refused or httpx.Response(200, json=token)
        found = self.documents.get(request.url.path, 404)
        if isinstance(found, int):
            return httpx.Response(found)
        return httpx.Response(
            200, **({"content": found} if isinstance(found, bytes) else {"json": found})
        )

    def _mcp(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(request.headers)
        if "granted" not in request.headers.get("authorization", ""):
            return httpx.Response(401, headers={"WWW-Authenticate": self.challenge})
        if (refused := self.refuse(request, len(self.calls))) is not None:
            return refused
        asked = json.loads(request.content)
        result = {"resultType": "complete", "content": [], "tools": []}
        about = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {**result, **about}}
        return httpx.Response(200, json=answer)

    async def call(self, auth: Any) -> None:
        transport = httpx.MockTransport(self)
        async with (
            httpx.AsyncClient(transport=transport) as http,
            Client(SERVER, auth=auth, http=http) as client,
        ):
            await client.call("t")


def resource(**more: Any) -> dict[str, Any]:
    return {"resource": SERVER, "authorization_servers": ["https://as.example"], **more}


@pytest.mark.parametrize(
    ("documents", "challenge", "first_form_to"),
    [
        ({RESOURCE + "/mcp": resource(), ISSUER: DESCRIBED}, "Bearer", "https://as.example/token"),
        ({RESOURCE: resource(), OPENID: DESCRIBED}, "Bearer", "https://as.example/token"),
        (
            {"/there": resource(), ISSUER: DESCRIBED},
            'Bearer resource_metadata="https://mcp.example/there"',
            "https://as.example/token",
        ),
        (
            {
                RESOURCE: resource(authorization_servers=["https://as.example/tenant"]),
                "/tenant" + OPENID: {
                    "issuer": "https://as.example/tenant",
                    "token_endpoint": "https://as.example/tenant/token",
                },
            },
            "Bearer",
            "https://as.example/tenant/token",
        ),
        (  # revision 2025-03-26: the server is its own authorization server
            {
                ISSUER: {
                    "issuer": "https://mcp.example",
                    "token_endpoint": "https://mcp.example/token",
                }
            },
            "Bearer",
            "https://mcp.example/token",
        ),
    ],
    ids=["of the path", "of the root", "named", "issuer with a path", "its own"],
)
async def test_the_login_is_found_wherever_it_is_published(
    documents: dict[str, Any], challenge: str, first_form_to: str
) -> None:
    world = World(documents, challenge)
    await world.call(ClientCredentials("me", "hush", issuer=None))
    assert [url for url in world.asked if url.endswith("/token")] == [first_form_to]


@pytest.mark.parametrize(
    ("documents", "challenge", "said"),
    [
        ({RESOURCE: resource(authorization_servers=[])}, "Bearer", "names no authorization server"),
        ({}, 'Bearer resource_metadata="https://mcp.example/there"', "that does not exist"),
        ({RESOURCE: 500}, "Bearer", "mcp.example answered with HTTP status 500"),
        ({RESOURCE: b"<html>"}, "Bearer", "mcp.example answered without a JSON"),
        ({RESOURCE: resource()}, "Bearer", "as.example publishes no metadata"),
        ({RESOURCE: resource(resource=7)}, "Bearer", "for a resource other than"),
        (
            {RESOURCE: resource(authorization_servers=["as"])},
            "Bearer",
            "issuer .* is not a valid URL",
        ),
        (
            {RESOURCE: resource(), ISSUER: {"issuer": "https://as.example"}},
            "Bearer",
            "has no token endpoint",
        ),
    ],
)
async def test_what_cannot_be_believed_is_said_and_no_secret_is_sent(
    documents: dict[str, Any], challenge: str, said: str
) -> None:
    world = World(documents, challenge)
    with pytest.raises(AuthorizationFailed, match=said):
        await world.call(ClientCredentials("me", "hush", issuer=None))
    assert world.forms == []


@pytest.mark.parametrize(
    ("supported", "form", "header"),
    [
        (None, {}, "Basic"),
        (["client_secret_basic", "client_secret_post"], {}, "Basic"),
        (["client_secret_post"], {"client_id": "me", "client_secret": "hush"}, ""),
        (["none"], {"client_id": "me"}, ""),
        (["something_new"], {}, "Basic"),
    ],
)
async def test_a_client_says_who_it_is_as_the_server_can_take_it(
    supported: list[str] | None, form: dict[str, str], header: str
) -> None:
    methods = {} if supported is None else {"token_endpoint_auth_methods_supported": supported}
    world = World({RESOURCE: resource(), ISSUER: {**DESCRIBED, **methods}})
    await world.call(ClientCredentials("me", "hush", issuer=None))
    (said, headers), *_ = world.forms
    assert {name: said[name] for name in said if name.startswith("client_")} == form
    assert headers.get("authorization", "").partition(" ")[0] == header


async def test_a_bound_token_is_shown_with_proofs_and_both_servers_may_want_a_nonce() -> None:
    def refuse(request: httpx.Request, number: int) -> httpx.Response | None:
        claims = jwt.decode(request.headers["dpop"], options={"verify_signature": False})
        if request.url.path == "/token" and claims.get("nonce") != "of the issuer":
            error = {"error": "use_dpop_nonce"}
            return httpx.Response(400, json=error, headers={"DPoP-Nonce": "of the issuer"})
        if request.url.path == "/mcp" and claims.get("nonce") != "of the server":
            challenge = 'DPoP error="use_dpop_nonce"'
            headers = {"WWW-Authenticate": challenge, "DPoP-Nonce": "of the server"}
            return httpx.Response(401, headers=headers)
        return None

    binds = {**DESCRIBED, "dpop_signing_alg_values_supported": ["ES256"]}
    world = World(
        {RESOURCE: resource(), ISSUER: binds}, granted={"token_type": "DPoP"}, refuse=refuse
    )
    await world.call(ClientCredentials("me", "hush", issuer=None))
    assert len(world.forms) == 2
    last = world.calls[-1]
    assert last["authorization"] == "DPoP granted"
    proof = jwt.decode(last["dpop"], options={"verify_signature": False})
    assert (proof["htu"], proof["nonce"]) == (SERVER, "of the server")
    assert "ath" in proof


async def test_a_token_that_is_not_bound_as_was_asked_for_is_not_used() -> None:
    world = World({RESOURCE: resource(), ISSUER: DESCRIBED}, granted={"token_type": "Bearer"})
    with pytest.raises(AuthorizationFailed, match="did not bind the token"):
        await world.call(ClientCredentials("me", "hush", dpop=True, issuer=None))


async def test_who_logs_out_is_forgotten() -> None:
    kept = InMemory()
    auth = ClientCredentials("me", "hush", storage=kept, issuer=None)
    world = World({RESOURCE: resource(), ISSUER: DESCRIBED})
    await world.call(auth)
    assert await kept.load(SERVER) is not None
    await auth.forget(SERVER)
    assert await kept.load(SERVER) is None
    await world.call(auth)
    assert len(world.forms) == 2


async def test_tokens_that_cannot_be_read_are_taken_away() -> None:
    kept = InMemory()
    await kept.save(SERVER, '{"surprise": true}')
    world = World({RESOURCE: resource(), ISSUER: DESCRIBED})
    await world.call(ClientCredentials("me", "hush", storage=kept, issuer=None))
    assert "surprise" not in (await kept.load(SERVER) or "")
