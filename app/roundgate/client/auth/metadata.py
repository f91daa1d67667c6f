"""Which authorization server speaks for an MCP server: RFC 9728, RFC 8414,
OpenID Connect Discovery.

Documents are fetched without credentials, and believed only where the specification says so: the
resource must be the server, the issuer must be the one whose document was asked for, and endpoints
are https (or on this machine).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from roundgate.client.limits import Limits
from roundgate.client.transport import HttpRequest, Transport, Url, read_body
from roundgate.client.types import Json
from roundgate.errors import AuthorizationFailed, BadAnswer, ClientError, OAuthRefused, ParseError
from roundgate.json import decode
from roundgate.net.addresses import is_this_machine

_MAX_DOCUMENT: Final = 1024 * 1024
_PARAMETER: Final = re.compile(
    r"""(?<![A-Za-z_])([A-Za-z_]++)[ \t]*+=[ \t]*+(?:"((?:[^"\\]|\\.)*+)"|([^\s,"]++))"""
)
"""A parameter of a challenge. Matching never backtracks, so it takes linear time."""


def challenge_parameters(challenge: str) -> dict[str, str]:
    """The parameters of a `WWW-Authenticate` header; where several challenges have
    one, the first counts."""
    found: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(challenge[:8_192]):
        found.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or bare)
    return found


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Requests to authorization servers."""

    transport: Transport
    limits: Limits

    async def get(self, url: Url) -> Json | None:
        """A document, `None` if there is none."""
        try:
            return await self._fetch(HttpRequest("GET", url, [("Accept", "application/json")]))
        except OAuthRefused as error:
            if 400 <= error.status < 500:
                return None
            raise AuthorizationFailed(
                401, f"{url.authority} answered with HTTP status {error.status}"
            ) from None

    async def post_form(
        self, url: Url, form: dict[str, str], headers: Sequence[tuple[str, str]] = ()
    ) -> Json:
        """POST a form.

        Raises:
            OAuthRefused: it was refused.
        """
        kind = ("Content-Type", "application/x-www-form-urlencoded")
        request = HttpRequest(
            "POST", url, [("Accept", "application/json"), kind, *headers], urlencode(form).encode()
        )
        return await self._fetch(request)

    async def post_json(self, url: Url, body: bytes) -> Json:
        """POST a JSON document.

        Raises:
            OAuthRefused: it was refused.
        """
        kind = ("Content-Type", "application/json")
        return await self._fetch(
            HttpRequest("POST", url, [("Accept", "application/json"), kind], body)
        )

    async def _fetch(self, request: HttpRequest) -> Json:
        response = await self.transport.send(request)
        try:
            body = await read_body(response, _MAX_DOCUMENT)
            try:
                found = decode(body)
            except ParseError:
                found = None
            document: Json = found if isinstance(found, dict) else {}
            if not 200 <= response.status < 300:
                raise OAuthRefused(response.status, document, response.headers.get("dpop-nonce"))
        finally:
            await response.close()
        if not isinstance(found, dict):
            raise AuthorizationFailed(
                401, f"{request.url.authority} answered with something that is no JSON object"
            )
        return document


@dataclass(frozen=True, slots=True)
class Server:
    """An authorization server: its metadata, and what the MCP server asks of its tokens."""

    issuer: str
    resource: str
    scopes: tuple[str, ...] | None
    """`scopes_supported` of the resource."""
    document: Json
    is_near: bool = True
    """Whether the MCP server is on this machine, so that its authorization server may be, too."""

    def endpoint(self, name: str) -> Url | None:
        """An endpoint, `None` if the server has none.

        Raises:
            AuthorizationFailed: it is not encrypted.
        """
        value = self.document.get(name)
        return safe_url(value, name, self.is_near) if isinstance(value, str) else None

    def supports(self, name: str, value: str) -> bool:
        """Whether a list of the metadata has a value."""
        found = self.document.get(name)
        return isinstance(found, list) and value in found


