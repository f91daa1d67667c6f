"""Tokens are had from the right server, for the right resource, and shown to nobody else."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import subprocess
import sys
from base64 import b64decode, urlsafe_b64encode
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest

from roundgate.client import Client
from roundgate.client.auth import (
    Bearer,
    BrowserLogin,
    ClientCredentials,
    InMemory,
    challenge_parameters,
)
from roundgate.client.auth.base import ProofKey
from roundgate.client.transport import Url
from roundgate.clock import Clock
from roundgate.errors import AuthorizationFailed, ClientError, HttpRefused
from tests.support.guarded import Guarded, logged_in
from tests.support.scripted import Asked, http, says, scripted


async def test_a_login_asks_for_the_scopes_that_are_needed_and_keeps_those_it_had() -> None:
    guarded = Guarded()
    answer, _ = await logged_in(guarded, BrowserLogin(open_url=guarded.browser()))
    assert answer == "secret things"
    # The first login is for what lists need; the call steps up, and loses nothing.
    assert guarded.asked_for["scope"] == "read write"
    assert guarded.asked_for["resource"] == f"{guarded.origin}/mcp"
    assert {form["resource"] for form in guarded.forms} == {f"{guarded.origin}/mcp"}


async def test_a_registration_says_what_this_client_is() -> None:
    guarded = Guarded()
    await logged_in(guarded, BrowserLogin(open_url=guarded.browser(), client_name="Test"))
    metadata = guarded.registrations[0]
    assert metadata["application_type"] == "native"
    assert metadata["grant_types"] == ["authorization_code", "refresh_token"]
    assert metadata["redirect_uris"][0].startswith("http://127.0.0.1:")


async def test_a_client_that_is_registered_registers_no_more() -> None:
    guarded = Guarded()
    auth = BrowserLogin(client_id="mine", client_secret="s", open_url=guarded.browser())
    _, server = await logged_in(guarded, auth)
    (header, *_) = [one.headers["authorization"] for one in server.asked if one.target == "/token"]
    assert b64decode(header.removeprefix("Basic ")) == b"mine:s"
    assert guarded.registrations == []


async def test_a_metadata_document_is_a_client_id_where_the_server_takes_it() -> None:
    guarded = Guarded(document={"client_id_metadata_document_supported": True})
    await logged_in(
        guarded,
        BrowserLogin(client_metadata_url="https://c.example/me.json", open_url=guarded.browser()),
    )
    assert guarded.asked_for["client_id"] == "https://c.example/me.json"
    assert guarded.registrations == []


@pytest.mark.parametrize(
    ("changes", "document", "complaint"),
    [
        ({"iss": "https://evil.example"}, {}, "another authorization server"),
        ({}, {"authorization_response_iss_parameter_supported": True}, "lacks the issuer"),
        (
            {"code": None, "error": "access_denied", "error_description": "No"},
            {},
            "refused: access_denied No",
        ),
        ({"code": None}, {}, "no code"),
    ],
)
async def test_an_answer_of_a_login_that_is_not_ours_is_not_used(
    changes: dict[str, str | None], document: dict[str, Any], complaint: str
) -> None:
    guarded = Guarded(document=document)
    with pytest.raises(AuthorizationFailed, match=complaint):
        await logged_in(guarded, BrowserLogin(open_url=guarded.browser(**changes)))
    assert guarded.forms == []


async def test_whoever_else_calls_the_callback_is_not_heard() -> None:
    guarded = Guarded()
    with pytest.raises(AuthorizationFailed, match="login_s"):
        await logged_in(guarded, BrowserLogin(open_url=guarded.browser(state="guess"), login_s=0.5))


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"issuer": "https://other.example"}, "another issuer"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"authorization_endpoint": None}, "no authorization endpoint"),
        ({"authorization_endpoint": "http://evil.example/a"}, "plain http"),
        ({"registration_endpoint": None}, "does not register clients"),
        ({"token_endpoint": "http://evil.example/t"}, "plain http"),
    ],
)
async def test_an_authorization_server_that_cannot_be_trusted_is_not_used(
    document: dict[str, Any], complaint: str
) -> None:
    guarded = Guarded(document=document)
    with pytest.raises(AuthorizationFailed, match=complaint):
        await logged_in(guarded, BrowserLogin(open_url=guarded.browser()))


@pytest.mark.parametrize("resource", ["https://other.example/mcp", "http://127.0.0.1:1/mcp"])
async def test_metadata_of_another_resource_is_not_used(resource: str) -> None:
    guarded = Guarded(resource=resource)
    with pytest.raises(AuthorizationFailed, match="a resource other than"):
        await logged_in(guarded, BrowserLogin(open_url=guarded.browser()))


async def test_a_token_that_is_over_is_refreshed_without_a_login() -> None:
    guarded = Guarded(scope="read write")
    logins: list[str] = []

    async def count(url: str) -> None:
        logins.append(url)
        await guarded.browser()(url)

    async with scripted(guarded) as server:
        guarded.origin = server.origin
        async with Client(server.url, auth=BrowserLogin(open_url=count)) as client:
            await client.call("t")
            guarded.valid.clear()
            guarded.challenges["scope"] = "read write"
            await client.call("t")
    assert len(logins) == 1
    assert guarded.forms[-1]["grant_type"] == "refresh_token"


async def test_a_refresh_token_that_is_not_rotated_is_used_again() -> None:
    guarded = Guarded(scope="read write")
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        async with Client(server.url, auth=BrowserLogin(open_url=guarded.browser())) as client:
            await client.call("t")
            refresh_tokens = []
            guarded.granted["refresh_token"] = None
            guarded.challenges["scope"] = "read write"
            for _ in range(2):
                guarded.valid.clear()
                await client.call("t")
                refresh_tokens.append(guarded.forms[-1].get("refresh_token"))
    assert refresh_tokens[0] is not None
    assert refresh_tokens[1] == refresh_tokens[0]


async def test_another_process_goes_on_with_the_tokens_that_were_kept() -> None:
    guarded, kept = Guarded(scope="read write"), InMemory()

    async def nobody(_: str) -> None:
        raise AssertionError("nobody is there to log in")

    async with scripted(guarded) as server:
        guarded.origin = server.origin
        async with Client(
            server.url, auth=BrowserLogin(open_url=guarded.browser(), storage=kept)
        ) as client:
            await client.call("t")
        again = BrowserLogin(open_url=nobody, storage=kept)
        async with Client(server.url, auth=again) as client:
            assert (await client.call("t")).text == "secret things"
        await again.forget(server.url)
        assert await kept.load(server.url) is None


async def test_client_credentials_are_shown_to_the_issuer_they_belong_to_alone() -> None:
    guarded = Guarded(scope="read write")
    auth = ClientCredentials("me", "hush", issuer="https://mine.example")
    with pytest.raises(AuthorizationFailed, match="names the authorization server") as caught:
        await logged_in(guarded, auth)
    assert guarded.forms == []
    assert "hush" not in f"{caught.value}{auth}"


@pytest.mark.parametrize(
    "login",
    [
        lambda guarded, kept: ClientCredentials("me", "hush", storage=kept, issuer=None),
        lambda guarded, kept: BrowserLogin(
            client_id="me", client_secret="hush", open_url=guarded.browser(), storage=kept
        ),
    ],
    ids=["client credentials", "browser"],
)
async def test_a_secret_that_was_used_in_another_process_stays_with_its_issuer(login: Any) -> None:
    guarded, kept = Guarded(scope="read write"), InMemory()
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        async with Client(server.url, auth=login(guarded, kept)) as client:
            await client.call("t")
        guarded.issuer = server.origin.replace("127.0.0.1", "localhost")
        guarded.valid.clear()
        guarded.forms.clear()
        async with Client(server.url, auth=login(guarded, kept)) as client:
            with pytest.raises(AuthorizationFailed, match="names the authorization server"):
                await client.call("t")
    assert guarded.forms == []


async def test_a_login_goes_to_the_issuer_that_was_named_and_to_no_other() -> None:
    guarded, opened = Guarded(), list[str]()
    auth = BrowserLogin(issuer="https://mine.example", open_url=opened.append)
    with pytest.raises(AuthorizationFailed, match="names the authorization server"):
        await logged_in(guarded, auth)
    assert not opened
    assert not guarded.registrations


@pytest.mark.parametrize(
    "lasts_s", [1.7e308, 10**30, -5, 0, True, "3600", None, [1]], ids=lambda one: repr(one)
)
async def test_a_token_may_say_anything_about_how_long_it_lasts(lasts_s: Any) -> None:
    guarded = Guarded(scope="read write", granted={"expires_in": lasts_s, "refresh_token": 5})
    auth = ClientCredentials("me", "hush", issuer=None)
    if lasts_s is True or lasts_s not in (0, -5):
        assert (await logged_in(guarded, auth))[0] == "secret things"
    else:  # it is over as soon as it is there, each time
        with pytest.raises(AuthorizationFailed):
            await logged_in(guarded, auth)


@pytest.mark.parametrize(
    ("granted", "said"),
    [
        ({"access_token": 5}, "access_token"),
        ({"access_token": ""}, "access_token"),
        ({"access_token": "a\r\nX-Evil: 1"}, "cannot be sent"),
        ({"access_token": "\u4f8b"}, "cannot be sent"),
        ({"token_type": "mac"}, "unknown type"),
    ],
)
async def test_a_token_that_is_none_is_refused_in_words(granted: Any, said: str) -> None:
    guarded = Guarded(scope="read write", granted=granted)
    with pytest.raises(ClientError, match=said) as caught:
        await logged_in(guarded, ClientCredentials("me", "hush", issuer=None))
    assert "X-Evil" not in str(caught.value)


async def test_scopes_without_end_are_not_asked_for() -> None:
    guarded = Guarded(scope=" ".join(f"s{number}" for number in range(300)))
    with pytest.raises(AuthorizationFailed, match="more than 200 scopes"):
        await logged_in(guarded, ClientCredentials("me", "hush", issuer=None))
    assert guarded.forms == []


@pytest.mark.parametrize(
    ("challenge", "metadata", "named"),
    [
        ('Bearer resource_metadata="http://127.0.0.1:8080/admin"', None, "metadata URL"),
        ('Bearer resource_metadata="https://localhost/admin"', None, "metadata URL"),
        ("Bearer", {"authorization_servers": ["http://127.0.0.1:8080"]}, "issuer"),
        *(
            (f'Bearer resource_metadata="https://{host}/admin"', None, "metadata URL")
            for host in (
                "127.0.0.2",
                "localhost.",
                "admin.localhost",
                "0.0.0.0",
                "[::]",
                "[::ffff:127.0.0.1]",
                "[::ffff:7f00:1]",
                "[64:ff9b::7f00:1]",
            )
        ),
    ],
)
async def test_a_server_elsewhere_has_nothing_asked_on_this_machine(
    challenge: str, metadata: Any, named: str
) -> None:
    asked: list[str] = []

    def serve(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if "well-known" in request.url.path and metadata is not None:
            return httpx.Response(200, json={"resource": "https://far.example/mcp", **metadata})
        return httpx.Response(401, headers={"WWW-Authenticate": challenge})

    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as http_client:
        auth = ClientCredentials("me", "hush", issuer=None)
        async with Client("https://far.example/mcp", auth=auth, http=http_client) as client:
            with pytest.raises(AuthorizationFailed, match=f"{named}.* is on this machine"):
                await client.call("t")
    assert all(url.startswith("https://far.example/") for url in asked)


@pytest.mark.parametrize("endpoint", ["token_endpoint", "authorization_endpoint"])
async def test_an_authorization_server_elsewhere_has_no_endpoint_on_this_machine(
    endpoint: str,
) -> None:
    opened: list[str] = []
    documents = {
        "/.well-known/oauth-protected-resource/mcp": {
            "resource": "https://far.example/mcp",
            "authorization_servers": ["https://as.example"],
        },
        "/.well-known/oauth-authorization-server": {
            "issuer": "https://as.example",
            "token_endpoint": "https://as.example/token",
            "authorization_endpoint": "https://as.example/authorize",
            "code_challenge_methods_supported": ["S256"],
            endpoint: "http://127.0.0.1:8080/admin",
        },
    }

    def serve(request: httpx.Request) -> httpx.Response:
        found = documents.get(request.url.path)
        return httpx.Response(401) if found is None else httpx.Response(200, json=found)

    auth: Any = ClientCredentials("me", "hush", issuer=None)
    if endpoint == "authorization_endpoint":
        auth = BrowserLogin(client_id="me", open_url=opened.append)
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(serve)) as http_client,
        Client("https://far.example/mcp", auth=auth, http=http_client) as client,
    ):
        with pytest.raises(AuthorizationFailed, match=f"{endpoint}.* is on this machine"):
            await client.call("t")
    assert opened == []


async def test_no_secret_is_logged_or_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    seen: list[Any] = []
    guarded, kept = Guarded(scope="read write"), InMemory()
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        auth = ClientCredentials("me", "hush-hush", storage=kept, issuer=None)
        client = Client(server.url, auth=auth, observer=lambda *one: seen.append(one))
        async with client:
            await client.call("t")
            shown = f"{client!r} {auth!r} {auth._stored!r} {seen!r} {caplog.text}"
    assert await kept.load(server.url)
    assert "tools/call" in shown
    for secret in ("hush-hush", "token-1", "'r'"):
        assert secret not in shown


async def test_a_refusal_says_why_and_no_secret() -> None:
    refused = says({"error": "invalid_client", "error_description": "Unknown"}, 401)
    guarded = Guarded(refuse=lambda form: refused)
    with pytest.raises(AuthorizationFailed, match="invalid_client Unknown") as caught:
        await logged_in(guarded, ClientCredentials("me", "hush", issuer=None))
    assert "hush" not in str(caught.value)


async def test_a_scope_that_was_granted_and_is_still_missed_ends_the_call() -> None:
    guarded = Guarded()
    guarded.scopes = _Never()
    with pytest.raises(AuthorizationFailed, match="write"):
        await logged_in(guarded, BrowserLogin(open_url=guarded.browser()))
    assert len(guarded.forms) == 2


class _Never(dict[str, str]):
    """Scopes that nobody has, whatever was granted."""

    def get(self, key: str, default: Any = None) -> Any:
        return ""


async def test_calls_at_the_same_time_log_in_once() -> None:
    guarded = Guarded(scope="read write")
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        async with Client(server.url, auth=ClientCredentials("me", "hush", issuer=None)) as client:
            await asyncio.gather(*[client.call("t") for _ in range(5)])
    assert len(guarded.forms) == 1


def test_a_client_is_known_by_one_thing() -> None:
    with pytest.raises(ClientError, match="either"):
        ClientCredentials("me", issuer=None)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ('Bearer realm="a, b", scope="x y"', {"realm": "a, b", "scope": "x y"}),
        ("Basic, DPoP error=use_dpop_nonce", {"error": "use_dpop_nonce"}),
        ('Bearer error="a\\"b"', {"error": 'a"b'}),
        ("", {}),
    ],
)
def test_challenges_are_read(header: str, found: dict[str, str]) -> None:
    assert challenge_parameters(header) == found


def test_a_long_header_of_a_server_is_read_in_linear_time() -> None:
    headers = ["a" * 8_192, "_" * 8_191 + "=", 'a="' + r"\a" * 4_000]
    code = (
        "from roundgate.client.auth import challenge_parameters as read\n"
        f"for header in 100 * {headers!r}: assert read(header) == {{}}"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_a_proof_is_for_one_request_and_one_token() -> None:
    key = ProofKey(Clock())
    url = Url.parse("https://mcp.example/mcp?q=1")
    key.nonces[url.origin] = "n"
    header = jwt.get_unverified_header(key.proof("POST", url, "token"))
    public = jwt.PyJWK(header["jwk"])
    claims, again = [
        jwt.decode(key.proof("POST", url, "token"), public, ["ES256"]) for _ in range(2)
    ]
    assert (header["typ"], "d" in header["jwk"]) == ("dpop+jwt", False)
    assert (claims["htm"], claims["htu"], claims["nonce"]) == (
        "POST",
        "https://mcp.example/mcp",
        "n",
    )
    assert (
        claims["ath"] == urlsafe_b64encode(hashlib.sha256(b"token").digest()).rstrip(b"=").decode()
    )
    assert claims["jti"] != again["jti"]
    assert ProofKey(Clock(), key.pem).pem == key.pem


# -- what is in the way of a login
# --------------------------------------------------------------------


async def test_a_machine_without_a_browser_says_how_to_log_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    with pytest.raises(
        ClientError, match="No browser could be opened on this machine: pass open_url="
    ):
        await logged_in(Guarded(), BrowserLogin())


async def test_a_callback_whose_port_is_taken_says_which() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        auth = BrowserLogin(port=port, client_id="mine", open_url=lambda url: None)
        with pytest.raises(ClientError, match=f"cannot listen on port {port}"):
            await logged_in(Guarded(), auth)


async def test_who_calls_the_callback_and_says_nonsense_does_not_end_the_login() -> None:
    guarded = Guarded()

    async def visit(url: str) -> None:
        redirect = urlsplit(parse_qs(urlsplit(url).query)["redirect_uri"][0])
        for nonsense in (b"", b"hello\r\n\r\n", b"x" * 100_000):
            _, writer = await asyncio.open_connection("127.0.0.1", redirect.port)
            writer.write(nonsense)
            writer.write_eof()
            writer.close()
        await guarded.browser()(url)

    assert (await logged_in(guarded, BrowserLogin(open_url=visit)))[0] == "secret things"


class Registering(Guarded):
    """An authorization server whose registration answers so."""

    def __init__(self, status: int, answer: dict[str, Any], **more: Any) -> None:
        super().__init__(**more)
        self.status = status
        self.answer = answer

    def __call__(self, asked: Asked) -> Any:
        if asked.target == "/register":
            self.registrations.append(json.loads(asked.body))
            return says(self.answer, self.status)
        return super().__call__(asked)


async def test_a_registration_that_is_refused_says_why() -> None:
    no = {"error": "invalid_client_metadata", "error_description": "No loopback here"}
    guarded = Registering(400, no)
    with pytest.raises(AuthorizationFailed, match="invalid_client_metadata No loopback here"):
        await logged_in(guarded, BrowserLogin(open_url=guarded.browser()))
    assert guarded.forms == []


async def test_a_registered_secret_is_shown_as_the_registration_says() -> None:
    answer = {"client_id": "c 1", "client_secret": "hush"}
    answer["token_endpoint_auth_method"] = "client_secret_post"
    methods = ["client_secret_post", "client_secret_basic"]
    guarded = Registering(201, answer, document={"token_endpoint_auth_methods_supported": methods})
    await logged_in(guarded, BrowserLogin(open_url=guarded.browser()))
    assert guarded.registrations[0]["token_endpoint_auth_method"] == "client_secret_post"
    assert (guarded.forms[0]["client_id"], guarded.forms[0]["client_secret"]) == ("c 1", "hush")


async def test_a_refresh_that_is_refused_is_followed_by_a_login() -> None:
    def refuse(form: dict[str, str]) -> bytes | None:
        is_refresh = form["grant_type"] == "refresh_token"
        return says({"error": "invalid_grant"}, 400) if is_refresh else None

    guarded = Guarded(scope="read write", refuse=refuse)
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        async with Client(server.url, auth=BrowserLogin(open_url=guarded.browser())) as client:
            await client.call("t")
            guarded.valid.clear()
            assert (await client.call("t")).text == "secret things"
    grants = [form["grant_type"] for form in guarded.forms]
    assert grants == ["authorization_code", "refresh_token", "authorization_code"]


async def test_a_refresh_token_is_asked_for_where_the_server_has_a_scope_for_it() -> None:
    guarded = Guarded(document={"scopes_supported": ["read", "write", "offline_access"]})
    await logged_in(guarded, BrowserLogin(open_url=guarded.browser()))
    assert "offline_access" in guarded.asked_for["scope"].split()


async def test_who_may_not_is_not_asked_to_log_in_again() -> None:
    """A 403 that wants no other scope."""
    guarded = Guarded(scope="read write")
    logins: list[str] = []

    async def count(url: str) -> None:
        logins.append(url)
        await guarded.browser()(url)

    def script(asked: Asked) -> Any:
        is_call = asked.body and asked.target == "/mcp" and asked.rpc == "tools/call"
        return http(403, b"", "text/plain") if is_call else guarded(asked)

    async with scripted(script) as server:
        guarded.origin = server.origin
        async with Client(server.url, auth=BrowserLogin(open_url=count)) as client:
            with pytest.raises(HttpRefused, match="403"):
                await client.call("t")
    assert len(logins) == 1


async def test_a_bearer_token_that_is_refused_is_not_tried_again_and_never_shown() -> None:
    guarded, token = Guarded(), Bearer("hush-hush")
    with pytest.raises(HttpRefused, match="401") as caught:
        await logged_in(guarded, token)
    assert "hush" not in str(caught.value) + repr(token)
    for wrong in ("", "two words", "line\nbreak", "ümlaut"):
        with pytest.raises(ClientError, match="a header cannot hold"):
            Bearer(wrong)
