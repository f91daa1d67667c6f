"""The grants that obtain a first token: client credentials, a workload's own JWT, an identity from
an enterprise's provider, and a login in the browser.

The first three are extensions of the protocol (ext-auth): `oauth-client-credentials`, workload
identity (RFC 7523), and enterprise-managed authorization (an identity assertion, RFC 8693 and
RFC 7523). The login is the authorization code grant with PKCE, with a callback on this machine
(RFC 8252):

    browser ──▶ authorization server: login and consent ──▶ http://127.0.0.1:port/callback?code=…
    client ──▶ token endpoint: the code, with the verifier that only this client knows
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import isawaitable
from os import urandom
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

from roundgate.client.auth.base import base64url
from roundgate.client.auth.oauth import (
    AuthorizationServer,
    Fetcher,
    Headers,
    OAuth,
    OAuthRefused,
    Stored,
    failed,
    safe_url,
    secret_authentication,
    text_member,
)
from roundgate.client.types import Json
from roundgate.errors import AuthorizationFailed, ClientError, Remedy
from roundgate.net.oauth import signed_assertion
from roundgate.net.serving import served

_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 — a name


class ClientCredentials(OAuth):
    """The credentials of a client that acts on its own behalf: a secret or a private key
    (`private_key_jwt`).

    `issuer` is the authorization server that registered the client. The secret is sent to no other
    server, even if the MCP server names another. `None` trusts the first issuer that the MCP server
    names; use it only if that server may receive the secret.
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
        super().__init__(issuer, client_id, client_secret, **options)
        if (client_secret is None) == (private_key is None):
            raise ClientError("Client credentials need either a client_secret or a private_key")
        self._private_key = private_key
        self._algorithm = algorithm

    async def _grant(self, fetch: Fetcher, server: AuthorizationServer, stored: Stored) -> Json:
        self._pin(server)
        form = {"grant_type": "client_credentials", **_scope(stored)}
        return await self._token(fetch, server, stored, form)

    def _client_authentication(
        self, server: AuthorizationServer, stored: Stored
    ) -> tuple[dict[str, str], Headers]:
        if self._private_key is None:
            return super()._client_authentication(server, stored)
        try:
            form = signed_assertion(
                self._client_id or "",
                server.issuer,
                self._private_key,
                issued_s=self._clock.now_ms() // 1_000,
                assertion_id=self._clock.new_id(),
                algorithm=self._algorithm,
            )
        except ValueError as error:
            raise ClientError(f"The private_key {error}") from None
        return form, []


def _scope(stored: Stored) -> dict[str, str]:
    return {"scope": " ".join(stored.scopes)} if stored.scopes else {}


class WorkloadIdentity(OAuth):
    """The credentials of a workload: a JWT of its platform. `assertion` is the JWT, or a function
    that returns a fresh JWT; `issuer` is as for `ClientCredentials`."""

    def __init__(
        self,
        assertion: str | Callable[[], str | Awaitable[str]],
        *,
        client_id: str | None = None,
        issuer: str | None,
        **options: Any,
    ) -> None:
        super().__init__(issuer, client_id, **options)
        self._assertion = assertion

    async def _grant(self, fetch: Fetcher, server: AuthorizationServer, stored: Stored) -> Json:
        self._pin(server)
        assertion = self._assertion() if callable(self._assertion) else self._assertion
        assertion = await assertion if isawaitable(assertion) else assertion
        form = {"grant_type": _JWT_BEARER, "assertion": assertion, **_scope(stored)}
        return await self._token(fetch, server, stored, form)


