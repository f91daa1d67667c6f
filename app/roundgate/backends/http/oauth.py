"""Access tokens of the gateway itself: OAuth 2.0 client credentials (RFC 6749 section 4.4).

    call ─▶ token() ─▶ one that holds: at once
                   └─▶ none: one request, for which everybody else waits
    401  ─▶ token(instead_of=that one) ─▶ another, unless somebody has got one meanwhile

A token is renewed before it expires; one that still holds serves while there is no other to be had. Tokens are kept in
this process only, and are no caller's: the caller's own is never passed on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from roundgate import json
from roundgate.backends.http.config import ClientCredentials
from roundgate.clock import Clock
from roundgate.errors import BackendError, ParseError
from roundgate.tls import trust_store

if TYPE_CHECKING:
    import httpx

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 64_000
MAX_TOKEN: Final = 16_000
USUAL_LIFE_S: Final = 300.0
"""Where the server does not say for how long a token holds."""
EARLY_S: Final = 60.0
"""By how much it is renewed early, or by a quarter of its life if that is less."""
PAUSE_MS: Final = 1_000.0
"""For how long nobody asks again after a failure."""
_KEPT: Final = 4

log = logging.getLogger("roundgate.backends")


class TokenSource:
    """The tokens of one client at one authorization server."""

    def __init__(self, config: ClientCredentials, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or Clock()
        self._token: str | None = None
        self._renew_ms = 0.0
        self._expires_ms = 0.0
        self._failed: tuple[float, str] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._recent: deque[str] = deque(maxlen=_KEPT)

    @property
    def recent(self) -> tuple[str, ...]:
        """The last few: what must not be read in an answer."""
        return tuple(self._recent)

    async def token(self, *, instead_of: str | None = None) -> str:
        """One that holds, and is not the one that a service did not take.

        Raises:
            BackendError: there is none to be had; says why, without secrets.
        """
        if (
            instead_of is None
            and self._token is not None
            and self._clock.monotonic_ms() < self._renew_ms
        ):
            return self._token
        if instead_of is None and self._holds() and self._one_at_a_time.locked():
            return self._token or ""  # somebody renews it already
        async with self._one_at_a_time:
            now_ms = self._clock.monotonic_ms()
            if self._token is not None and self._token != instead_of and now_ms < self._renew_ms:
                return self._token  # somebody has got one meanwhile
            try:
                await self._renew(now_ms)
            except BackendError as error:
                if not self._holds() or self._token == instead_of:
                    raise
                log.warning(
                    "a token could not be renewed; the old one still holds", extra=_fields(error)
                )
            return self._token or ""

    def _holds(self) -> bool:
        return self._token is not None and self._clock.monotonic_ms() < self._expires_ms

    async def _renew(self, now_ms: float) -> None:
        if self._failed is not None and now_ms - self._failed[0] < PAUSE_MS:
            message = self._failed[1]
            raise BackendError(message)
        try:
            token, life_s = await self._asked()
        except BackendError as error:
            self._failed = (self._clock.monotonic_ms(), str(error))
            raise
        self._failed = None
        self._token = token
        self._recent.append(token)
        self._expires_ms = now_ms + life_s * 1000
        self._renew_ms = self._expires_ms - min(EARLY_S, life_s / 4) * 1000

    async def _asked(self) -> tuple[str, float]:
        """A new token, and for how many seconds it holds."""
        import httpx

        server = f"The authorization server {self._config.token_url.partition('?')[0]}"
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, body = await self._post()
        except (TimeoutError, httpx.HTTPError) as error:
            raise BackendError(f"{server} could not be reached ({type(error).__name__})") from None
        if body is None:
            raise BackendError(f"{server} answered more than {MAX_BYTES} bytes")
        try:
            said = json.decode(body)
        except ParseError:
            said = None
        if status != 200:
            raise BackendError(f"{server} gave the gateway no token: {status}{_reason(said)}")
        return _checked(said, server)

    async def _post(self) -> tuple[int, bytes | None]:
        """Status and body of the answer; `None` for a body that is too long."""
        import httpx

        client = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, verify=trust_store())
        async with (
            client,
            client.stream("POST", self._config.token_url, **self._request()) as response,
        ):
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > MAX_BYTES:
                    return response.status_code, None
            return response.status_code, bytes(body)

    def _request(self) -> dict[str, Any]:
        config, secret = self._config, self._config.client_secret.get_secret_value()
        form = {"grant_type": "client_credentials", **config.token_parameters}
        if config.token_scopes:
            form["scope"] = " ".join(config.token_scopes)
        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/x-www-form-urlencoded",
        }
        auth: httpx.BasicAuth | None = None
        if config.client_auth == "post":
            form |= {"client_id": config.client_credentials, "client_secret": secret}
        else:
            from httpx import BasicAuth

            # RFC 6749 section 2.3.1 has both encoded before they are put together
            auth = BasicAuth(quote(config.client_credentials, safe=""), quote(secret, safe=""))
        return {"content": urlencode(form).encode(), "headers": headers, "auth": auth}


def _checked(said: Any, server: str) -> tuple[str, float]:
    match said:
        case {"access_token": str(token), "token_type": str(kind)} if kind.lower() == "bearer":
            life_s = said.get("expires_in", USUAL_LIFE_S)
        case _:
            raise BackendError(f"{server} did not answer with a bearer token")
    if not token or len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable():
        raise BackendError(f"{server} gave a token that cannot be sent")
    if isinstance(life_s, str) and life_s.isdecimal():
        life_s = int(life_s)
    if isinstance(life_s, bool) or not isinstance(life_s, (int, float)) or life_s <= 0:
        life_s = USUAL_LIFE_S
    return token, min(float(life_s), 86_400.0)


def _reason(said: Any) -> str:
    """`error` of RFC 6749 section 5.2, which is one of a few words; no description, which may echo anything."""
    error = said.get("error") if isinstance(said, dict) else None
    known = (
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "invalid_scope",
    )
    return f" {error}" if error in known else ""


def _fields(error: BackendError) -> dict[str, Any]:
    return {"fields": {"error": str(error)}}