def safe_url(value: str, what: str, is_near: bool = True) -> Url:
    """A URL that secrets may go to. A server that is not near (on this
    machine) names nothing that is.

    Raises:
        AuthorizationFailed: it is malformed, or plain http to another machine.
    """
    try:
        url = Url.parse(value)
    except ClientError:
        raise AuthorizationFailed(
            401, f"The {what} of the authorization server is no URL"
        ) from None
    if not url.is_confidential:
        raise AuthorizationFailed(
            401, f"The {what} of the authorization server is plain http, so nothing is sent to it"
        )
    if is_this_machine(str(url)) and not is_near:
        raise AuthorizationFailed(
            401, f"The {what} of the authorization server is on this machine, and the server is not"
        )
    return url


async def discover(fetch: Fetcher, server: Url, challenge: dict[str, str]) -> Server:
    """The authorization server of an MCP server that has refused a request.

    Raises:
        AuthorizationFailed: there is none that can be believed.
    """
    document = await _resource_metadata(fetch, server, challenge)
    # revision 2025-03-26 had no such document: the server was its own authorization server
    if document is None:
        issuer, resource, scopes = f"{server.scheme}://{server.authority}", str(server), None
    else:
        resource = _checked_resource(document, server)
        issuers = document.get("authorization_servers")
        if not isinstance(issuers, list) or not issuers or not isinstance(issuers[0], str):
            raise AuthorizationFailed(401, "The server's metadata names no authorization server")
        issuer = issuers[0]
        supported = document.get("scopes_supported")
        scopes = tuple(str(one) for one in supported) if isinstance(supported, list) else None
    is_near = is_this_machine(str(server))
    described = await _issuer_metadata(fetch, issuer, is_near)
    return Server(issuer, resource, scopes, described, is_near)


async def _resource_metadata(fetch: Fetcher, server: Url, challenge: dict[str, str]) -> Json | None:
    named = challenge.get("resource_metadata")
    if named is not None:
        document = await fetch.get(safe_url(named, "metadata URL", is_this_machine(str(server))))
        if document is None:
            raise AuthorizationFailed(
                401, "The server names metadata (resource_metadata) that is not there"
            )
        return document
    root = f"{server.scheme}://{server.authority}/.well-known/oauth-protected-resource"
    path = urlsplit(server.target).path.rstrip("/")
    for url in dict.fromkeys([root + path, root]):
        if (document := await fetch.get(Url.parse(url))) is not None:
            return document
    return None


def _checked_resource(document: Json, server: Url) -> str:
    """The resource that tokens are for. It is the server, or what the server's
    endpoint is a part of."""
    resource = document.get("resource")
    try:
        named = Url.parse(resource) if isinstance(resource, str) else None
    except ClientError:
        named = None
    ours = urlsplit(server.target).path
    if (
        named is None
        or named.origin != server.origin
        or not _is_within(ours, urlsplit(named.target).path)
    ):
        raise AuthorizationFailed(
            401, f"The server's metadata is for another resource than {server}, so it is not used"
        )
    return str(resource)


def _is_within(path: str, above: str) -> bool:
    above = above.rstrip("/")
    return path == above or path.rstrip("/") == above or path.startswith(above + "/")


async def _issuer_metadata(fetch: Fetcher, issuer: str, is_near: bool) -> Json:
    url = safe_url(issuer, "issuer", is_near)
    base, path = (
        f"{url.scheme}://{url.authority}/.well-known",
        urlsplit(url.target).path.rstrip("/"),
    )
    places = [f"{base}/oauth-authorization-server{path}", f"{base}/openid-configuration{path}"]
    if path:
        places.append(f"{url.scheme}://{url.authority}{path}/.well-known/openid-configuration")
    for place in places:
        document = await fetch.get(Url.parse(place))
        if document is None:
            continue
        if document.get("issuer") != issuer:
            raise AuthorizationFailed(
                401, f"The metadata at {place} is another issuer's, so it is not used"
            )
        return document
    raise AuthorizationFailed(
        401, f"The authorization server {url.authority} publishes no metadata"
    )


def text_member(document: Json, name: str, what: str) -> str:
    """A text that must be there.

    Raises:
        BadAnswer: it is not.
    """
    value: Any = document.get(name)
    if not isinstance(value, str) or not value:
        raise BadAnswer(f"The authorization server sent {what} without {name!r}")
    return value
