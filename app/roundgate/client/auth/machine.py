"""Tokens without a login: client credentials, a workload's own JWT, an identity that
an enterprise vouches for.

All three are extensions of the protocol (ext-auth): `oauth-client-credentials`, workload identity
(RFC 7523), and enterprise-managed authorization (an identity assertion, RFC 8693 and RFC 7523).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Final

from roundgate.client.auth.metadata import Fetcher, Server, safe_url, text_member
from roundgate.client.auth.oauth import Kept, OAuth, secret_authentication
from roundgate.client.types import Json
from roundgate.errors import AuthorizationFailed, ClientError, OAuthRefused
from roundgate.net.oauth import signed_assertion

_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 — a name


class ClientCredentials(OAuth):
    """A client that acts on its own behalf and authenticates with a secret or a private key
    (`private_key_jwt`).

    `issuer` is the authorization server that registered the client. The secret is sent to no other
    server, whichever the MCP server names. `None` trusts the first issuer that the MCP server
    names; use it only if that server may hold the secret itself.
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str | None = None,
        *,
        private_key: str | None = None,
        algorithm: str | None = None,
        issuer: str | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if (client_secret is None) == (private_key is None):
            raise ClientError("Client credentials are either a client_secret or a private_key")
        self._client_id = client_id
        self._secret = client_secret
        self._private_key = private_key
        self._algorithm = algorithm
        self._issuer = issuer

    async def _grant(self, fetch: Fetcher, server: Server, kept: Kept) -> Json:
        self._issuer = pinned(self._issuer, server)
        form = {"grant_type": "client_credentials"}
        if kept.scopes:
            form["scope"] = " ".join(kept.scopes)
        return await self._token(fetch, server, kept, form)

    def _client_authentication(
        self, server: Server, kept: Kept
    ) -> tuple[dict[str, str], list[tuple[str, str]]]:
        if self._private_key is None:
            return secret_authentication(server, self._client_id, self._secret)
        try:
            form = signed_assertion(
                self._client_id,
                server.issuer,
                self._private_key,
                issued_s=self._clock.now_ms() // 1_000,
                assertion_id=self._clock.new_id(),
                algorithm=self._algorithm,
            )
        except ValueError as error:
            raise ClientError(f"The private_key {error}") from None
        return form, []


class WorkloadIdentity(OAuth):
    """A workload that authenticates with a JWT of its platform. `assertion` is the JWT, or a
    function that returns a fresh one; `issuer` is as for `ClientCredentials`."""

    def __init__(
        self,
        assertion: str | Callable[[], str | Awaitable[str]],
        *,
        client_id: str | None = None,
        issuer: str | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._assertion = assertion
        self._client_id = client_id
        self._issuer = issuer

    async def _grant(self, fetch: Fetcher, server: Server, kept: Kept) -> Json:
        self._issuer = pinned(self._issuer, server)
        got = self._assertion() if callable(self._assertion) else self._assertion
        form = {"grant_type": _JWT_BEARER, "assertion": await got if isawaitable(got) else got}
        if kept.scopes:
            form["scope"] = " ".join(kept.scopes)
        return await self._token(fetch, server, kept, form)

    def _client_authentication(
        self, server: Server, kept: Kept
    ) -> tuple[dict[str, str], list[tuple[str, str]]]:
        return ({"client_id": self._client_id} if self._client_id else {}), []


class EnterpriseIdentity(OAuth):
    """A user identified by an enterprise's identity provider. The provider's ID token is exchanged
    for an assertion, and the assertion for an access token. `issuer` is as for
    `ClientCredentials`."""

    def __init__(
        self,
        *,
        id_token: str,
        idp_token_endpoint: str,
        idp_client_id: str,
        client_id: str,
        client_secret: str | None = None,
        issuer: str | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._issuer = issuer
        self._id_token = id_token
        self._idp = safe_url(idp_token_endpoint, "token endpoint of the identity provider")
        self._idp_client_id = idp_client_id
        self._client_id = client_id
        self._secret = client_secret

    async def _grant(self, fetch: Fetcher, server: Server, kept: Kept) -> Json:
        self._issuer = pinned(self._issuer, server)
        exchange = {
            "grant_type": _TOKEN_EXCHANGE,
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "audience": server.issuer,
            "resource": server.resource,
            "subject_token": self._id_token,
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "client_id": self._idp_client_id,
        }
        if kept.scopes:
            exchange["scope"] = " ".join(kept.scopes)
        try:
            granted = await fetch.post_form(self._idp, exchange)
        except OAuthRefused as error:
            raise AuthorizationFailed(
                401, f"The identity provider vouches for nobody: {error.error}"
            ) from None
        assertion = text_member(granted, "access_token", "an identity assertion")
        return await self._token(
            fetch, server, kept, {"grant_type": _JWT_BEARER, "assertion": assertion}
        )

    def _client_authentication(
        self, server: Server, kept: Kept
    ) -> tuple[dict[str, str], list[tuple[str, str]]]:
        return secret_authentication(server, self._client_id, self._secret)


def pinned(issuer: str | None, server: Server) -> str:
    """Credentials that belong to one authorization server, be it the first they were used
    at, are shown to no other.

    Raises:
        AuthorizationFailed: the MCP server names another.
    """
    if issuer is not None and issuer != server.issuer:
        raise AuthorizationFailed(
            401,
            f"The server names the authorization server {server.issuer[:200]!a}, and the "
            f"credentials are for {issuer!r}: if both are the same, give its issuer in this spelling",
        )
    return server.issuer
