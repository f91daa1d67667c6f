"""OAuth for MCP servers: discovery (RFC 9728, RFC 8414, OpenID Connect), scopes, token endpoint,
refresh, step-up, and storage. Subclasses obtain the first token.

Documents are fetched without credentials, and used only under the specification's conditions: the
resource must contain the server's endpoint, the issuer must be the issuer whose document was
requested, and endpoints must be https (or on this machine).

A token is stored with its issuer, requested scopes, registration and key. If the MCP server names
another issuer, none of this is used again (client-registration, "Authorization Server Binding").
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from msgspec import Struct, field
from msgspec.structs import asdict

from roundgate.client.auth.base import (
    AuthRefusal,
    InMemory,
    ProofKey,
    TokenStorage,
    challenge_parameters,
    refuse_plain,
)
from roundgate.client.transport import HttpRequest, Transport, Url, read_body
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import AuthorizationFailed, BadAnswer, ClientError, Inside, ParseError
from roundgate.json import decode
from roundgate.net.addresses import is_this_machine
from roundgate.net.oauth import basic_authorization

log = logging.getLogger("roundgate.client")

Headers = Sequence[tuple[str, str]]

_MAX_DOCUMENT: Final = 1024 * 1024
_LEEWAY_MS: Final = 30_000
_LONGEST_LIFE_S: Final = 10 * 365 * 86_400
_MAX_SCOPES: Final = 200
_OFFLINE: Final = "offline_access"


class OAuthRefused(Inside):
    """An OAuth endpoint refused a request. Holds the HTTP status, OAuth's `error` and
    `error_description`, and a DPoP nonce, if any."""

    def __init__(self, status: int, body: Mapping[str, Any], nonce: str | None) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.error = str(body.get("error", ""))[:100]
        self.description = str(body.get("error_description", ""))[:300]
        self.nonce = nonce


def failed(text: str, status: int = 401) -> AuthorizationFailed:
    return AuthorizationFailed(status, text)


# -- discovery -------------------------------------------------------------------------------------


class Fetcher(Struct, frozen=True):
    """A sender of requests to authorization servers."""

    transport: Transport

    async def get(self, url: Url) -> Json | None:
        """Return a JSON document, or `None` for a status 4xx. Raise `AuthorizationFailed` for any
        other failure."""
        try:
            return await self._send("GET", url)
        except OAuthRefused as error:
            if 400 <= error.status < 500:
                return None
            raise failed(f"{url.authority} answered with HTTP status {error.status}") from None

    async def post_form(self, url: Url, form: dict[str, str], headers: Headers = ()) -> Json:
        """Send a form and return the JSON response. Raise `OAuthRefused` if the status is not
        2xx."""
        kind = ("Content-Type", "application/x-www-form-urlencoded")
        return await self._send("POST", url, [kind, *headers], urlencode(form).encode())

    async def post_json(self, url: Url, document: Json) -> Json:
        """Send a JSON document and return the JSON response. Raise `OAuthRefused` if the status is
        not 2xx."""
        kind = ("Content-Type", "application/json")
        return await self._send("POST", url, [kind], json.dumps(document).encode())

    async def _send(
        self, method: str, url: Url, headers: Headers = (), body: bytes | None = None
    ) -> Json:
        request = HttpRequest(method, url, [("Accept", "application/json"), *headers], body)
        response = await self.transport.send(request)
        try:
            document = _decoded(await read_body(response, _MAX_DOCUMENT))
        finally:
            await response.close()
        if not 200 <= response.status < 300:
            nonce = response.headers.get("dpop-nonce")
            raise OAuthRefused(response.status, document or {}, nonce)
        if document is None:
            raise failed(f"{url.authority} answered without a JSON object")
        return document


def _decoded(body: bytes) -> Json | None:
    try:
        document = decode(body)
    except ParseError:
        return None
    return document if isinstance(document, dict) else None


class AuthorizationServer(Struct, frozen=True):
    """An authorization server: its metadata, and the resource and scopes of an MCP server."""

    issuer: str
    resource: str
    scopes: tuple[str, ...]
    """The `scopes_supported` of the resource."""
    document: Json
    is_near: bool
    """Whether the MCP server is on this machine, so its authorization server may also be."""

    def endpoint(self, name: str) -> Url | None:
        """Return an endpoint, or `None` if the server has none. Raise `AuthorizationFailed` if its
        URL is not safe (`safe_url`)."""
        value = self.document.get(name)
        return safe_url(value, name, self.is_near) if isinstance(value, str) else None

    def supports(self, name: str, value: str) -> bool:
        """Return whether the list `name` of the metadata contains `value`."""
        values = self.document.get(name)
        return isinstance(values, list) and value in values


def safe_url(value: str, name: str, is_near: bool = True) -> Url:
    """Return a URL to which secrets may be sent. Raise `AuthorizationFailed` if the URL is
    malformed, plain http to another machine, or on this machine although the server is not
    (`is_near`)."""
    subject = f"The {name} of the authorization server is"
    try:
        url = Url.parse(value)
    except ClientError:
        raise failed(f"{subject} not a valid URL") from None
    if not url.is_confidential:
        raise failed(f"{subject} plain http, so nothing is sent to it")
    if is_this_machine(str(url)) and not is_near:
        raise failed(f"{subject} on this machine, but the server is not")
    return url


async def discover(fetch: Fetcher, server: Url, challenge: dict[str, str]) -> AuthorizationServer:
    """Return the authorization server of an MCP server that has refused a request. Raise
    `AuthorizationFailed` if its metadata is missing or breaks a condition of this module."""
    is_near = is_this_machine(str(server))
    document = await _resource_metadata(fetch, server, challenge, is_near)
    scopes: tuple[str, ...] = ()
    if document is None:
        # In revision 2025-03-26 the server was its own authorization server.
        issuer, resource = server.root, str(server)
    else:
        resource = _checked_resource(document, server)
        issuers = document.get("authorization_servers")
        if not isinstance(issuers, list) or not issuers or not isinstance(issuers[0], str):
            raise failed("The server's metadata names no authorization server")
        issuer = issuers[0]
        supported = document.get("scopes_supported")
        scopes = tuple(map(str, supported if isinstance(supported, list) else ()))
    metadata = await _issuer_metadata(fetch, issuer, is_near)
    return AuthorizationServer(issuer, resource, scopes, metadata, is_near)


async def _resource_metadata(
    fetch: Fetcher, server: Url, challenge: dict[str, str], is_near: bool
) -> Json | None:
    if (url := challenge.get("resource_metadata")) is not None:
        document = await fetch.get(safe_url(url, "metadata URL", is_near))
        if document is None:
            raise failed("The server names metadata (resource_metadata) that does not exist")
        return document
    well_known = f"{server.root}/.well-known/oauth-protected-resource"
    path = urlsplit(server.target).path.rstrip("/")
    for place in dict.fromkeys([well_known + path, well_known]):
        if (document := await fetch.get(Url.parse(place))) is not None:
            return document
    return None


def _checked_resource(document: Json, server: Url) -> str:
    """Return the resource for which to request tokens. Raise `AuthorizationFailed` unless it
    contains the server's endpoint."""
    resource = document.get("resource")
    try:
        url = Url.parse(resource) if isinstance(resource, str) else None
    except ClientError:
        url = None
    if url is None or url.origin != server.origin or not _contains(url, server):
        raise failed(
            f"The server's metadata is for a resource other than {server}, so it is not used"
        )
    return str(resource)


