"""What an authorizer in front hands over becomes a principal, or a 401, whatever its shape."""

from __future__ import annotations

from typing import Any

import pytest

from roundgate.auth.principal import Principal
from roundgate.auth.verifier import AuthorizerVerifier
from roundgate.errors import Unauthenticated
from roundgate.settings import AuthorizerConfig

ISSUER = "https://issuer.example"
BY = AuthorizerVerifier(AuthorizerConfig(authorizer="api-gateway", issuer=ISSUER))


async def test_claims_name_the_caller() -> None:
    claims = {"iss": ISSUER, "sub": "ada", "azp": "editor", "scope": "[a, b]"}
    assert await BY.principal(None, claims) == Principal(ISSUER, "ada", "editor", frozenset("ab"))


async def test_a_number_may_name_a_caller() -> None:
    assert (await BY.principal(None, {"sub": 4711})).subject == "4711"


@pytest.mark.parametrize(
    "odd", [None, "", [], {}, ["ada"], {"a": 1}, True, 1.5, "x" * 1025, "\ud800"], ids=ascii
)
async def test_an_odd_name_is_nobody(odd: Any) -> None:
    with pytest.raises(Unauthenticated):
        await BY.principal(None, {"sub": odd})


@pytest.mark.parametrize("claim", ["iss", "client_id", "azp"])
@pytest.mark.parametrize("odd", [["x"], {"a": [1]}, True, 1.5, "\ud800"], ids=ascii)
async def test_an_odd_claim_beside_it_is_a_refusal(claim: str, odd: Any) -> None:
    with pytest.raises(Unauthenticated):
        await BY.principal(None, {"sub": "ada", claim: odd})


@pytest.mark.parametrize("odd", [None, 7, {"a": 1}, [["a"], 1], "[", True], ids=str)
async def test_odd_scopes_are_none(odd: Any) -> None:
    assert not {"a", "1"} & (await BY.principal(None, {"sub": "ada", "scope": odd})).scopes


@pytest.mark.parametrize(
    ("claim", "kept"),
    [("[a b]", ["a", "b"]), ("[a,b]", ["a", "b"]), ("[]", []), ("a b", "a b"), (["a b"], ["a b"])],
)
async def test_a_list_that_the_api_writes_as_text_is_a_list_for_rules(
    claim: Any, kept: Any
) -> None:
    principal = await BY.principal(None, {"sub": "ada", "iss": ISSUER, "groups": claim})
    assert principal.claims["groups"] == kept
