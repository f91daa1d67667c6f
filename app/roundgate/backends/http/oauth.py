"""Access tokens of the gateway itself: OAuth 2.0 client credentials (RFC 6749 section 4.4).

    call ─▶ token() ─▶ one that holds: at once
                   └─▶ none: one request, for which everybody else waits
    401  ─▶ token(instead_of=that one) ─▶ another, unless somebody has got one meanwhile

A token is renewed before it expires; one that still holds serves while there is no other to be had.
Tokens are kept in this process only, and are no caller's: the caller's own is never passed on.
`roundgate.backends.http.token_request` asks for one; here is when.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import Final

from roundgate.aio import Flight
from roundgate.backends.http.certificates import Certificates
from roundgate.backends.http.credential_config import ClientCredentials
from roundgate.backends.http.token_request import TokenRequest
from roundgate.backends.secret_reading import Secrets
from roundgate.clock import Clock
from roundgate.errors import BackendError, TokenRefused

EARLY_S: Final = 60.0
"""By how much a token is renewed early, or by a quarter of its life if that is less."""
PAUSE_MS: Final = 1_000.0
"""For how long nobody asks again after a failure, at first."""
PAUSE_AT_MOST_MS: Final = 60_000.0
"""To where that doubles."""
REPLACED_MS: Final = 10_000.0
"""Between two tokens that are asked for because a service has not taken one."""
_KEPT: Final = 4

log = logging.getLogger("roundgate.backends")


class TokenSource:
    """The tokens of one client at one authorization server."""

    def __init__(
        self,
        config: ClientCredentials,
        secrets: Secrets,
        certificates: Certificates,
        clock: Clock | None = None,
    ) -> None:
        self.certificates = certificates
        """Of connections to the server."""
        self._request = TokenRequest(config, secrets, certificates)
        self._clock = clock or Clock()
        self._token: str | None = None
        self._renew_ms = 0.0
        self._expires_ms = 0.0
        self._failed: BackendError | None = None
        self._pause_ms = 0.0
        self._again_ms = 0.0
        self._replaced_ms = -math.inf
        self._renewal: Flight[None] = Flight()
        self._recent: deque[str] = deque(maxlen=_KEPT)

    @property
    def recent(self) -> tuple[str, ...]:
        """The last few: what must not be read in an answer."""
        return tuple(self._recent)

    def has_other_than(self, refused: str) -> bool:
        """Whether there is another token, or one may be asked for, because a
        service has not taken this one.

        A service that takes none has no more of them asked for than one in `REPLACED_MS`.
        """
        if self._token != refused or self._renewal.is_under_way:
            return True
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._replaced_ms < REPLACED_MS:
            return False
        self._replaced_ms = now_ms
        return True

    async def token(self, *, instead_of: str | None = None) -> str:
        """One that holds, and is not the one that a service did not take.

        Raises:
            BackendError: there is none to be had; says why, without secrets.
        """
        if self._is_good(instead_of):
            return self._token or ""
        if self._holds(instead_of) and self._renewal.is_under_way:
            return self._token or ""  # somebody renews it already
        try:
            await self._renewal.join(self._renew)
        except BackendError as error:
            if not self._holds(instead_of):
                raise
            log.warning(
                "a token could not be renewed; the old one still holds",
                extra={"fields": {"error": str(error)}},
            )
        return self._token or ""

    def _is_good(self, refused: str | None) -> bool:
        return self._has_other_than(refused) and self._clock.monotonic_ms() < self._renew_ms

    def _holds(self, refused: str | None) -> bool:
        return self._has_other_than(refused) and self._clock.monotonic_ms() < self._expires_ms

    def _has_other_than(self, refused: str | None) -> bool:
        return self._token is not None and self._token != refused

    async def _renew(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._failed is not None and now_ms < self._again_ms:
            message = str(self._failed)
            raise BackendError(message)
        try:
            token, life_s = await self._request.send()
        except BackendError as error:
            self._note_failure(error)
            raise
        self._failed, self._pause_ms = None, 0.0
        self._token = token
        self._recent.append(token)
        self._expires_ms = now_ms + life_s * 1000
        self._renew_ms = self._expires_ms - min(EARLY_S, life_s / 4) * 1000

    def _note_failure(self, error: BackendError) -> None:
        """The pause doubles from failure to failure; a server that says how
        long to wait is heeded."""
        self._pause_ms = min(max(PAUSE_MS, 2 * self._pause_ms), PAUSE_AT_MOST_MS)
        asked_ms = error.retry_s * 1000 if isinstance(error, TokenRefused) else 0.0
        self._failed = error
        self._again_ms = self._clock.monotonic_ms() + min(
            max(self._pause_ms, asked_ms), PAUSE_AT_MOST_MS
        )
