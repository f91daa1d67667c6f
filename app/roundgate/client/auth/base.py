"""What the client asks of a way to authenticate, and the simplest one: a token
that somebody else got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from roundgate.client.limits import Limits
from roundgate.client.transport import Transport, Url
from roundgate.errors import ClientError


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that the server refused with 401 or 403, and what is needed
    to do something about it.

    `challenge` is the `WWW-Authenticate` header, `nonce` the `DPoP-Nonce` header; `attempt` counts
    from 1 for each request. The transport is for requests to the authorization server; nothing
    secret goes through it to `server`.
    """

    status: int
    challenge: str
    nonce: str | None
    attempt: int
    server: Url
    transport: Transport
    limits: Limits


class Auth(Protocol):
    """Puts credentials on requests to one server. The client calls it for that
    server's origin alone."""

    async def headers(self, method: str, url: Url) -> Sequence[tuple[str, str]]:
        """What goes on a request; nothing while there are no credentials yet."""

    async def renew(self, refusal: Refusal) -> bool:
        """A request was refused. Whether it is worth sending again, with other credentials.

        Raises:
            AuthorizationFailed: there will be none, and why.
        """


class Bearer:
    """A token that was issued elsewhere. Only to https, or to this machine, unless `allow_http`."""

    def __init__(self, token: str, *, allow_http: bool = False) -> None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ClientError(
                "The bearer token is empty, or has characters that cannot stand in a header"
            )
        self._token = token
        self._allow_http = allow_http

    def __repr__(self) -> str:
        return "Bearer(…)"

    async def headers(self, method: str, url: Url) -> Sequence[tuple[str, str]]:
        if not self._allow_http:
            refuse_plain(url)
        return [("Authorization", f"Bearer {self._token}")]

    async def renew(self, refusal: Refusal) -> bool:
        return False


def refuse_plain(url: Url) -> None:
    """Raise `ClientError` if credentials would travel unencrypted to another machine."""
    if not url.is_confidential:
        raise ClientError(
            f"Credentials are not sent to {url.authority} over plain http: use an https:// URL"
        )
