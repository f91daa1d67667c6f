"""An authorization server as a resource server sees it: key pairs, tokens, and a JWKS
document on a real socket."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from roundgate.clock import Clock
from roundgate.config import ConfigFile
from roundgate.settings.process import Settings
from tests.support.asgi import STATE_KEY, Client, built, client, config_file
from tests.support.services import Service, answer, service

ISSUER = "https://login.example.com/"
PUBLIC_URL = "https://mcp.example.com"
AUDIENCE = f"{PUBLIC_URL}/mcp"


@cache
def private_key(kid: str) -> Any:
    """The private key with this id, made once; the beginning of the id says of which kind."""
    kind = kid.partition("-")[0]
    if kind == "rsa":
        return rsa.generate_private_key(65537, 2048)
    return (
        ed25519.Ed25519PrivateKey.generate()
        if kind == "ed"
        else ec.generate_private_key(ec.SECP256R1())
    )


ALGORITHMS = {"rsa": "RS256", "ec": "ES256", "ed": "EdDSA"}
_WRITERS: dict[str, Any] = {"rsa": RSAAlgorithm, "ec": ECAlgorithm, "ed": OKPAlgorithm}


def public_jwk(kid: str, **members: Any) -> dict[str, Any]:
    """The public key with this id as a JWK."""
    kind = kid.partition("-")[0]
    written: dict[str, Any] = json.loads(_WRITERS[kind].to_jwk(private_key(kid).public_key()))
    return {**written, "kid": kid, **members}


def jwks(*kids: str | dict[str, Any]) -> bytes:
    """A JWKS document of these keys."""
    return json.dumps(
        {"keys": [public_jwk(kid) if isinstance(kid, str) else kid for kid in kids]}
    ).encode()


def token(
    kid: str = "ec", key: Any = None, headers: dict[str, Any] | None = None, **claims: Any
) -> str:
    """A token that holds unless something is changed; a claim that is `None` is left out."""
    now = int(time.time())
    said = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ann",
        "iat": now,
        "exp": now + 300,
        "client_id": "cli",
        **claims,
    }
    said = {name: value for name, value in said.items() if value is not None}
    algorithm = ALGORITHMS[kid.partition("-")[0]]
    return jwt.encode(
        said, key or private_key(kid), algorithm, headers={"kid": kid, **(headers or {})}
    )


def bearer(text: str) -> dict[str, str | None]:
    """The header that carries a token."""
    return {"authorization": f"Bearer {text}"}


def guarded(jwks_url: str, *functions: Callable[..., Any], **sections: Any) -> ConfigFile:
    """A configuration with these functions, for callers with tokens of the issuer."""
    auth = {"issuer": ISSUER, "jwks_url": jwks_url, **sections.pop("auth", {})}
    return config_file(*functions, auth=auth, **sections)


@asynccontextmanager
async def gateway_for(
    *functions: Callable[..., Any],
    documents: tuple[bytes, ...] = (),
    using: Settings | None = None,
    clock: Clock | None = None,
    **sections: Any,
) -> AsyncIterator[tuple[Client, Service]]:
    """A client of a gateway that asks for tokens, and the server that has the issuer's keys."""
    async with service(*(documents or (answer(jwks("ec")),))) as keys:
        file = guarded(f"{keys.url}/jwks", *functions, **sections)
        app = built(
            file, using or Settings(public_url=PUBLIC_URL, state_keys=STATE_KEY), clock=clock
        )
        async with client(app) as mcp:
            yield mcp, keys
