"""A bearer token becomes a principal, or is refused in OAuth's words without ever being
repeated."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from hypothesis import given
from hypothesis import strategies as st

from roundgate.auth.jwks import KeySet
from roundgate.auth.principal import LOCAL, LocalVerifier, Principal, task_owner
from roundgate.auth.verifier import MAX_TOKEN_BYTES, JwtVerifier
from roundgate.errors import InsufficientScope, Unauthenticated
from roundgate.settings import JwtAuthConfig
from tests.support.clocks import FixedClock
from tests.support.issuer import AUDIENCE, ISSUER, jwks, private_key, public_jwk, token
from tests.support.long import sampled
from tests.support.services import answer, service

ALL = ["RS256", "ES256", "EdDSA"]
DOCUMENT = jwks("rsa", "ec", "ed")


def verifier(url: str, **config: Any) -> JwtVerifier:
    made = JwtAuthConfig.model_validate(
        {"issuer": ISSUER, "jwks_url": url, "algorithms": ALL, **config}
    )
    return JwtVerifier(made, AUDIENCE, KeySet(url, FixedClock()))


@pytest.fixture
async def by() -> AsyncIterator[JwtVerifier]:
    async with service(answer(DOCUMENT)) as keys:
        yield verifier(f"{keys.url}/jwks")


async def principal(by: JwtVerifier, text: str) -> Principal:
    return await by.principal(f"Bearer {text}".encode())


async def refusal(by: JwtVerifier, authorization: bytes | None) -> tuple[str | None, str]:
    """OAuth's error code and what the caller is told."""
    with pytest.raises(Unauthenticated) as caught:
        await by.principal(authorization)
    assert caught.value.status == 401
    return caught.value.error, str(caught.value)


async def is_invalid(by: JwtVerifier, text: str) -> bool:
    """Whether a token is refused as one."""
    return (await refusal(by, f"Bearer {text}".encode()))[0] == "invalid_token"


@pytest.mark.parametrize("kid", ["rsa", "ec", "ed"])
async def test_a_token_that_holds_names_its_principal(by: JwtVerifier, kid: str) -> None:
    assert await principal(by, token(kid, scope="a b")) == Principal(
        ISSUER, "ann", "cli", frozenset("ab")
    )


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  ", b"  Bearer "])
async def test_the_scheme_is_read_as_rfc_9110_has_it(by: JwtVerifier, scheme: bytes) -> None:
    assert (await by.principal(scheme + token().encode() + b" ")).subject == "ann"


