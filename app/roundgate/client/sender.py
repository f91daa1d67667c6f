"""HTTP requests to one server: credentials, redirects, refusals and their reasons.

The reason of a refusal comes from a JSON-RPC error, from the JSON of frameworks and OAuth, from
plain text, or from the challenge, as one short line. It is withheld if it repeats a request header
that may be a credential, or eight consecutive letters and digits of such a header; other characters
between them are ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from roundgate import lenient
from roundgate.client.auth import Auth, AuthRefusal, challenge_parameters
from roundgate.client.transport import (
    HttpRequest,
    HttpResponse,
    Transport,
    Url,
    read_media_type,
    unpacked_chunks,
)
from roundgate.errors import AuthorizationFailed, ClientError, HttpRefused, ParseError, Remedy
from roundgate.net.request import IdleLimit

Headers = Sequence[tuple[str, str]]
Redact: TypeAlias = Callable[[bytes], bytes]
"""A function that removes secrets from received data."""

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 3
_MAX_AUTH_ATTEMPTS: Final = 4
_MAX_BODY: Final = 16 * 1024
_READ_S: Final = 5
_LONGEST_REASON: Final = 300
_SHORTEST_SECRET: Final = 6
_LONGEST_QUOTE: Final = 8
"""The number of consecutive letters and digits of a credential that make a text secret. Servers
often quote the beginning or end of a key."""
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
        *("accept", "accept-encoding", "content-type"),
        *("mcp-method", "mcp-name", "mcp-protocol-version"),
    }
)


class Sender:
    """A sender of HTTP requests to one server."""

    def __init__(
        self,
        url: Url,
        transport: Transport,
        auth: Auth | None,
        headers: Headers = (),
        redact: Redact | None = None,
    ) -> None:
        """Prepare to send to `url`, with the user's `headers` and the credentials of `auth`.
        `redact` removes credentials that `transport` adds, from the reasons of refusals."""
        self.sent: Headers = ()
        """The headers of the last request, which errors must not repeat."""
        self._url = url
        self._transport = transport
        self._auth = auth
        self._headers = tuple(headers)
        self._redact = redact

    async def send(
        self, method: str, headers: Headers, body: bytes | None, idle: IdleLimit | None = None
    ) -> HttpResponse:
        """Send a request and return its response. Resend a request with refused credentials if new
        ones can be obtained; follow redirects within the server. See `HttpRequest` for `idle`.

        Raises:
            AuthorizationFailed: the server refuses access.
            HttpRefused: the server redirects to another server, or in a circle.
            ClientError: a header of the request is invalid.
            ConnectionLost, TimedOut, BadAnswer: see `Transport.send`.
        """
        url = self._url
        attempts = redirects = 0
        while True:
            own = await self._own_headers(method, headers)
            response = await self._send(HttpRequest(method, url, own, body, idle))
            if response.status in (401, 403):
                attempts += 1
                await self._refused(response, attempts, own)
            elif response.status in _REDIRECTS:
                redirects += 1
                await response.close()
                url = _redirected(response, url, redirects)
            else:
                return response

    async def send_once(self, method: str, headers: Headers) -> HttpResponse:
        """Send a request without a body and return its response, whatever the status. Raise as
        `send` does if there is no response."""
        own = await self._own_headers(method, headers)
        return await self._send(HttpRequest(method, self._url, own))

    async def _own_headers(self, method: str, headers: Headers) -> Headers:
        credentials = await self._auth.headers(method, self._url) if self._auth is not None else ()
        return [*headers, *self._headers, *credentials]

    async def _send(self, request: HttpRequest) -> HttpResponse:
        self.sent = request.headers
        try:
            return await self._transport.send(request)
        except ValueError as error:
            raise ClientError(f"The request cannot be sent: {error}") from None

    async def _refused(self, response: HttpResponse, attempt: int, sent: Headers) -> None:
        """Return if the request should be resent; otherwise raise `AuthorizationFailed`."""
        reason = await reason_of(response, sent, self._redact)
        await response.close()
        if self._auth is not None and attempt < _MAX_AUTH_ATTEMPTS:
            challenge = response.headers.get("www-authenticate", "")
            nonce = response.headers.get("dpop-nonce")
            refusal = AuthRefusal(
                response.status, challenge, nonce, attempt, self._url, self._transport
            )
            if await self._auth.renew(refusal):
                return
        if response.status == 403:
            raise AuthorizationFailed(
                403, f"The server refuses access (403){reason}{_lacking_scope(response, reason)}"
            )
        if self._auth is not None:
            fact, remedy = "rejected the credentials", Remedy.OTHER_CREDENTIALS
        else:
            fact, remedy = "requires credentials", Remedy.CREDENTIALS
        raise AuthorizationFailed(401, f"The server {fact} (401){reason}", remedy)


def _redirected(response: HttpResponse, url: Url, redirects: int) -> Url:
    """Return the URL of a redirect within the server that keeps method and body. Raise
    `HttpRefused` for any other redirect."""
    target = url.redirected(response.headers.get("location", ""))
    if target is None or target.origin != url.origin or response.status not in (307, 308):
        # without its query, which may be confidential
        where = "" if target is None else f" to {target.root}{target.target.partition('?')[0]}"
        raise HttpRefused(
            response.status,
            f"The server redirects{where} ({response.status}), which is not followed: use the "
            "final URL",
        )
    if redirects > _MAX_REDIRECTS:
        raise HttpRefused(response.status, "The server redirects in a circle")
    return target


def _lacking_scope(response: HttpResponse, reason: str) -> str:
    """Return the scope that the server asks for, as a clause, unless its reason names it."""
    challenge = challenge_parameters(response.headers.get("www-authenticate", ""))
    scope = challenge.get("scope", "")
    is_asked = challenge.get("error") == "insufficient_scope" and scope.isprintable()
    return f"; the token lacks the scope {scope}" if is_asked and scope not in reason else ""


async def reason_of(
    response: HttpResponse, sent: Headers = (), redact: Redact | None = None
) -> str:
    """Return ": " and the server's reason for refusing a request with the headers `sent`, or an
    empty string. Reads the beginning of the body."""
    return reason_in(await _beginning(response), response, sent, redact)


def reason_in(
    body: bytes, response: HttpResponse, sent: Headers = (), redact: Redact | None = None
) -> str:
    """Return ": " and the server's reason, or "", from a body that has been read. See
    `reason_of`."""
    challenge = response.headers.get("www-authenticate", "")
    if redact is not None:
        body, challenge = redact(body), redact(challenge.encode()).decode("utf-8", "replace")
    text = _reason_in_body(body, read_media_type(response))
    if not text:
        text = challenge_parameters(challenge).get("error_description", "")
    words = "".join(char if char.isprintable() else " " for char in text).split()
    line = " ".join(words)[:_LONGEST_REASON]
    return f": {line}" if line and not _repeats_a_secret(line, sent) else ""


async def _beginning(response: HttpResponse) -> bytes:
    """Return at most `_MAX_BODY` bytes of a body that arrive within `_READ_S` seconds."""
    body = b""
    try:
        async with asyncio.timeout(_READ_S):
            async for part in unpacked_chunks(response):
                body += part
                if len(body) > _MAX_BODY:
                    break
    except (ClientError, TimeoutError):
        pass
    return body[:_MAX_BODY]


def _reason_in_body(body: bytes, media_type: str) -> str:
    if media_type == "text/plain":
        return body.decode("utf-8", "replace")
    if not media_type.endswith("json"):
        return ""
    try:
        return _reason_in_json(lenient.read(body).value)
    except ParseError:
        return ""


def _reason_in_json(value: Any) -> str:
    match value:
        case str():
            return value
        case [first, *_]:
            return _reason_in_json(first)
        case dict():
            reasons = (_reason_in_json(value.get(name)) for name in _MEMBERS)
            return next(filter(None, reasons), "")
    return ""


def _repeats_a_secret(line: str, sent: Headers) -> bool:
    """Return whether a line repeats a credential or a usable part of a credential."""
    line_letters = _letters_and_digits(line)
    for secret in _secrets(sent):
        letters = _letters_and_digits(secret)
        size = max(_SHORTEST_SECRET, min(len(letters), _LONGEST_QUOTE))
        parts = (letters[at : at + size] for at in range(len(letters) - size + 1))
        if secret in line or any(part in line_letters for part in parts):
            return True
    return False


def _secrets(sent: Headers) -> Iterable[str]:
    """Yield the words of headers that may be credentials, without the authentication scheme."""
    for name, value in sent:
        if name.lower() not in _PUBLIC:
            words = value.split()
            has_scheme = name.lower() == "authorization" and len(words) > 1
            yield from (word for word in words[has_scheme:] if len(word) >= _SHORTEST_SECRET)


def _letters_and_digits(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()
