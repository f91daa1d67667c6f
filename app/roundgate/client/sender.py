"""One HTTP request and its response: the client's credentials with it, refusals
and redirects dealt with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from roundgate.client.auth import Auth, Refusal
from roundgate.client.limits import Limits
from roundgate.client.reasons import reason_of
from roundgate.client.transport import HttpRequest, HttpResponse, Transport, Url
from roundgate.errors import AuthorizationFailed, ClientError, HttpRefused, Remedy

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 3
_MAX_AUTH_ATTEMPTS: Final = 4


class Sender:
    """Sends requests to one server."""

    def __init__(
        self,
        url: Url,
        transport: Transport,
        limits: Limits,
        *,
        auth: Auth | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Send to `url`.

        Args:
            url: the endpoint.
            transport: what carries the bytes.
            limits: what a renewal of the credentials may take.
            auth: adds credentials to each request, and may renew them when they are refused.
            headers: those of the user, with each request.
        """
        self.url = url
        self.limits = limits
        self._transport = transport
        self._auth = auth
        self._headers = tuple(headers)
        self.sent: Sequence[tuple[str, str]] = ()
        """The headers of the last request, which errors must not repeat."""

    async def send(
        self, method: str, headers: Sequence[tuple[str, str]], body: bytes | None
    ) -> HttpResponse:
        """Send a request, again with new credentials where they were
        refused, and on along a redirect.

        Args:
            method: of HTTP.
            headers: of this request.
            body: `None` for none.

        Raises:
            AuthorizationFailed: the server refuses access.
            HttpRefused: it redirects to somewhere else, or in a circle.
            ClientError: the request cannot be sent as it is.
            ConnectionLost, TimedOut: by the transport.
        """
        url = self.url
        attempts = redirects = 0
        while True:
            own = await self._own_headers(method, headers)
            response = await self._send(method, own, body, url)
            if response.status in (401, 403):
                attempts += 1
                await self._refused(response, attempts, own)
            elif response.status in _REDIRECTS:
                redirects += 1
                await response.close()
                url = self._redirected(response, url, redirects)
            else:
                return response

    async def send_once(
        self,
        method: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | None = None,
        url: Url | None = None,
    ) -> HttpResponse:
        """Send a request as it is, and return whatever comes.

        Args:
            method: of HTTP.
            headers: of this request.
            body: `None` for none.
            url: where to, if it is not the endpoint.

        Raises:
            ClientError: the request cannot be sent as it is.
            ConnectionLost, TimedOut: by the transport.
        """
        own = await self._own_headers(method, headers)
        return await self._send(method, own, body, url or self.url)

    async def _send(
        self, method: str, headers: Sequence[tuple[str, str]], body: bytes | None, url: Url
    ) -> HttpResponse:
        self.sent = headers
        try:
            return await self._transport.send(HttpRequest(method, url, headers, body))
        except ValueError as error:
            raise ClientError(f"The request cannot be sent: {error}") from None

    async def _own_headers(
        self, method: str, headers: Sequence[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        own = [*headers, *self._headers]
        if self._auth is not None:
            own += await self._auth.headers(method, self.url)
        return own

    async def _refused(
        self, response: HttpResponse, attempt: int, sent: Sequence[tuple[str, str]]
    ) -> None:
        """Return if the request should be sent again; otherwise raise `AuthorizationFailed`."""
        reason = await reason_of(response, sent)
        await response.close()
        challenge = response.headers.get("www-authenticate", "")
        if self._auth is not None and attempt < _MAX_AUTH_ATTEMPTS:
            nonce = response.headers.get("dpop-nonce")
            refusal = Refusal(
                response.status, challenge, nonce, attempt, self.url, self._transport, self.limits
            )
            if await self._auth.renew(refusal):
                return
        if response.status == 403:
            raise AuthorizationFailed(403, f"The server refuses access (403){reason}")
        if self._auth is not None:
            fact, remedy = "does not take the credentials", Remedy.OTHER_CREDENTIALS
        else:
            fact, remedy = "wants credentials", Remedy.CREDENTIALS
        raise AuthorizationFailed(401, f"The server {fact} (401){reason}", remedy)

    def _redirected(self, response: HttpResponse, url: Url, redirects: int) -> Url:
        """Where to go on: only within the server, and only if the request stays what it is."""
        location = response.headers.get("location", "")
        target = (
            f"{url.scheme}://{url.authority}{location}" if location.startswith("/") else location
        )
        try:
            aim = Url.parse(target)
        except ClientError:
            aim = None
        if aim is None or aim.origin != url.origin or response.status not in (307, 308):
            where = "" if aim is None else f" to {_public_part(aim)}"
            raise HttpRefused(
                response.status,
                f"The server redirects{where} ({response.status}), which is not followed: use the "
                "final URL",
            )
        if redirects > _MAX_REDIRECTS:
            raise HttpRefused(response.status, "The server redirects in a circle")
        return aim


def _public_part(url: Url) -> str:
    """Return a URL without its query, which may be confidential."""
    return f"{url.scheme}://{url.authority}{url.target.partition('?')[0]}"