@pytest.mark.parametrize(
    "given", [None, b"", b" ", b"Bearer", b"Bearer ", b"Basic YW5uOng=", b"Bearertoken", b"\xff"]
)
async def test_who_sends_no_bearer_token_gets_no_error_code(
    by: JwtVerifier, given: bytes | None
) -> None:
    error, told = await refusal(by, given)
    assert (error, told[:24]) == (None, "A bearer token is needed")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"exp": int(time.time()) - 3600}, "The token has expired"),
        (
            {"iss": "https://login.example.org/"},
            f"The token is from another issuer; get one from {ISSUER}",
        ),
        ({"iss": ISSUER.rstrip("/")}, f"The token is from another issuer; get one from {ISSUER}"),
        (
            {"aud": "https://other.example.com/mcp"},
            f"The token is for another audience; request one for {AUDIENCE}",
        ),
        ({"aud": AUDIENCE + "/"}, f"The token is for another audience; request one for {AUDIENCE}"),
        (
            {"aud": ["https://other.example.com"]},
            f"The token is for another audience; request one for {AUDIENCE}",
        ),
        ({"aud": []}, f"The token is for another audience; request one for {AUDIENCE}"),
        ({"nbf": int(time.time()) + 3600}, "The token is not valid"),
        ({"iat": int(time.time()) + 3600}, "The token is not valid"),
        ({"exp": None}, "The token is not valid"),
        ({"iss": None}, "The token is not valid"),
        ({"aud": None}, f"The token names no audience; request one for {AUDIENCE}"),
        ({"sub": None}, "The token is not valid"),
        ({"exp": "never"}, "The token is not valid"),
        ({"exp": [1]}, "The token is not valid"),
        ({"exp": 1e400}, "The token is not valid"),
        ({"nbf": {}}, "The token is not valid"),
        ({"sub": 7}, "The token is not valid"),
        ({"aud": 7}, f"The token is for another audience; request one for {AUDIENCE}"),
        ({"key": private_key("ec-stranger")}, "The token is not valid"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
async def test_a_token_that_does_not_hold_is_refused(
    by: JwtVerifier, changed: dict[str, Any], told: str
) -> None:
    assert await refusal(by, b"Bearer " + token(**changed).encode()) == ("invalid_token", told)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"aud": None}, "no aud, and client 'cli' is not in auth.clients"),
        ({"aud": "api://other"}, "aud is 'api://other'"),
        ({"iss": "https://sts.windows.net/t/"}, "iss is 'https://sts.windows.net/t/'"),
        ({"exp": 1}, "exp is past"),
        ({"sub": None}, 'MissingRequiredClaimError: Token is missing the "sub" claim'),
        ({"headers": {"kid": "gone"}}, "kid is 'gone'"),
        ({"headers": {"typ": "logout+jwt"}}, "typ is 'logout+jwt'"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
async def test_the_log_says_which_check_failed(
    by: JwtVerifier, changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unauthenticated) as caught:
        await principal(by, token(**changed))
    assert caught.value.reason == reason


async def test_a_reason_has_a_limit(by: JwtVerifier) -> None:
    with pytest.raises(Unauthenticated) as caught:
        await principal(by, token(aud=["x" * 6_000] * 3))
    assert len(caught.value.reason or "") == 200


@pytest.mark.parametrize("claim", ["client_id", "azp"])
async def test_a_token_without_an_audience_is_accepted_from_a_listed_client(claim: str) -> None:
    """Access tokens of Cognito have `client_id`, those of Clerk `azp`, and neither has `aud`."""
    async with service(answer(DOCUMENT)) as keys:
        by = verifier(f"{keys.url}/jwks", clients=["app"])
        changed: dict[str, Any] = {"client_id": None, claim: "app"}
        text = token(aud=None, **changed)
        assert (await principal(by, text)).client_id == "app"


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": "https://other.example.com/mcp"},
        {"aud": ""},
        {"aud": []},
        {"aud": None, "client_id": "stranger"},
        {"aud": None, "client_id": None},
        {"aud": None, "client_id": ["app"]},
        {"aud": None, "client_id": "stranger", "azp": "app"},
    ],
    ids=str,
)
async def test_listed_clients_open_nothing_else(changed: dict[str, Any]) -> None:
    async with service(answer(DOCUMENT)) as keys:
        by = verifier(f"{keys.url}/jwks", clients=["app"])
        with pytest.raises(Unauthenticated):
            await principal(by, token(**{"client_id": "app", **changed}))


@pytest.mark.parametrize("kind", ["at+jwt", "AT+JWT", "application/at+jwt", "JWT", "jwt", None])
async def test_access_tokens_are_taken_by_their_type(by: JwtVerifier, kind: str | None) -> None:
    assert (await principal(by, token(headers={"typ": kind}))).subject == "ann"


@pytest.mark.parametrize(
    "headers",
    [
        *(
            {"typ": kind}
            for kind in (
                "logout+jwt",
                "dpop+jwt",
                "id_token+jwt",
                "secevent+jwt",
                "JOSE",
                "",
                7,
                ["JWT"],
            )
        ),
        {"crit": ["exp"], "exp": 1},
        {"crit": []},
    ],
    ids=str,
)
async def test_whatever_else_the_issuer_signs_is_no_access_token(
    by: JwtVerifier, headers: dict[str, Any]
) -> None:
    error, told = await refusal(by, b"Bearer " + signed(headers))
    assert error == "invalid_token"
    assert "not an access token" in told or told == "The token is not a JWT"


def signed(headers: dict[str, Any]) -> bytes:
    """A token as its issuer would sign it, with a header that PyJWT would not write."""
    key = private_key("rsa")
    return _forged(
        {"alg": "RS256", "kid": "rsa", **headers},
        lambda data: key.sign(data, padding.PKCS1v15(), hashes.SHA256()),
    ).removeprefix(b"Bearer ")


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": ""},
        {"sub": "x" * 1025},
        {"sub": "a\ud800"},
        {"client_id": "\udfff"},
        {"client_id": None, "azp": "\ud800"},
        {"client_id": "x" * 1025},
        {"client_id": {"a": 1}},
    ],
    ids=str,
)
async def test_a_caller_without_a_usable_name_is_refused(
    by: JwtVerifier, claims: dict[str, Any]
) -> None:
    assert await is_invalid(by, token(**claims))


async def test_half_a_surrogate_pair_is_no_scope_and_no_key(by: JwtVerifier) -> None:
    assert (await principal(by, token(scope="read \ud800"))).scopes == {"read"}
    odd = token(headers={"kid": "\ud800"})
    assert await is_invalid(by, odd)


