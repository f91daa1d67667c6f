"""A verified token is remembered: its signature costs nothing for a minute, and no check is lost."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FunctionType, ModuleType
from typing import Any

import pytest
from jwt.algorithms import ECAlgorithm

from roundgate.auth.jwks import RETRY_MS, KeySet
from roundgate.auth.principal import Principal
from roundgate.auth.verified import REMEMBERED_MS, VerifiedTokens
from roundgate.auth.verifier import JwtVerifier
from roundgate.errors import InsufficientScope, Unauthenticated, Unavailable
from roundgate.settings import JwtAuthConfig
from tests.support.clocks import SkippingClock
from tests.support.issuer import AUDIENCE, ISSUER, jwks, private_key, public_jwk, token
from tests.support.long import sampled
from tests.support.services import answer, service

DOWN = answer(b"out of order", "503 Service Unavailable")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The signatures that were checked."""
    checked: list[bytes] = []
    verify = ECAlgorithm.verify

    def counting(self: ECAlgorithm, msg: bytes, key: Any, sig: bytes) -> bool:
        checked.append(sig)
        return verify(self, msg, key, sig)

    monkeypatch.setattr(ECAlgorithm, "verify", counting)
    return checked


@asynccontextmanager
async def verifying(
    *documents: bytes, **config: Any
) -> AsyncIterator[tuple[JwtVerifier, SkippingClock]]:
    async with service(*(documents or (answer(jwks("ec")),))) as keys:
        url, clock = f"{keys.url}/jwks", SkippingClock()
        made = JwtAuthConfig.model_validate({"issuer": ISSUER, "jwks_url": url, **config})
        yield JwtVerifier(made, AUDIENCE, KeySet(url, clock)), clock


async def principal(by: JwtVerifier, text: str) -> Principal:
    return await by.principal(f"Bearer {text}".encode())


