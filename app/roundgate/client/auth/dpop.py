"""Proofs of possession (DPoP, RFC 9449): a token that is of no use without a key that
never leaves this process."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from functools import cached_property
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from roundgate.client.transport import Url
from roundgate.clock import Clock

ALGORITHM: Final = "ES256"


class ProofKey:
    """A key pair, and the nonce that each server last asked for."""

    def __init__(self, clock: Clock, pem: str | None = None) -> None:
        if pem is None:
            self._key = ec.generate_private_key(ec.SECP256R1())
        else:
            loaded = serialization.load_pem_private_key(pem.encode(), None)
            if not isinstance(loaded, ec.EllipticCurvePrivateKey):
                raise ValueError("the key of a DPoP token is no EC key")
            self._key = loaded
        self._clock = clock
        self.nonces: dict[tuple[str, str, int], str] = {}

    @cached_property
    def pem(self) -> str:
        """The private key, to be kept with the token that is bound to it."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()

    def proof(self, method: str, url: Url, token: str | None = None) -> str:
        """A proof for one request."""
        claims: dict[str, Any] = {
            "jti": self._clock.new_id(),
            "htm": method,
            "htu": str(url).partition("?")[0],
            "iat": self._clock.now_ms() // 1_000,
        }
        if token is not None:
            digest = hashlib.sha256(token.encode()).digest()
            claims["ath"] = urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (nonce := self.nonces.get(url.origin)) is not None:
            claims["nonce"] = nonce
        public = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return jwt.encode(claims, self._key, ALGORITHM, headers={"typ": "dpop+jwt", "jwk": public})
