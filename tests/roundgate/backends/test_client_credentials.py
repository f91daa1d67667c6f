"""Tokens of a real authorization server (Authlib): had once by many, renewed, rotated,
refused, and its outages."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc import jws
from joserfc.jwk import import_key

from roundgate.backends.http.credential_config import ClientCredential
from roundgate.clock import Clock
from roundgate.settings import Reference, Secret
from tests.support.asgi import Client
from tests.support.authority import Authority
from tests.support.authorization_server import CLIENT, Issuer, running
from tests.support.services import answer, gateway_to, service

SECRET = "s3cret & m€re"


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")  # loopback
    with running(Issuer()) as one:
        yield one


def gateway(issuer: Issuer, **credential: Any) -> Any:
    """A gateway in front of the service that takes the issuer's tokens."""
    given = {
        "client_credentials": CLIENT,
        "token_url": f"{issuer.url}/token",
        **({"client_secret": SECRET} if not credential.keys() & {"private_key", "tls"} else {}),
        **credential,
    }
    return gateway_to(issuer.url, {"path": "/api"}, credential=given)


async def is_ok(gate: Client) -> bool:
    result = await gate.call("tool")
    return bool(result.get("structuredContent") == {"ok": True})


async def test_a_hundred_calls_at_once_make_one_request_for_a_token(issuer: Issuer) -> None:
    issuer.pause_s = 0.1
    async with gateway(issuer) as gate:
        assert all(await asyncio.gather(*(is_ok(gate) for _ in range(100))))
        assert len(issuer.forms) == 1
        assert len(set(issuer.calls)) == 1


async def test_a_hundred_calls_whose_token_was_revoked_make_one_more(issuer: Issuer) -> None:
    async with gateway(issuer) as gate:
        assert await is_ok(gate)
        issuer.revoke_all()
        assert all(await asyncio.gather(*(is_ok(gate) for _ in range(100))))
    assert len(issuer.forms) == 2


async def test_what_comes_with_a_401_is_not_read_before_another_token_is_sent() -> None:
    """It may have no end, or become gigabytes once it is unpacked."""
    tokens = [
        answer(b'{"access_token": "token-%d", "token_type": "Bearer"}' % one) for one in (1, 2)
    ]
    refused = answer(b"\x1f\x8b", "401 Unauthorized", length=10**9, Content_Encoding="gzip")
    async with service(*tokens) as issuer, service(refused, answer(b'"good"')) as told:
        credential = {
            "client_credentials": CLIENT,
            "client_secret": SECRET,
            "token_url": f"{issuer.url}/token",
        }
        async with gateway_to(told.url, {"timeout_s": 60}, credential=credential) as gate:
            assert await gate.text("tool") == "good"
        assert [told.header("authorization", one) for one in (0, 1)] == [
            ["Bearer token-1"], ["Bearer token-2"],
        ]  # fmt: skip


LONG = b"9" * 5_000


@pytest.mark.parametrize(
    ("said", "status", "shown"),
    [
        (b'{"access_token":"token-1","token_type":"Bearer","expires_in":"%b"}' % LONG, "200 OK", "good"),
        (b'{"access_token":"token-1","token_type":"Bearer","expires_in":%b}' % LONG[:400], "200 OK", "good"),
        (b'{"access_token":"token-1 ","token_type":"Bearer"}', "200 OK", "gave a token that cannot be sent"),
        (b"", "302 Found", "could not be reached (InvalidURL)"),
    ],
)  # fmt: skip
async def test_an_odd_answer_of_an_authorization_server_is_no_fault_of_the_gateway(
    said: bytes, status: str, shown: str
) -> None:
    told = answer(said, status, Location="mailto:ann")
    async with service(told) as issuer, service(answer(b'"good"')) as api:
        credential = {"client_credentials": CLIENT, "client_secret": SECRET}
        credential["token_url"] = f"{issuer.url}/token"
        async with gateway_to(api.url, {}, credential=credential) as gate:
            for _ in range(2):
                assert shown in await gate.text("tool")
        assert len(issuer.requests) == 1  # a failure, too, is remembered for a moment


async def test_a_token_that_expires_is_renewed_before_a_call_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    with running(Issuer(lifetime_s=1_000)) as short:
        async with gateway(short) as gate:
            assert await is_ok(gate)
            short.skipped_s = 960  # there are 40 s for a slow machine
            monkeypatch.setattr("roundgate.clock.Clock.monotonic_ms", later(960_000))
            assert await is_ok(gate)
    assert len(short.calls) == len(set(short.calls)) == 2  # none was refused and sent again