class EnterpriseIdentity(OAuth):
    """The credentials of a user from an enterprise's identity provider. The provider exchanges the
    user's ID token for an assertion, and the authorization server exchanges the assertion for an
    access token. `issuer` is as for `ClientCredentials`."""

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
        super().__init__(issuer, client_id, client_secret, **options)
        self._id_token = id_token
        self._idp = safe_url(idp_token_endpoint, "token endpoint of the identity provider")
        self._idp_client_id = idp_client_id

    async def _grant(self, fetch: Fetcher, server: AuthorizationServer, stored: Stored) -> Json:
        self._pin(server)
        exchange = {
            "grant_type": _TOKEN_EXCHANGE,
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "audience": server.issuer,
            "resource": server.resource,
            "subject_token": self._id_token,
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "client_id": self._idp_client_id,
            **_scope(stored),
        }
        try:
            granted = await fetch.post_form(self._idp, exchange)
        except OAuthRefused as error:
            raise failed(f"The identity provider issued no assertion: {error.error}") from None
        assertion = text_member(granted, "access_token", "an identity assertion")
        form = {"grant_type": _JWT_BEARER, "assertion": assertion}
        return await self._token(fetch, server, stored, form)


# -- a login in the browser ------------------------------------------------------------------------

_PATH: Final = "/callback"
_HEADERS: Final = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]
_DONE: Final = b"<!doctype html><title>Roundgate</title><p>You can close this window and go back."


class BrowserLogin(OAuth):
    """The credentials of a user who logs in with a browser. `open_url` opens a URL in the user's
    browser; `login_s` limits the login, in seconds.

    The client identifies itself by its `client_id`, by its metadata document
    (`client_metadata_url`) if the authorization server supports this, or by a dynamic
    registration, in this order.
    """

    _wants_refresh = True

    def __init__(
        self,
        *,
        client_id: str | None = None,
        client_secret: str | None = None,
        client_metadata_url: str | None = None,
        issuer: str | None = None,
        client_name: str = "Roundgate",
        open_url: Callable[[str], Any] | None = None,
        port: int = 0,
        login_s: float = 300.0,
        **options: Any,
    ) -> None:
        super().__init__(issuer, client_id, client_secret, **options)
        self._metadata_url = client_metadata_url
        self._has_issuer = issuer is not None
        self._client_name = client_name
        self._open_url = open_url or _open_browser
        self._port = port
        self._login_s = login_s

    async def _grant(self, fetch: Fetcher, server: AuthorizationServer, stored: Stored) -> Json:
        if self._has_issuer or self._client_id is not None:
            self._pin(server)
        if not server.supports("code_challenge_methods_supported", "S256"):
            raise failed(
                "The authorization server does not support PKCE (S256), which a login needs"
            )
        endpoint = server.endpoint("authorization_endpoint")
        if endpoint is None:
            raise failed("The authorization server has no authorization endpoint")
        verifier, state = base64url(urandom(32)), base64url(urandom(32))
        async with _callback(self._port, stored.registration.get("port")) as (port, queries):
            redirect = f"http://127.0.0.1:{port}{_PATH}"
            await self._identify(fetch, server, stored, redirect, port)
            query = {
                "response_type": "code",
                "client_id": stored.registration["client_id"],
                "redirect_uri": redirect,
                "state": state,
                "code_challenge": base64url(hashlib.sha256(verifier.encode()).digest()),
                "code_challenge_method": "S256",
                "resource": server.resource,
                **_scope(stored),
            }
            mark = "&" if "?" in endpoint.target else "?"
            url = f"{endpoint}{mark}{urlencode(query)}"
            code = _code(await self._log_in(url, queries, state), server)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": verifier,
        }
        return await self._token(fetch, server, stored, form)

    async def _log_in(
        self, url: str, queries: asyncio.Queue[dict[str, str]], state: str
    ) -> dict[str, str]:
        opened = self._open_url(url)
        if isawaitable(opened):
            await opened
        try:
            async with asyncio.timeout(self._login_s):
                while True:
                    answer = await queries.get()
                    # Any program on this machine can call the callback, but only the answer to
                    # this login contains its state.
                    if hmac.compare_digest(answer.get("state", "").encode(), state.encode()):
                        return answer
        except TimeoutError:
            raise failed(
                f"The login was not completed within {self._login_s:g} s (login_s)"
            ) from None

    async def _identify(
        self, fetch: Fetcher, server: AuthorizationServer, stored: Stored, redirect: str, port: int
    ) -> None:
        """Set the client's registration. A dynamic registration is reused only on the same port."""
        has_documents = server.document.get("client_id_metadata_document_supported") is True
        if self._client_id is not None:
            stored.registration = {"client_id": self._client_id, "client_secret": self._secret}
        elif self._metadata_url and has_documents:
            stored.registration = {"client_id": self._metadata_url}
        elif stored.registration.get("port") != port:
            stored.registration = {**await self._register(fetch, server, redirect), "port": port}

    async def _register(self, fetch: Fetcher, server: AuthorizationServer, redirect: str) -> Json:
        endpoint = server.endpoint("registration_endpoint")
        if endpoint is None:
            raise AuthorizationFailed(
                401, "The authorization server does not register clients", Remedy.REGISTERED_CLIENT
            )
        methods: Any = server.document.get("token_endpoint_auth_methods_supported")
        is_public = not isinstance(methods, list) or "none" in methods or not methods
        metadata = {
            "client_name": self._client_name,
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none" if is_public else str(methods[0]),
            "application_type": "native",
        }
        try:
            answer = await fetch.post_json(endpoint, metadata)
        except OAuthRefused as error:
            reason = f"{error.error} {error.description}".strip() or f"HTTP status {error.status}"
            text = f"The authorization server does not register this client: {reason}"
            raise failed(text) from None
        text_member(answer, "client_id", "a registration")
        names = ("client_id", "client_secret", "token_endpoint_auth_method")
        return {name: answer[name] for name in names if isinstance(answer.get(name), str)}

    def _client_authentication(
        self, server: AuthorizationServer, stored: Stored
    ) -> tuple[dict[str, str], Headers]:
        registration = stored.registration
        return secret_authentication(
            server,
            str(registration.get("client_id", "")),
            registration.get("client_secret"),
            registration.get("token_endpoint_auth_method"),
        )