async def test_an_audience_among_several_will_do(by: JwtVerifier) -> None:
    assert (
        await principal(by, token(aud=["https://other.example.com", AUDIENCE]))
    ).subject == "ann"


async def test_clocks_may_differ_by_the_leeway(by: JwtVerifier) -> None:
    now = int(time.time())
    assert (await principal(by, token(exp=now - 20, nbf=now + 20))).subject == "ann"


def _forged(header: dict[str, Any], sign: Callable[[bytes], bytes]) -> bytes:
    """A token put together by hand, as no library would."""
    claims = jwt.decode(token("rsa"), options={"verify_signature": False})
    parts = [json.dumps(part).encode() for part in (header, claims)]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    return b"Bearer " + signed + b"." + base64.urlsafe_b64encode(sign(signed)).rstrip(b"=")


def _secrets(kid: str) -> list[bytes]:
    """Everything public that an attacker could use as a shared secret."""
    public = private_key(kid).public_key()
    formats = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = public.public_bytes(serialization.Encoding.PEM, formats)
    der = public.public_bytes(serialization.Encoding.DER, formats)
    return [pem, pem.strip(), der, json.dumps(public_jwk(kid)).encode(), b"", DOCUMENT]


@pytest.mark.parametrize("kid", ["rsa", "ec"])
async def test_a_public_key_is_no_shared_secret(by: JwtVerifier, kid: str) -> None:
    for secret in _secrets(kid):
        for alg, name in (
            ("HS256", "sha256"),
            ("HS512", "sha512"),
            ("RS256", "sha256"),
            ("ES256", "sha256"),
        ):
            forged = _forged({"alg": alg, "kid": kid}, lambda text: hmac.digest(secret, text, name))  # noqa: B023
            assert (await refusal(by, forged))[0] == "invalid_token"


@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "nOnE", "", None, "HS256", "RS512", "RS1", 7, ["RS256"], {}]
)
async def test_an_algorithm_that_is_not_ours_is_refused(by: JwtVerifier, alg: Any) -> None:
    for signature in (b"", b"x", hashlib.sha256(b"").digest()):
        forged = _forged({"alg": alg, "kid": "rsa", "typ": "JWT"}, lambda text: signature)  # noqa: B023
        assert (await refusal(by, forged))[0] == "invalid_token"


async def test_an_algorithm_that_is_not_configured_is_refused_though_the_key_would_do() -> None:
    async with service(answer(DOCUMENT)) as keys:
        by = verifier(f"{keys.url}/jwks", algorithms=["ES256"])
        assert (await principal(by, token("ec"))).subject == "ann"
        assert await is_invalid(by, token("rsa"))


async def test_a_key_serves_the_algorithm_it_is_for(by: JwtVerifier) -> None:
    crossed = jwt.encode({"sub": "ann"}, private_key("ec"), "ES256", headers={"kid": "rsa"})
    assert await is_invalid(by, crossed)


@pytest.mark.parametrize(
    "kid", [None, 7, [], {}, "", "stranger", "../../etc/passwd", "rsa\x00", "x" * 10_000], ids=str
)
async def test_a_key_that_the_issuer_does_not_have_is_refused(by: JwtVerifier, kid: Any) -> None:
    forged = _forged({"alg": "RS256", "kid": kid}, lambda text: b"x")
    assert (await refusal(by, forged))[0] == "invalid_token"


@pytest.mark.parametrize("member", ["jwk", "jku", "x5u", "x5c"])
async def test_a_token_does_not_bring_its_own_key(by: JwtVerifier, member: str) -> None:
    own = {"jwk": public_jwk("ec-stranger"), "x5c": ["MIIB"]}.get(member, "http://127.0.0.1:9/keys")
    brought = token("ec", private_key("ec-stranger"), {member: own})
    assert await is_invalid(by, brought)


async def test_a_critical_extension_that_we_do_not_know_is_refused(by: JwtVerifier) -> None:
    forged = _forged({"alg": "RS256", "kid": "rsa", "crit": ["exp2"], "exp2": 1}, lambda text: b"x")
    assert (await refusal(by, forged))[0] == "invalid_token"


async def test_every_changed_character_of_a_token_is_refused(by: JwtVerifier) -> None:
    text = token("ec")
    for place in sampled(range(len(text))):
        changed = text[:place] + ("A" if text[place] != "A" else "Q") + text[place + 1 :]
        assert await is_invalid(by, changed)


DEEP = base64.urlsafe_b64encode(b"[" * 30_000).decode()


