"""OAuth client authentication at a token endpoint, for the client library and HTTP back ends.

This module does no I/O, stores nothing and logs nothing.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final
from urllib.parse import quote

ASSERTION_LASTS_S: Final = 120
_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_OF_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


def basic_authorization(client_id: str, secret: str) -> str:
    """Return the value of `Authorization` for `client_secret_basic`. Both parts are form-encoded
    before they are joined (RFC 6749 section 2.3.1)."""
    pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
    return f"Basic {b64encode(pair.encode()).decode()}"


def signed_assertion(
    client_id: str,
    audience: str,
    private_key: str,
    *,
    issued_s: int,
    assertion_id: str,
    algorithm: str | None = None,
    key_id: str | None = None,
) -> dict[str, str]:
    """Return the form members of `private_key_jwt` (RFC 7523 section 2.2).

    Args:
        client_id: the issuer and subject of the assertion.
        audience: the authorization server.
        private_key: unencrypted PEM; `\\n` may stand for line ends, as in environment variables.
        issued_s: seconds since the epoch.
        assertion_id: a unique id, by which the server can refuse a replayed assertion.
        algorithm: the JWS algorithm; `None` chooses it by the key.
        key_id: `kid` of the header.

    Raises:
        ValueError: the key is not an unencrypted PEM key for the algorithm.
    """
    import jwt
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "iat": issued_s,
        "exp": issued_s + ASSERTION_LASTS_S,
        "jti": assertion_id,
    }
    headers = {} if key_id is None else {"kid": key_id}
    try:
        key: Any = load_pem_private_key(private_key.replace("\\n", "\n").encode(), password=None)
        assertion = jwt.encode(claims, key, algorithm or _choose_algorithm(key), headers=headers)
    except (ValueError, TypeError, jwt.PyJWTError):
        expected = algorithm or "RS256, ES256, ES384, ES512 or EdDSA"
        raise ValueError(f"must be an unencrypted PEM key for {expected}") from None
    return {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": assertion}


def _choose_algorithm(key: Any) -> str:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    match key:
        case rsa.RSAPrivateKey():
            return "RS256"
        case ec.EllipticCurvePrivateKey() if key.curve.name in _OF_CURVES:
            return _OF_CURVES[key.curve.name]
        case ed25519.Ed25519PrivateKey():
            return "EdDSA"
    raise ValueError("a key of this kind cannot sign an assertion")
