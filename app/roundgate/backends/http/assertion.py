"""What a client signs with its private key instead of sending a secret (RFC 7523
section 2.2, `private_key_jwt`)."""

from __future__ import annotations

from typing import Any, Final

from roundgate.backends.http.credential_config import ClientCredentials
from roundgate.clock import Clock
from roundgate.errors import BackendError

LASTS_S: Final = 120
ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_OF_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


def signed_assertion(
    config: ClientCredentials, client_id: str, private_key: str, clock: Clock | None = None
) -> list[tuple[str, str]]:
    """What goes into the form. Each assertion has an id of its own, so that a server can
    refuse one that comes twice.

    Raises:
        BackendError: the private key cannot be used.
    """
    import jwt

    clock = clock or Clock()
    now = clock.now_ms() // 1_000
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": config.assertion_audience or config.token_url,
        "iat": now,
        "exp": now + LASTS_S,
        "jti": clock.new_id(),
    }
    headers = {} if config.private_key_id is None else {"kid": config.private_key_id}
    try:
        key = _loaded(private_key)
        algorithm = config.private_key_algorithm or _algorithm_of(key)
        assertion = jwt.encode(claims, key, algorithm, headers=headers)
    except (ValueError, TypeError, jwt.PyJWTError):
        wanted = config.private_key_algorithm or "RS256, ES256, ES384, ES512 or EdDSA"
        raise BackendError(
            f"The gateway's private_key is no PEM key for {wanted} without a password"
        ) from None
    return [("client_assertion_type", ASSERTION_TYPE), ("client_assertion", assertion)]


def _loaded(pem: str) -> Any:
    """A private key; in an environment variable its lines are often separated by `\\n`."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(pem.replace("\\n", "\n").encode(), password=None)


def _algorithm_of(key: Any) -> str:
    """The usual one for a key.

    Raises:
        ValueError: there is none.
    """
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    match key:
        case rsa.RSAPrivateKey():
            return "RS256"
        case ec.EllipticCurvePrivateKey() if key.curve.name in _OF_CURVES:
            return _OF_CURVES[key.curve.name]
        case ed25519.Ed25519PrivateKey():
            return "EdDSA"
    raise ValueError("a key of a kind that signs no assertion")