def _contains(resource: Url, server: Url) -> bool:
    above, path = (urlsplit(url.target).path.rstrip("/") + "/" for url in (resource, server))
    return path.startswith(above)


async def _issuer_metadata(fetch: Fetcher, issuer: str, is_near: bool) -> Json:
    url = safe_url(issuer, "issuer", is_near)
    path = urlsplit(url.target).path.rstrip("/")
    places = [
        f"{url.root}/.well-known/oauth-authorization-server{path}",
        f"{url.root}/.well-known/openid-configuration{path}",
        f"{url.root}{path}/.well-known/openid-configuration",
    ]
    for place in dict.fromkeys(places):
        document = await fetch.get(Url.parse(place))
        if document is None:
            continue
        if document.get("issuer") != issuer:
            raise failed(f"The metadata at {place} names another issuer, so it is not used")
        return document
    raise failed(f"The authorization server {url.authority} publishes no metadata")


def text_member(document: Json, name: str, what: str) -> str:
    """Return a required text. Raise `BadAnswer` if it is missing, empty or not text."""
    value: Any = document.get(name)
    if not isinstance(value, str) or not value:
        raise BadAnswer(f"The authorization server sent {what} without {name!r}")
    return value


# -- grants ----------------------------------------------------------------------------------------


class Stored(Struct):
    """A token for one server, and the data that is stored with it."""

    issuer: str
    access_token: str = ""
    token_type: str = "Bearer"  # noqa: S105 — the name of a scheme
    expires_at_ms: int | None = None
    refresh_token: str | None = None
    scopes: list[str] = field(default_factory=list)
    """All scopes requested so far, so a step-up keeps the earlier scopes."""
    registration: Json = field(default_factory=dict)
    proof_key: str | None = None

    def __repr__(self) -> str:
        return f"Stored({self.issuer!r}, …)"

    @property
    def is_bound(self) -> bool:
        """Return whether the token is bound to a key (DPoP)."""
        return self.token_type.lower() == "dpop"