def _code(answer: dict[str, str], server: AuthorizationServer) -> str:
    """Return the code of an authorization response. Raise `AuthorizationFailed` if the login was
    refused or the issuer is wrong (RFC 9207 section 2.4)."""
    issuer = answer.get("iss")
    names_issuer = server.document.get("authorization_response_iss_parameter_supported") is True
    if issuer is None and names_issuer:
        raise failed("The login's answer lacks the issuer that the server promises to send")
    if issuer not in (None, server.issuer):
        raise failed("The login's answer names another authorization server, so it is not used")
    if "error" in answer:
        reason = f"{answer['error'][:100]} {answer.get('error_description', '')[:300]}".strip()
        raise failed(f"The login was refused: {reason}")
    if not answer.get("code"):
        raise failed("The login's answer has no code")
    return answer["code"]


async def _open_browser(url: str) -> None:
    import webbrowser

    # In a thread, because a text browser blocks until it ends, and the callback must answer it.
    if not await asyncio.to_thread(webbrowser.open, url):
        raise ClientError("No browser could be opened on this machine", Remedy.BROWSER)


@asynccontextmanager
async def _callback(
    port: int, last_port: Any
) -> AsyncGenerator[tuple[int, asyncio.Queue[dict[str, str]]], None]:
    """Serve the callback on this machine; yield its port and a queue of the queries that it
    receives. Raise `ClientError` if the port cannot be used."""
    queries: asyncio.Queue[dict[str, str]] = asyncio.Queue(16)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        is_ours = scope["method"] == "GET" and scope["path"] == _PATH and not queries.full()
        if is_ours:
            query = parse_qs(scope["query_string"].decode("latin-1"))
            queries.put_nowait({name: values[0] for name, values in query.items()})
        status, body = (200, _DONE) if is_ours else (404, b"")
        await send({"type": "http.response.start", "status": status, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": body})

    async with AsyncExitStack() as stack:
        # On the last port, the last registration can be reused.
        for choice in (port or (last_port if isinstance(last_port, int) else 0), port):
            try:
                serving = served(answer, port=choice, http="h11", log_level="critical")
                bound = await stack.enter_async_context(serving)
            except OSError:
                continue
            yield bound, queries
            return
    raise ClientError(f"The callback of the login cannot listen on port {port}")
