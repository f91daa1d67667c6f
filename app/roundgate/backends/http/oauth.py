"""Access tokens of the gateway itself: OAuth 2.0 client credentials (RFC 6749 section 4.4).

    call ─▶ token() ─▶ a valid token: returned immediately
                   └─▶ no valid token: one request, for which all calls wait
    401  ─▶ token(instead_of=refused token) ─▶ a new token, requested unless another call has done so

A token is renewed before it expires. If the renewal fails, the token is used until it expires.
Tokens stay in this process. The client identifies itself with

    basic            its secret in the header           RFC 6749 section 2.3.1
    post             its secret in the form             RFC 6749 section 2.3.1
    private_key_jwt  an assertion signed with its key   RFC 7523 section 2.2
    tls              its certificate                    RFC 8705 section 2.1

Error messages contain the `error` code of RFC 6749 section 5.2 if it is known, but never a
description, which may contain secrets.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import deque
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlencode

from roundgate import json
from roundgate.aio import Flight
from roundgate.backends.http.credential_config import ClientCredential
from roundgate.backends.http.tls import Certificates
from roundgate.backends.secret_reading import SecretTexts
from roundgate.clock import Clock
from roundgate.errors import BackendError, ParseError, TokenRefused
from roundgate.net.oauth import basic_authorization, signed_assertion

EARLY_S: Final = 60.0
"""The seconds before its expiry at which a token is renewed, or a quarter of its life if that is
shorter."""
PAUSE_MS: Final = 1_000.0
"""The pause after the first failure, in milliseconds. It doubles with each further failure."""
PAUSE_AT_MOST_MS: Final = 60_000.0
REPLACED_MS: Final = 10_000.0
"""The minimum time between two token requests that refused tokens cause, in milliseconds."""
_KEPT: Final = 4

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 64_000
MAX_TOKEN: Final = 16_000
_USUAL_LIFE_S: Final = 300.0
"""The assumed life of a token, in seconds, if the server does not state it."""

REMEDIES: Final = {
    "invalid_client": "check client_credentials, its secret, key or certificate, and client_auth",
    "unauthorized_client": "allow the client the grant client_credentials at the server",
    "invalid_scope": "check token_scopes",
    "invalid_target": "check resource and audience",
    "invalid_request": "check token_parameters, audience and resource",
    "invalid_grant": "check the client's permissions at the server",
    "unsupported_grant_type": "enable client credentials at the server",
    "temporarily_unavailable": "the gateway tries again after a pause",
    "server_error": "the gateway tries again after a pause",
}
"""Remedies by `error` code (RFC 6749 section 5.2, RFC 8707 section 2)."""


log = logging.getLogger("roundgate.backends")


class TokenSource:
    """The tokens of one client at one authorization server."""

    def __init__(
        self,
        config: ClientCredential,
        secrets: SecretTexts,
        certificates: Certificates,
        clock: Clock | None = None,
    ) -> None:
        self.certificates = certificates
        """The certificates for connections to the server."""
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
        """The last few tokens, which must be redacted."""
        return tuple(self._recent)

    def has_other_than(self, refused: str) -> bool:
        """Return whether a token other than `refused` exists or may be requested. Allow one
        replacement of a refused token per `REPLACED_MS`, because some services refuse every
        token."""
        if self._token != refused or self._renewal.is_under_way:
            return True
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._replaced_ms < REPLACED_MS:
            return False
        self._replaced_ms = now_ms
        return True

    async def token(self, *, instead_of: str | None = None) -> str:
        """Return a valid token other than `instead_of`.

        Raises:
            BackendError: no such token is available.
        """
        if self._is_good(instead_of):
            return self._token or ""
        if self._holds(instead_of) and self._renewal.is_under_way:
            return self._token or ""  # another call renews it
        try:
            await self._renewal.join(self._renew)
        except BackendError as error:
            if not self._holds(instead_of):
                raise
            log.warning(
                "a token could not be renewed; the old one is still valid",
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
        self._pause_ms = min(max(PAUSE_MS, 2 * self._pause_ms), PAUSE_AT_MOST_MS)
        asked_ms = error.retry_s * 1000 if isinstance(error, TokenRefused) else 0.0
        self._failed = error
        self._again_ms = self._clock.monotonic_ms() + min(
            max(self._pause_ms, asked_ms), PAUSE_AT_MOST_MS
        )


class TokenRequest:
    """The token requests of one client to one authorization server."""

    def __init__(
        self, config: ClientCredential, secrets: SecretTexts, certificates: Certificates
    ) -> None:
        self._config = config
        self._secrets = secrets
        self._certificates = certificates
        self._server = f"The authorization server {config.token_url.partition('?')[0]}"

    async def send(self) -> tuple[str, float]:
        """Return a new token and its life in seconds. If the server refuses the client and its
        secret was rotated, try once more.

        Raises:
            TokenRefused: the server refused the request.
            BackendError: the server is unreachable, or its answer, a secret or a key is unusable.
        """
        secret = self._config.client_secret or self._config.private_key
        text = "" if secret is None else await self._secrets.text(secret)
        try:
            return await self._request(text)
        except TokenRefused as refused:
            if secret is None or refused.error not in ("invalid_client", "unauthorized_client"):
                raise
            rotated = await self._secrets.other_than(secret, text)
            if rotated is None:
                raise
            return await self._request(rotated)

    async def _request(self, secret: str) -> tuple[str, float]:
        import httpx

        client_id = await self._secrets.text(self._config.client_credentials)
        form, authorization = self._form(client_id, secret)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, body, retry = await self._post(form, authorization)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise BackendError(
                f"{self._server} could not be reached ({type(error).__name__})"
            ) from None
        if body is None:
            raise BackendError(f"{self._server} answered more than {MAX_BYTES} bytes")
        try:
            answer = json.decode(body)
        except ParseError:
            answer = None
        if status != 200:
            raise _refused(self._server, status, answer, retry)
        return _token_in(answer, self._server)

    async def _post(
        self, form: list[tuple[str, str]], authorization: dict[str, str]
    ) -> tuple[int, bytes | None, str]:
        """Return status, body and `Retry-After` of the answer. The body is `None` if it exceeds
        `MAX_BYTES`."""
        from roundgate.net.http import make_client

        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/x-www-form-urlencoded",
            **authorization,
        }
        client = make_client(timeout_s=TIMEOUT_S, tls=self._certificates.context)
        content = urlencode(form).encode()
        sending = client.stream("POST", self._config.token_url, content=content, headers=headers)
        async with client, sending as response:
            retry = response.headers.get("retry-after", "")
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > MAX_BYTES:
                    return response.status_code, None, retry
            return response.status_code, bytes(body), retry

    def _form(self, client_id: str, secret: str) -> tuple[list[tuple[str, str]], dict[str, str]]:
        """Return the members of the form and the headers that identify the client."""
        config = self._config
        form = [("grant_type", "client_credentials"), *config.token_parameters.items()]
        if config.token_scopes:
            form.append(("scope", " ".join(config.token_scopes)))
        if config.audience is not None:
            form.append(("audience", config.audience))
        form += [("resource", resource) for resource in config.resources]
        match config.way:
            case "basic":
                return form, {"authorization": basic_authorization(client_id, secret)}
            case "post":
                own = [("client_id", client_id), ("client_secret", secret)]
            case "private_key_jwt":
                own = [("client_id", client_id), *self._assertion(client_id, secret)]
            case "tls":
                own = [("client_id", client_id)]
        return [*form, *own], {}

    def _assertion(self, client_id: str, private_key: str) -> Iterable[tuple[str, str]]:
        config, clock = self._config, Clock()
        try:
            form = signed_assertion(
                client_id,
                config.assertion_audience or config.token_url,
                private_key,
                issued_s=clock.now_ms() // 1_000,
                assertion_id=clock.new_id(),
                algorithm=config.private_key_algorithm,
                key_id=config.private_key_id,
            )
        except ValueError as error:
            raise BackendError(f"The gateway's private_key {error}") from None
        return form.items()


def _refused(server: str, status: int, answer: Any, retry: str) -> TokenRefused:
    error = answer.get("error") if isinstance(answer, dict) else None
    code = error if isinstance(error, str) and error in REMEDIES else None
    retry_s = float(retry) if retry.isdecimal() and len(retry) < 6 else 0.0
    reason = "" if code is None else f" {code}; {REMEDIES[code]}"
    return TokenRefused(f"{server} gave the gateway no token: {status}{reason}", code, retry_s)


def _token_in(answer: Any, server: str) -> tuple[str, float]:
    match answer:
        case {"access_token": str(token), "token_type": str(kind)} if kind.lower() == "bearer":
            life_s = answer.get("expires_in", _USUAL_LIFE_S)
        case _:
            raise BackendError(f"{server} did not answer with a bearer token")
    if not token or len(token) > MAX_TOKEN or not re.fullmatch(r"[!-~]([ -~]*[!-~])?", token):
        raise BackendError(f"{server} gave a token that cannot be sent")
    if isinstance(life_s, str) and life_s.isdecimal():
        life_s = int(life_s[:9])
    if isinstance(life_s, bool) or not isinstance(life_s, (int, float)) or life_s <= 0:
        life_s = _USUAL_LIFE_S
    return token, float(min(life_s, 86_400))
