"""One HTTP request and its response: credentials, refusals, redirects, and the server's own
explanation of a refusal.

The explanation comes from a JSON-RPC error, from the JSON of frameworks and OAuth, from one line of
plain text, or from the challenge. It is one short line. It never repeats a request header that may
be a credential, nor eight consecutive letters and digits of one, whatever stands between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from roundgate.client.auth import Auth, Refusal, challenge_parameters
from roundgate.client.limits import Limits
from roundgate.client.transport import HttpRequest, HttpResponse, Transport, Url
from roundgate.errors import AuthorizationFailed, ClientError, HttpRefused, ParseError, Remedy
from roundgate.json import decode

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 3
_MAX_AUTH_ATTEMPTS: Final = 4
_MAX_BODY: Final = 16 * 1024
_READ_S: Final = 5
_LONGEST: Final = 300
_SHORTEST_SECRET: Final = 6
_TELLING: Final = 8
"""The number of a credential's letters and digits that make a text secret. Servers often quote the
beginning or end of a key."""
_MEMBERS: Final = (
    "error_description",
    "message",
    "Message",
    "msg",
    "detail",
    "title",
    "error",
    "errors",
)
_PUBLIC: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "content-type",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
    }
)


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


async def reason_of(response: HttpResponse, sent: Iterable[tuple[str, str]] = ()) -> str:
    """Return ": " and the server's reason for refusing a request, or an empty string.

    Args:
        response: the response, with its body unread.
        sent: the headers of the request.
    """
    return reason_in(await _beginning(response), response, sent)


def reason_in(body: bytes, response: HttpResponse, sent: Iterable[tuple[str, str]] = ()) -> str:
    """Return ": " and the reason from a body that has been read, or an empty string."""
    challenge = response.headers.get("www-authenticate", "")
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    said = _in_body(body, media_type) or challenge_parameters(challenge).get(
        "error_description", ""
    )
    words = "".join(one if one.isprintable() else " " for one in said).split()
    line = " ".join(words)[:_LONGEST]
    return f": {line}" if line and not _tells_a_secret(line, sent) else ""


async def _beginning(response: HttpResponse) -> bytes:
    """Return the beginning of an uncompressed body: at most `_MAX_BODY` bytes, as far as they
    arrive in time."""
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        return b""
    found = b""
    try:
        async with asyncio.timeout(_READ_S):
            async for part in response.chunks():
                found += part
                if len(found) > _MAX_BODY:
                    break
    except (ClientError, TimeoutError):
        pass
    return found[:_MAX_BODY]


def _in_body(body: bytes, media_type: str) -> str:
    if media_type == "text/plain":
        return body.decode("utf-8", "replace")
    if not media_type.endswith("json"):
        return ""
    try:
        return _in_json(decode(body))
    except ParseError:
        return ""


def _in_json(found: Any) -> str:
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return _in_json(found[0]) if found else ""
    if isinstance(found, dict):
        return next(filter(None, (_in_json(found.get(name)) for name in _MEMBERS)), "")
    return ""


def _tells_a_secret(line: str, sent: Iterable[tuple[str, str]]) -> bool:
    """Return whether a line repeats a credential or a usable part of one."""
    line_plain = _letters_and_digits(line)
    for secret in _secrets(sent):
        plain = _letters_and_digits(secret)
        size = max(_SHORTEST_SECRET, min(len(plain), _TELLING))
        parts = (plain[at : at + size] for at in range(len(plain) - size + 1))
        if secret in line or any(part in line_plain for part in parts):
            return True
    return False


def _secrets(sent: Iterable[tuple[str, str]]) -> Sequence[str]:
    """Return the words of headers that may be credentials, without their scheme."""
    words: list[str] = []
    for name, value in sent:
        if name.lower() not in _PUBLIC:
            found = value.split()
            has_scheme = name.lower() == "authorization" and len(found) > 1
            words += found[has_scheme:]
    return [word for word in words if len(word) >= _SHORTEST_SECRET]


def _letters_and_digits(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()
