"""The parts that all kinds of authentication share: the interface, challenges, token storage, and
proofs of possession; and the simplest kind, a bearer token."""

from __future__ import annotations

import asyncio
import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct

from roundgate.client.transport import Transport, Url
from roundgate.clock import Clock
from roundgate.errors import ClientError

T = TypeVar("T")

_PARAMETER: Final = re.compile(
    r"""(?<![A-Za-z_])([A-Za-z_]++)[ \t]*+=[ \t]*+(?:"((?:[^"\\]|\\.)*+)"|([^\s,"]++))"""
)
"""The pattern of a challenge's parameter. Matching never backtracks, so it takes linear time."""


class AuthRefusal(Struct, frozen=True):
    """A request that the server refused with 401 or 403.

    `challenge` is the `WWW-Authenticate` header, `nonce` the `DPoP-Nonce` header; `attempt` counts
    from 1 for each request. `transport` is for requests to the authorization server; do not send
    secrets through it to `server`.
    """

    status: int
    challenge: str
    nonce: str | None
    attempt: int
    server: Url
    transport: Transport


class Auth(Protocol):
    """A source of credentials for one server. The client uses it only for requests to that server's
    origin."""

    async def headers(self, method: str, url: Url) -> Sequence[tuple[str, str]]:
        """Return the headers that authenticate a request; empty until credentials are available."""

    async def renew(self, refusal: AuthRefusal) -> bool:
        """Return whether to resend a refused request with new credentials. Raise
        `AuthorizationFailed` with the reason if new credentials cannot be obtained."""


class Bearer:
    """A bearer token that the caller already has. The client sends it only over https or to this
    machine, unless `allow_http` is true."""

    def __init__(self, token: str, *, allow_http: bool = False) -> None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ClientError(
                "The bearer token is empty, or contains characters that a header cannot hold"
            )
        self._token = token
        self._allow_http = allow_http

    def __repr__(self) -> str:
        return "Bearer(…)"

    async def headers(self, method: str, url: Url) -> Sequence[tuple[str, str]]:
        if not self._allow_http:
            refuse_plain(url)
        return [("Authorization", f"Bearer {self._token}")]

    async def renew(self, refusal: AuthRefusal) -> bool:
        return False


def refuse_plain(url: Url) -> None:
    """Raise `ClientError` if credentials would travel unencrypted to another machine."""
    if not url.is_confidential:
        raise ClientError(
            f"Credentials are not sent to {url.authority} over plain http: use an https:// URL"
        )


def challenge_parameters(challenge: str) -> dict[str, str]:
    """Return the parameters of a `WWW-Authenticate` header by lower-case name. For a repeated
    parameter, return the first value."""
    parameters: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(challenge[:8_192]):
        parameters.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or bare)
    return parameters


# -- storage ---------------------------------------------------------------------------------------


class TokenStorage(Protocol):
    """A storage of secret texts by key. Its methods raise `ClientError` if they fail."""

    async def load(self, key: str) -> str | None: ...
    async def save(self, key: str, secret: str) -> None: ...
    async def delete(self, key: str) -> None: ...


class InMemory:
    """A storage of tokens for the life of this process."""

    def __init__(self) -> None:
        self._secrets: dict[str, str] = {}

    async def load(self, key: str) -> str | None:
        return self._secrets.get(key)

    async def save(self, key: str, secret: str) -> None:
        self._secrets[key] = secret

    async def delete(self, key: str) -> None:
        self._secrets.pop(key, None)


class SystemKeyring:
    """A storage of tokens in the system's keyring, through the package `keyring`
    (`pip install roundgate[keyring]`)."""

    def __init__(self, service: str = "roundgate") -> None:
        try:
            import keyring
        except ImportError:
            raise ClientError(
                "The system's keyring needs the package keyring: pip install 'roundgate[keyring]'"
            ) from None
        self._keyring = keyring
        self._service = service

    @property
    def works(self) -> bool:
        """Return whether this machine has a keyring, which may be locked."""
        from keyring.backends.fail import Keyring

        return not isinstance(self._keyring.get_keyring(), Keyring)

    async def load(self, key: str) -> str | None:
        return await self._in_thread(lambda: self._keyring.get_password(self._service, key))

    async def save(self, key: str, secret: str) -> None:
        await self._in_thread(lambda: self._keyring.set_password(self._service, key, secret))

    async def delete(self, key: str) -> None:
        if await self.load(key) is not None:
            await self._in_thread(lambda: self._keyring.delete_password(self._service, key))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, because a keyring may prompt the user.

        Raises:
            ClientError: there is no keyring, or it failed. The error omits the keyring's own text,
                which may contain a secret.
        """
        if not self.works:
            raise ClientError(
                "This machine has no usable keyring: omit storage=SystemKeyring() to keep tokens in "
                "memory, or name another keyring with "
                "PYTHON_KEYRING_BACKEND"
            )
        try:
            return await asyncio.to_thread(work)
        except Exception as error:
            raise ClientError(
                f"The system's keyring failed ({type(error).__name__}): unlock it and try again"
            ) from None


# -- proofs of possession --------------------------------------------------------------------------


class ProofKey:
    """A key pair for DPoP (RFC 9449), and the latest nonce of each server. A token bound to the key
    cannot be used without it."""

    def __init__(self, clock: Clock, pem: str | None = None) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key: Any = load_pem_private_key(pem.encode(), None) if pem else None
        if key is not None and not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of a DPoP token is not an EC key")
        self._key = key or ec.generate_private_key(ec.SECP256R1())
        self._clock = clock
        self.nonces: dict[tuple[str, str, int], str] = {}

    @property
    def pem(self) -> str:
        """The private key in PEM, to store with the token that is bound to it."""
        from cryptography.hazmat.primitives import serialization

        pem: bytes = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return pem.decode()

    def proof(self, method: str, url: Url, token: str | None = None) -> str:
        """Return a DPoP proof for one request, bound to `token` unless it is `None`."""
        import jwt
        from jwt.algorithms import ECAlgorithm

        claims: dict[str, Any] = {
            "jti": self._clock.new_id(),
            "htm": method,
            "htu": str(url).partition("?")[0],
            "iat": self._clock.now_ms() // 1_000,
        }
        if token is not None:
            claims["ath"] = base64url(hashlib.sha256(token.encode()).digest())
        if (nonce := self.nonces.get(url.origin)) is not None:
            claims["nonce"] = nonce
        public = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return jwt.encode(claims, self._key, "ES256", headers={"typ": "dpop+jwt", "jwk": public})


def base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