@pytest.mark.parametrize(
    "text",
    [
        "x",
        ".",
        "..",
        "...",
        "a.b.c",
        "e30.e30.",
        "e30.e30.e30.e30",
        f"{DEEP}.e30.x",
        "ü.ü.ü",
        "W10.e30.x",
        "/w.e30.x",
    ],
    ids=lambda text: text[:20].encode("ascii", "backslashreplace").decode(),
)
async def test_what_is_no_jwt_is_refused(by: JwtVerifier, text: str) -> None:
    assert await is_invalid(by, text)


@given(st.binary(max_size=200))
async def test_any_bytes_in_the_header_are_refused(given: bytes) -> None:
    with pytest.raises(Unauthenticated):
        await verifier("http://127.0.0.1:9/never-asked").principal(given)


async def test_a_longer_token_is_refused_before_it_is_decoded(by: JwtVerifier) -> None:
    whole = token(pad="x" * 20_000).encode()
    assert len(whole) < MAX_TOKEN_BYTES
    assert (await by.principal(b"Bearer " + whole)).subject == "ann"
    too_long = token(pad="x" * MAX_TOKEN_BYTES).encode()
    for sent in (too_long, b"A" * 60_000):
        with pytest.raises(Unauthenticated, match=f"longer than {MAX_TOKEN_BYTES}"):
            await by.principal(b"Bearer " + sent)


async def test_nothing_of_the_token_is_told(by: JwtVerifier) -> None:
    text = token(sub="correct-horse", iss="https://elsewhere.example")
    _, told = await refusal(by, b"Bearer " + text.encode())
    assert not [part for part in ("correct", "elsewhere", text[:10]) if part in told]


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "read write"}, {"read", "write"}),
        ({"scope": "  read   read "}, {"read"}),
        ({"scp": "read write"}, {"read", "write"}),
        ({"scp": ["read", "write"]}, {"read", "write"}),
        ({"scp": ["read", 7, None, ["x"]]}, {"read"}),
        ({"scope": ["read"]}, {"read"}),
        ({"scope": "read", "scp": ["write"]}, {"read"}),
        ({"scope": "", "scp": ["write"]}, {"write"}),
        ({"scope": "READ"}, {"READ"}),
        ({"scope": 7}, set()),
        ({"scope": {"read": True}}, set()),
        ({"scope": True}, set()),
        ({}, set()),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
async def test_scopes_are_read_as_issuers_write_them(
    by: JwtVerifier, claims: dict[str, Any], scopes: set[str]
) -> None:
    assert (await principal(by, token(**claims))).scopes == scopes


async def test_a_scope_that_is_null_grants_nothing(by: JwtVerifier) -> None:
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ann",
        "exp": int(time.time()) + 60,
        "scope": None,
    }
    assert (
        await principal(by, jwt.encode(claims, private_key("ec"), "ES256", headers={"kid": "ec"}))
    ).scopes == set()


@pytest.mark.parametrize(
    ("claims", "client_id"),
    [
        ({"client_id": "one"}, "one"),
        ({"client_id": None, "azp": "two"}, "two"),
        ({"client_id": "one", "azp": "two"}, "one"),
        ({"client_id": None}, ""),
    ],
    ids=["client_id", "azp", "both", "neither"],
)
async def test_the_client_is_client_id_or_azp(
    by: JwtVerifier, claims: dict[str, Any], client_id: str
) -> None:
    assert (await principal(by, token(**claims))).client_id == client_id


async def test_a_token_without_the_scopes_that_every_call_needs_is_not_enough() -> None:
    async with service(answer(DOCUMENT)) as keys:
        by = verifier(f"{keys.url}/jwks", scopes=["mcp", "read"])
        assert (await principal(by, token(scope="read mcp more"))).subject == "ann"
        for scope in ("", "mcp", "read", "MCP read"):
            with pytest.raises(InsufficientScope) as caught:
                await principal(by, token(scope=scope))
            assert (caught.value.status, caught.value.error) == (403, "insufficient_scope")
            assert caught.value.scopes == ["mcp", "read"]


@pytest.mark.parametrize("given", [None, b"", b"Bearer x", b"\xff"])
async def test_without_authentication_everybody_is_the_one_local_subject(
    given: bytes | None,
) -> None:
    assert await LocalVerifier().principal(given) == LOCAL == Principal("local", "local")


@given(st.text(), st.text(), st.text())
def test_no_owner_is_an_option_of_the_command_line(subject: str, client_id: str, view: str) -> None:
    assert task_owner(Principal(ISSUER, subject, client_id), view)[0].isalpha()
