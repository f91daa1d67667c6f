"""One request for an access token: how the client authenticates itself, and what the answer means.

    basic            its secret in the header           RFC 6749 section 2.3.1
    post             its secret in the form             RFC 6749 section 2.3.1
    private_key_jwt  an assertion signed with its key   RFC 7523 section 2.2
    tls              its certificate                    RFC 8705 section 2.1

What the server says is told to the person who configures it: `error` of RFC 6749 section 5.2, which
is one of a few words, never a description, which may echo anything.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from roundgate import json
from roundgate.backends.http.assertion import signed_assertion
from roundgate.backends.http.certificates import Certificates
from roundgate.backends.http.credential_config import ClientCredentials
from roundgate.backends.secret_reading import Secrets
from roundgate.errors import BackendError, ParseError, TokenRefused

if TYPE_CHECKING:
    import httpx

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 64_000
MAX_TOKEN: Final = 16_000
USUAL_LIFE_S: Final = 300.0
"""Where the server does not say for how long a token holds."""

REMEDIES: Final = {
    "invalid_client": "check client_credentials, its secret, key or certificate, and client_auth",
    "unauthorized_client": "allow the client the grant client_credentials there",
    "invalid_scope": "check token_scopes",
    "invalid_target": "check resource and audience",
    "invalid_request": "check token_parameters, audience and resource",
    "invalid_grant": "check what the client may do there",
    "unsupported_grant_type": "enable client credentials there",
    "temporarily_unavailable": "it is asked again after a pause",
    "server_error": "it is asked again after a pause",
}
"""What to do about an `error` of RFC 6749 section 5.2 and RFC 8707 section 2."""


class TokenRequest:
    """Requests of one client to one authorization server."""

    def __init__(
        self, config: ClientCredentials, secrets: Secrets, certificates: Certificates
    ) -> None:
        self._config = config
        self._secrets = secrets
        self._certificates = certificates
        self._server = f"The authorization server {config.token_url.partition('?')[0]}"

    async def send(self) -> tuple[str, float]:
        """A new token, and for how many seconds it holds. A secret that the server does
        not take is read again once.

        Raises:
            BackendError: there is none; a `TokenRefused` where the server has said so.
        """
        secret = self._config.client_secret or self._config.private_key
        text = "" if secret is None else await self._secrets.text(secret)
        try:
            return await self._asked(text)
        except TokenRefused as refused:
            if secret is None or refused.error not in ("invalid_client", "unauthorized_client"):
                raise
            rotated = await self._secrets.other_than(secret, text)
            if rotated is None:
                raise
            return await self._asked(rotated)

    async def _asked(self, secret: str) -> tuple[str, float]:
        import httpx

        client_id = await self._secrets.text(self._config.client_credentials)
        form, auth = self._form(client_id, secret)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, body, retry = await self._post(form, auth)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise BackendError(
                f"{self._server} could not be reached ({type(error).__name__})"
            ) from None
        if body is None:
            raise BackendError(f"{self._server} answered more than {MAX_BYTES} bytes")
        try:
            said = json.decode(body)
        except ParseError:
            said = None
        if status != 200:
            raise _refused(self._server, status, said, retry)
        return _token_of(said, self._server)

    async def _post(
        self, form: list[tuple[str, str]], auth: httpx.BasicAuth | None
    ) -> tuple[int, bytes | None, str]:
        """Status and body of the answer, `None` for one that is too long, and
        how long it asks to wait."""
        import httpx

        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/x-www-form-urlencoded",
        }
        client = httpx.AsyncClient(
            timeout=TIMEOUT_S, trust_env=False, verify=self._certificates.context
        )
        content = urlencode(form).encode()
        sending = client.stream(
            "POST", self._config.token_url, content=content, headers=headers, auth=auth
        )
        async with client, sending as response:
            retry = response.headers.get("retry-after", "")
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > MAX_BYTES:
                    return response.status_code, None, retry
            return response.status_code, bytes(body), retry

    def _form(
        self, client_id: str, secret: str
    ) -> tuple[list[tuple[str, str]], httpx.BasicAuth | None]:
        """What goes into the form and, where the client says so, into the header."""
        config = self._config
        form = [("grant_type", "client_credentials"), *config.token_parameters.items()]
        if config.token_scopes:
            form.append(("scope", " ".join(config.token_scopes)))
        if config.audience is not None:
            form.append(("audience", config.audience))
        form += [("resource", one) for one in config.resources]
        match config.way:
            case "basic":
                from httpx import BasicAuth

                # RFC 6749 section 2.3.1 has both encoded before they are put together
                return form, BasicAuth(quote(client_id, safe=""), quote(secret, safe=""))
            case "post":
                own = [("client_id", client_id), ("client_secret", secret)]
            case "private_key_jwt":
                own = [("client_id", client_id), *signed_assertion(config, client_id, secret)]
            case "tls":
                own = [("client_id", client_id)]
        return [*form, *own], None


def _refused(server: str, status: int, said: Any, retry: str) -> TokenRefused:
    error = said.get("error") if isinstance(said, dict) else None
    known = error if isinstance(error, str) and error in REMEDIES else None
    retry_s = float(retry) if retry.isdecimal() and len(retry) < 6 else 0.0
    what = "" if known is None else f" {known}; {REMEDIES[known]}"
    return TokenRefused(f"{server} gave the gateway no token: {status}{what}", known, retry_s)


def _token_of(said: Any, server: str) -> tuple[str, float]:
    match said:
        case {"access_token": str(token), "token_type": str(kind)} if kind.lower() == "bearer":
            life_s = said.get("expires_in", USUAL_LIFE_S)
        case _:
            raise BackendError(f"{server} did not answer with a bearer token")
    if not token or len(token) > MAX_TOKEN or not re.fullmatch(r"[!-~]([ -~]*[!-~])?", token):
        raise BackendError(f"{server} gave a token that cannot be sent")
    if isinstance(life_s, str) and life_s.isdecimal():
        life_s = int(life_s[:9])
    if isinstance(life_s, bool) or not isinstance(life_s, (int, float)) or life_s <= 0:
        life_s = USUAL_LIFE_S
    return token, float(min(life_s, 86_400))