class OAuth:
    """The base class of the grants. `dpop` sets whether to bind tokens to a key; `None` binds them
    if the authorization server supports it."""

    _wants_refresh = False

    def __init__(
        self,
        issuer: str | None,
        client_id: str | None = None,
        client_secret: str | None = None,
        *,
        scopes: Sequence[str] = (),
        storage: TokenStorage | None = None,
        dpop: bool | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._client_id = client_id
        self._secret = client_secret
        self._wanted = list(scopes)
        self._storage = storage or InMemory()
        self._dpop = dpop
        self._clock = clock or Clock()
        self._stored: Stored | None = None
        self._proof_key: ProofKey | None = None
        self._lock = asyncio.Lock()
        self._is_loaded = False
        self._issuer = issuer
        """The authorization server to which the credentials belong, once it is known."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    async def headers(self, method: str, url: Url) -> Headers:
        """Return the headers that authenticate a request; empty without a valid token. See
        `Auth`."""
        refuse_plain(url)
        if not self._is_loaded:
            await self._load(url)
        stored = self._stored
        if stored is None or not stored.access_token or self._has_expired(stored):
            return []
        if not stored.is_bound:
            return [("Authorization", f"Bearer {stored.access_token}")]
        proof = self._key(stored).proof(method, url, stored.access_token)
        return [("Authorization", f"DPoP {stored.access_token}"), ("DPoP", proof)]

    async def renew(self, refusal: AuthRefusal) -> bool:
        """Obtain or renew the token; return whether to retry the request. See `Auth`."""
        challenge = challenge_parameters(refusal.challenge)
        refused = self._stored and self._stored.access_token
        async with self._lock:
            stored = self._stored
            if stored is not None and stored.access_token != refused:
                return True  # another request was also refused, and renewed the token
            if challenge.get("error") == "use_dpop_nonce" and refusal.nonce and stored is not None:
                self._key(stored).nonces[refusal.server.origin] = refusal.nonce
                return True
            if refusal.status == 403 and challenge.get("error") != "insufficient_scope":
                return False
            return await self._authorize(refusal, challenge)

    async def forget(self, server: str) -> None:
        """Delete the stored tokens for a server."""
        self._stored = None
        await self._storage.delete(str(Url.parse(server)))

    # -- for subclasses ----------------------------------------------------------------------------

    async def _grant(self, fetch: Fetcher, server: AuthorizationServer, stored: Stored) -> Json:
        """Return the response of the token endpoint to the grant.

        Raises:
            OAuthRefused, AuthorizationFailed: no token was granted.
        """
        raise NotImplementedError

    def _client_authentication(
        self, server: AuthorizationServer, stored: Stored
    ) -> tuple[dict[str, str], Headers]:
        """Return the form members and headers that identify the client at the token endpoint."""
        return secret_authentication(server, self._client_id, self._secret)

    def _pin(self, server: AuthorizationServer) -> None:
        """Bind the credentials to an authorization server, unless they are already bound. Raise
        `AuthorizationFailed` if they are bound to another server."""
        if self._issuer not in (None, server.issuer):
            raise failed(
                f"The server names the authorization server {server.issuer[:200]!a}, but the "
                f"credentials are for {self._issuer!r}; if both are the same server, spell its issuer "
                "as the server does"
            )
        self._issuer = server.issuer

    async def _token(
        self, fetch: Fetcher, server: AuthorizationServer, stored: Stored, form: dict[str, str]
    ) -> Json:
        """Request a token for the resource; return the response. Authenticate the client, and add a
        DPoP proof if the token is to be bound to a key.

        Raises:
            AuthorizationFailed: the authorization server has no token endpoint.
        """
        endpoint = server.endpoint("token_endpoint")
        if endpoint is None:
            raise failed("The authorization server has no token endpoint")
        members, headers = self._client_authentication(server, stored)
        form = {**form, **members, "resource": server.resource}
        if not self._binds(server):
            return await fetch.post_form(endpoint, form, headers)
        key = self._key(stored)
        try:
            proof = ("DPoP", key.proof("POST", endpoint))
            return await fetch.post_form(endpoint, form, [*headers, proof])
        except OAuthRefused as error:
            if error.error != "use_dpop_nonce" or not error.nonce:
                raise
            key.nonces[endpoint.origin] = error.nonce
        proof = ("DPoP", key.proof("POST", endpoint))
        return await fetch.post_form(endpoint, form, [*headers, proof])

    # -- the life of a token -----------------------------------------------------------------------

    async def _authorize(self, refusal: AuthRefusal, challenge: dict[str, str]) -> bool:
        fetch = Fetcher(refusal.transport)
        server = await discover(fetch, refusal.server, challenge)
        stored = self._stored
        if stored is None or stored.issuer != server.issuer:
            stored = Stored(server.issuer)
        scopes = self._scopes(server, challenge, stored)
        is_step_up = refusal.status == 403
        if is_step_up and refusal.attempt > 1 and set(scopes) <= set(stored.scopes):
            text = f"The server still needs the scope {' '.join(scopes)!r}, which was requested"
            raise failed(text, 403)
        try:
            response = None if is_step_up else await self._refreshed(fetch, server, stored)
            stored.scopes = scopes
            if response is None:
                response = await self._grant(fetch, server, stored)
        except OAuthRefused as error:
            reason = f": {error.error} {error.description}".rstrip() if error.error else ""
            status = f" (HTTP status {error.status})"
            text = f"The authorization server granted no token{reason or status}"
            raise failed(text) from None
        self._take(stored, response)
        self._stored = stored
        await self._save(refusal.server, stored)
        return True

    def _scopes(
        self, server: AuthorizationServer, challenge: dict[str, str], stored: Stored
    ) -> list[str]:
        """Return the scopes to request (authorization, "Scope Selection Strategy"), including all
        earlier ones. Raise `AuthorizationFailed` if there are too many."""
        needed = challenge.get("scope", "").split() or self._wanted or server.scopes
        scopes = dict.fromkeys([*stored.scopes, *self._wanted, *needed])
        if scopes and self._wants_refresh and server.supports("scopes_supported", _OFFLINE):
            scopes[_OFFLINE] = None
        if len(scopes) > _MAX_SCOPES:
            raise failed(f"The server requires more than {_MAX_SCOPES} scopes", 403)
        return list(scopes)

    async def _refreshed(
        self, fetch: Fetcher, server: AuthorizationServer, stored: Stored
    ) -> Json | None:
        if stored.refresh_token is None:
            return None
        form = {"grant_type": "refresh_token", "refresh_token": stored.refresh_token}
        try:
            return await self._token(fetch, server, stored, form)
        except OAuthRefused:
            stored.refresh_token = None
            return None  # the refresh token has also expired, so a new grant is needed

    def _take(self, stored: Stored, response: Json) -> None:
        stored.access_token = text_member(response, "access_token", "a token")
        stored.token_type = str(response.get("token_type", "Bearer"))
        if stored.token_type.lower() not in ("bearer", "dpop"):
            raise failed("The authorization server returned a token of an unknown type")
        if self._dpop and not stored.is_bound:
            raise failed("The authorization server did not bind the token to the key (DPoP)")
        life_s = response.get("expires_in")
        stored.expires_at_ms = None
        if isinstance(life_s, (int, float)) and not isinstance(life_s, bool):
            life_ms = int(min(life_s, _LONGEST_LIFE_S) * 1_000)
            stored.expires_at_ms = self._clock.now_ms() + life_ms
        # A server that does not rotate refresh tokens returns none (RFC 6749 section 6).
        refresh = response.get("refresh_token")
        stored.refresh_token = refresh if isinstance(refresh, str) else stored.refresh_token
        stored.proof_key = self._key(stored).pem if stored.is_bound else None

    def _has_expired(self, stored: Stored) -> bool:
        expires_ms = stored.expires_at_ms
        return expires_ms is not None and self._clock.now_ms() > expires_ms - _LEEWAY_MS

    def _binds(self, server: AuthorizationServer) -> bool:
        if self._dpop is not None:
            return self._dpop
        return server.supports("dpop_signing_alg_values_supported", "ES256")

    def _key(self, stored: Stored) -> ProofKey:
        if self._proof_key is None:
            self._proof_key = ProofKey(self._clock, stored.proof_key)
        return self._proof_key

    async def _load(self, server: Url) -> None:
        self._is_loaded = True
        secret = await self._storage.load(str(server))
        if secret is not None and self._stored is None:
            try:
                self._stored = Stored(**json.loads(secret))
                self._issuer = self._issuer or self._stored.issuer
            except (ValueError, TypeError):
                await self._storage.delete(str(server))

    async def _save(self, server: Url, stored: Stored) -> None:
        try:
            await self._storage.save(str(server), json.dumps(asdict(stored)))
        except ClientError as error:  # the token is still valid in this process
            log.warning("tokens are not stored for the next process: %s", error)


def secret_authentication(
    server: AuthorizationServer,
    client_id: str | None,
    secret: str | None,
    method: str | None = None,
) -> tuple[dict[str, str], Headers]:
    """Return the form members and headers that identify a client with or without a secret. `method`
    is the method of its registration; `None` selects a method that the server supports."""
    supported: Any = server.document.get("token_endpoint_auth_methods_supported")
    methods = supported if isinstance(supported, list) else ["client_secret_basic"]
    if method is None:
        choices = ("client_secret_basic", "client_secret_post", "none")
        method = next((choice for choice in choices if choice in methods), choices[0])
    if client_id is None:
        return {}, []
    if secret is None or method == "none":
        return {"client_id": client_id}, []
    if method == "client_secret_post":
        return {"client_id": client_id, "client_secret": secret}, []
    return {}, [("Authorization", basic_authorization(client_id, secret))]