async def refused(by: JwtVerifier, text: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await principal(by, text)
    return str(caught.value)


async def test_a_signature_is_checked_once_a_minute(checks: list[bytes]) -> None:
    async with verifying() as (by, clock):
        text = token(exp=int(time.time()) + 3_600)
        first = await principal(by, text)
        for _ in range(20):
            again = await principal(by, text)
            assert (again, again.claims, again.expires_at_s) == (
                first,
                first.claims,
                first.expires_at_s,
            )
        assert len(checks) == 1
        clock.skip(REMEMBERED_MS / 1000 + 1)
        await principal(by, text)
        assert len(checks) == 2


async def test_no_token_is_remembered_beyond_its_expiry(checks: list[bytes]) -> None:
    async with verifying() as (by, clock):
        text = token(exp=int(time.time()) + 20)
        await principal(by, text)
        clock.skip(21)
        await principal(by, text)  # by PyJWT's clock it has not expired
        await principal(by, text)
        assert len(checks) == 3, "nor once it has expired"


async def test_a_token_that_expires_while_it_is_remembered_is_refused() -> None:
    async with verifying(leeway_s=0) as (by, _):
        text = token(exp=int(time.time()) + 2)
        await principal(by, text)

        async def call_until_it_is_refused() -> None:
            while True:
                await principal(by, text)
                await asyncio.sleep(0.05)

        async with asyncio.timeout(60):
            with pytest.raises(Unauthenticated, match="The token has expired"):
                await call_until_it_is_refused()


async def test_a_clock_that_is_set_back_has_the_dates_checked_again(checks: list[bytes]) -> None:
    async with verifying() as (by, clock):
        text = token()
        await principal(by, text)
        clock.skip(-1)
        await principal(by, text)
        assert len(checks) == 2


@pytest.mark.parametrize(
    "later",
    [["ed"], [{**public_jwk("ec-2"), "kid": "ec"}]],
    ids=["withdrawn", "another key, one kid"],
)
async def test_a_key_that_is_withdrawn_takes_its_remembered_tokens_along(later: list[Any]) -> None:
    documents = answer(jwks("ec")), answer(jwks(*later))
    async with verifying(*documents, algorithms=["ES256", "EdDSA"]) as (by, clock):
        text = token()
        await principal(by, text)
        clock.skip(RETRY_MS / 1000 + 1)
        await refused(by, token("ed", headers={"kid": "unknown"}))  # the keys are read again
        await refused(by, text)


async def test_while_the_issuer_is_down_a_remembered_token_is_accepted() -> None:
    async with verifying(answer(jwks("ec")), DOWN) as (by, clock):
        text = token()
        await principal(by, text)
        clock.skip(RETRY_MS / 1000 + 1)
        with pytest.raises(Unavailable):
            await principal(by, token(headers={"kid": "unknown"}))
        assert (await principal(by, text)).subject == "ann"


async def test_a_refused_token_is_never_remembered(checks: list[bytes]) -> None:
    async with verifying(scopes=["tools"]) as (by, _):
        forged = [token(key=private_key("ec-2"), jti=str(number)) for number in range(100)]
        for text in [*forged, token(aud="https://other.example.com"), token(sub="")]:
            await refused(by, text)
            await refused(by, text)
        assert len(checks) == 204
        assert len(by.verified) == 0


async def test_scopes_are_looked_at_in_every_call() -> None:
    async with verifying(scopes=["tools"]) as (by, _):
        text = token(scope="other")
        for _ in range(3):
            with pytest.raises(InsufficientScope):
                await principal(by, text)


async def test_whatever_differs_from_a_remembered_token_is_another() -> None:
    async with verifying() as (by, _):
        text = token()
        await principal(by, text)
        for place in sampled(range(len(text) - 1)):  # base64 ignores bits of the last character
            other = "A" if text[place] != "A" else "B"
            await refused(by, f"{text[:place]}{other}{text[place + 1 :]}")


async def test_verifiers_share_their_keys_and_nothing_that_was_verified() -> None:
    async with verifying() as (by, _):
        other = JwtVerifier(by.config, "https://mcp.example.com/other", by.keys)
        text = token()
        await principal(by, text)
        assert "another audience" in await refused(other, text)


async def test_a_handler_that_changes_claims_changes_its_own() -> None:
    async with verifying() as (by, _):
        text = token(groups=["guests"])
        for _ in range(3):
            claims: Any = (await principal(by, text)).claims
            assert claims["groups"] == ["guests"]
            claims["groups"].append("admins")
            claims["sub"] = "root"


async def test_what_is_remembered_has_bounds() -> None:
    tokens = [token(jti=str(number)) for number in range(6)]
    three = 3 * len(tokens[0])
    for remembered in (VerifiedTokens(max_tokens=3), VerifiedTokens(max_bytes=three)):
        async with verifying() as (by, _):
            small = JwtVerifier(by.config, AUDIENCE, by.keys, remembered)
            for text in tokens:
                await principal(small, text)
                assert len(small.verified) <= 3
            assert len(small.verified) == 3


async def test_forgotten_tokens_leave_with_the_next_one() -> None:
    async with verifying() as (by, clock):
        for number in range(10):
            await principal(by, token(jti=str(number), exp=int(time.time()) + 600))
        clock.skip(REMEMBERED_MS / 1000 + 1)
        await principal(by, token(exp=int(time.time()) + 600))
        assert len(by.verified) == 1


async def test_the_token_is_neither_kept_nor_shown() -> None:
    async with verifying() as (by, _):
        text = token(sub="secret-subject")
        await principal(by, text)
        signature = text.rpartition(".")[2]
        assert not any(signature in kept for kept in texts_in(by.verified))
        assert "secret-subject" in texts_in(by.verified)
        assert "secret-subject" not in repr(by)


def texts_in(root: object) -> list[str]:
    """Every text that an object holds, also as bytes."""
    texts, found, left = [], set[int](), [root]
    while left:
        value = left.pop()
        if id(value) in found or isinstance(value, (type, ModuleType, FunctionType)):
            continue
        found.add(id(value))
        if isinstance(value, (str, bytes)):
            texts.append(value if isinstance(value, str) else value.decode("latin-1"))
        left += gc.get_referents(value)
    return texts
