"""Tokens without a person: a private key, the token of a platform, an identity that an
enterprise vouches for."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from roundgate.client import Client
from roundgate.client.auth import ClientCredentials, EnterpriseIdentity, WorkloadIdentity
from roundgate.errors import AuthorizationFailed, BadAnswer, ClientError
from tests.support.guarded import Guarded, logged_in
from tests.support.scripted import Asked, Scripted, says, scripted

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def allowed(**changes: Any) -> Guarded:
    """A server whose scope covers the call."""
    return Guarded(scope="read write", **changes)


async def test_a_private_key_signs_who_the_client_is_for_this_server_and_for_minutes() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    guarded = allowed()
    said, _ = await logged_in(guarded, ClientCredentials("me", private_key=pem, issuer=None))
    (form,) = guarded.forms
    claims = jwt.decode(
        form["client_assertion"], key.public_key(), ["ES256"], audience=guarded.origin
    )
    assert (said, claims["iss"], claims["sub"]) == ("secret things", "me", "me")
    assert 0 < claims["exp"] - claims["iat"] <= 300
    assert form["grant_type"] == "client_credentials"
    assert form["client_assertion_type"].endswith(":jwt-bearer")
    assert "client_secret" not in form


async def test_what_is_no_key_is_said_without_it() -> None:
    guarded = allowed()
    with pytest.raises(ClientError, match="unencrypted PEM key for RS256, ES256") as caught:
        await logged_in(guarded, ClientCredentials("me", private_key="hush", issuer=None))
    assert "hush" not in str(caught.value)
    assert guarded.forms == []


def test_a_client_has_a_secret_or_a_key_not_both() -> None:
    with pytest.raises(ClientError, match="either"):
        ClientCredentials("me", "secret", private_key="key", issuer=None)


@pytest.mark.parametrize(
    ("kind", "credentials"),
    [
        (ClientCredentials, {"client_id": "me", "client_secret": "hush"}),
        (WorkloadIdentity, {"assertion": "of the platform"}),
        (
            EnterpriseIdentity,
            {
                "id_token": "hush",
                "idp_token_endpoint": "https://idp.example/token",
                "idp_client_id": "at the provider",
                "client_id": "me",
                "client_secret": "secret",
            },
        ),
    ],
)
def test_a_machine_says_which_authorization_server_its_credentials_are_for(
    kind: Any, credentials: dict[str, Any]
) -> None:
    # without it they would go to any that the first MCP server names
    with pytest.raises(TypeError, match="issuer"):
        kind(**credentials)


async def test_a_workload_shows_a_fresh_token_of_its_platform_each_time() -> None:
    made: list[str] = []

    async def fresh() -> str:
        made.append(f"assertion-{len(made)}")
        return made[-1]

    guarded = allowed(granted={"refresh_token": None})
    auth = WorkloadIdentity(fresh, client_id="me", issuer=None)
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        async with Client(server.url, auth=auth) as client:
            for _ in range(2):
                assert (await client.call("t")).text == "secret things"
                guarded.valid.clear()
    assert [form["assertion"] for form in guarded.forms] == ["assertion-0", "assertion-1"]
    assert guarded.forms[0] == {
        "grant_type": JWT_BEARER,
        "assertion": "assertion-0",
        "scope": "read write",
        "client_id": "me",
        "resource": f"{guarded.origin}/mcp",
    }


async def test_a_workload_without_a_client_id_is_known_by_its_token_alone() -> None:
    guarded = allowed()
    await logged_in(guarded, WorkloadIdentity("of the platform", issuer=None))
    (form,) = guarded.forms
    assert form["assertion"] == "of the platform"
    assert "client_id" not in form


class Provider:
    """An enterprise's identity provider, which exchanges ID tokens."""

    def __init__(self, *answer: Any) -> None:
        self._answer = answer
        self.forms: list[dict[str, str]] = []

    def __call__(self, asked: Asked) -> bytes:
        self.forms.append({name: one[0] for name, one in parse_qs(asked.body.decode()).items()})
        return says(*self._answer)


def vouched(provider: Scripted) -> EnterpriseIdentity:
    return EnterpriseIdentity(
        id_token="hush",
        idp_token_endpoint=f"{provider.origin}/token",
        idp_client_id="at the provider",
        client_id="me",
        client_secret="secret",
        issuer=None,
    )


async def test_an_identity_that_an_enterprise_vouches_for_is_exchanged_twice() -> None:
    guarded, provider = allowed(), Provider({"access_token": "vouched for"})
    guarded.challenges["scope"] = "read write"  # the scope is in the assertion
    async with scripted(provider) as idp:
        said, _ = await logged_in(guarded, vouched(idp))
    (exchanged,), (form,) = provider.forms, guarded.forms
    assert said == "secret things"
    assert exchanged["subject_token"] == "hush"
    assert exchanged["client_id"] == "at the provider"
    assert exchanged["audience"] == guarded.origin
    assert exchanged["resource"] == f"{guarded.origin}/mcp"
    assert exchanged["scope"] == "read write"
    assert (form["grant_type"], form["assertion"]) == (JWT_BEARER, "vouched for")
    assert "hush" not in str(form)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (({"error": "access_denied"}, 400), AuthorizationFailed, "issued no assertion: access_denied"),
        (({"token": "x"},), BadAnswer, "without 'access_token'"),
    ],
    ids=["refused", "no token"],
)  # fmt: skip
async def test_a_provider_that_vouches_for_nobody_is_named(
    answer: tuple[Any, ...], error: type[Exception], said: str
) -> None:
    guarded = allowed()
    async with scripted(Provider(*answer)) as idp:
        with pytest.raises(error, match=said) as caught:
            await logged_in(guarded, vouched(idp))
    assert "hush" not in str(caught.value)
    assert guarded.forms == []


async def test_an_identity_stays_with_the_issuer_that_it_is_for() -> None:
    guarded = allowed()
    auth = WorkloadIdentity("of the platform", issuer="https://mine.example")
    with pytest.raises(AuthorizationFailed, match="names the authorization server"):
        await logged_in(guarded, auth)
    assert guarded.forms == []