async def test_a_secret_that_was_rotated_is_read_again_without_a_restart(
    issuer: Issuer, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    secret = Secret((Reference("file", str(file)),))
    async with gateway(issuer, client_secret=secret) as gate:
        assert await is_ok(gate)
        issuer.secret = "another s3cret"
        file.write_text("another s3cret\n")
        issuer.revoke_all()
        assert await is_ok(gate)


async def test_a_service_that_takes_no_token_does_not_have_the_server_asked_for_ever(
    issuer: Issuer,
) -> None:
    async with gateway(issuer) as gate:
        issuer.lifetime_s = 0  # of what is kept here: each is over at once
        for _ in range(5):
            assert "401 UNAUTHORIZED" in await gate.text("tool")
    assert len(issuer.forms) == 2


async def test_an_outage_is_told_and_the_server_is_left_alone_until_it_is_over(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.is_down = True
    stopped_ms = Clock().monotonic_ms()
    monkeypatch.setattr("roundgate.clock.Clock.monotonic_ms", lambda self: stopped_ms)
    async with gateway(issuer) as gate:
        texts = await asyncio.gather(*(gate.text("tool") for _ in range(20)))
        assert {text.partition("no token")[2] for text in texts} == {": 503"}
        assert len(issuer.forms) == 1
        issuer.is_down = False
        assert "503" in await gate.text("tool")  # it asked for three seconds
        monkeypatch.setattr("roundgate.clock.Clock.monotonic_ms", lambda self: stopped_ms + 3_100)
        assert await is_ok(gate)


def later(ms: float) -> Any:
    real = Clock.monotonic_ms
    return lambda self: real(self) + ms


@pytest.mark.parametrize(
    ("credential", "said"),
    [
        ({"client_secret": "wrong"}, "401 invalid_client; check client_credentials"),
        ({"client_credentials": "nobody"}, "401 invalid_client"),
        ({"token_scopes": ["admin"]}, "400 invalid_scope; check token_scopes"),
        ({"client_auth": "post"}, "401 invalid_client"),
    ],
)
async def test_what_the_server_refuses_is_told_apart_with_what_to_do(
    issuer: Issuer, credential: dict[str, Any], said: str
) -> None:
    async with gateway(issuer, **credential) as gate:
        text = await gate.text("tool")
    assert f"gave the gateway no token: {said}" in text
    assert SECRET not in text
    assert issuer.calls == []


async def test_scopes_audience_and_resources_are_asked_for(issuer: Issuer) -> None:
    issuer.method = "client_secret_post"
    more = {"token_scopes": ["read", "write"], "audience": "api", "client_auth": "post"}
    async with gateway(issuer, resource=["https://a.example", "urn:b"], **more) as gate:
        assert await is_ok(gate)
    [form] = issuer.forms
    assert form["resource"] == ["https://a.example", "urn:b"]
    assert (form["scope"], form["audience"]) == (["read write"], ["api"])


KEYS = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
}


@pytest.mark.parametrize("algorithm", KEYS)
async def test_a_client_with_a_private_key_signs_each_request(
    issuer: Issuer, algorithm: str
) -> None:
    """Authlib verifies signature, audience, life and that no assertion comes twice."""
    make: Any = KEYS[algorithm]
    key = make()
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = key.private_bytes(serialization.Encoding.PEM, *form).decode()
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    kind: Any = "RSA" if algorithm == "RS256" else "EC"
    issuer.method, issuer.public_key = "private_key_jwt", import_key(public, kind)
    async with gateway(issuer, private_key=pem, private_key_id="key-7") as gate:
        assert await is_ok(gate)
        issuer.revoke_all()
        assert await is_ok(gate)
    first, second = [form["client_assertion"][0] for form in issuer.forms]
    assert first != second
    assert jws.extract_compact(first.encode()).headers() == {
        "typ": "JWT",
        "alg": algorithm,
        "kid": "key-7",
    }
    assert "client_secret" not in issuer.forms[0]


async def test_a_private_key_that_is_none_is_told_without_showing_it(issuer: Issuer) -> None:
    async with gateway(issuer, private_key="-----BEGIN MY SECRET-----") as gate:
        text = await gate.text("tool")
    assert (
        "private_key must be an unencrypted PEM key for RS256, ES256, ES384, ES512 or EdDSA" in text
    )
    assert "MY SECRET" not in text


@pytest.mark.parametrize("name", ["gateway", "somebody"])
async def test_a_client_with_a_certificate_needs_no_secret(tmp_path: Path, name: str) -> None:
    """A private authority, whose certificates the server wants to see (RFC 8705)."""
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca))
    context.load_cert_chain(*authority.issue("server"))
    context.verify_mode = ssl.CERT_REQUIRED
    cert, key = authority.issue(name)
    tls = {"ca": str(authority.ca), "cert": str(cert), "key": str(key)}
    with running(Issuer(method="tls_client_auth", subject="gateway"), context) as issuer:
        credential = {
            "client_credentials": CLIENT,
            "token_url": f"{issuer.url}/token",
            "tls": tls,
        }
        async with gateway_to(issuer.url, {"path": "/api"}, credential=credential, tls=tls) as gate:
            if name == "gateway":
                assert await is_ok(gate)
                assert issuer.forms[0]["client_id"] == [CLIENT]
            else:
                assert "401 invalid_client" in await gate.text("tool")


@pytest.mark.parametrize(
    ("credential", "said"),
    [
        ({"client_secret": "a", "private_key": "b"}, "not both"),
        ({}, "give client_secret, private_key, or tls with a cert"),
        ({"client_auth": "post", "private_key": "b"}, "post needs client_secret"),
        ({"client_auth": "private_key_jwt", "client_secret": "a"}, "needs private_key"),
        ({"client_secret": "a", "tls": {"ca": "x"}, "token_url": "http://localhost/"}, "https"),
        ({"client_secret": "a", "token_parameters": {"scope": "x"}}, "setting of its own"),
        ({"client_secret": " "}, "may not be empty"),
    ],
)
def test_ways_that_do_not_go_together_are_refused(credential: dict[str, Any], said: str) -> None:
    given = {"client_credentials": "a", "token_url": "https://a.example/", **credential}
    with pytest.raises(ValueError, match=said):
        ClientCredential.model_validate(given)
