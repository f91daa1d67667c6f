"""What all OAuth grants share: discovery, scopes, the token endpoint, refresh,
step-up, and what is kept.

A subclass says how a first token is had (`_grant`). Everything a token belongs to is kept with it:
the issuer, the scopes that were asked for, the registration of the client, the key it is bound to.
When the MCP server names another issuer, nothing of the old one is used again (client-registration,
"Authorization Server Binding").
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from roundgate.client.auth.base import Refusal, refuse_plain
from roundgate.client.auth.metadata import (
    Fetcher,
    Server,
    challenge_parameters,
    discover,
    text_member,
)
from roundgate.client.auth.storage import InMemory, TokenStorage
from roundgate.client.transport import Url
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import AuthorizationFailed, ClientError, OAuthRefused
from roundgate.net.oauth import basic_authorization

if TYPE_CHECKING:
    from roundgate.client.auth.dpop import ProofKey

log = logging.getLogger("roundgate.client")

_LEEWAY_MS: Final = 30_000
_LONGEST_LIFE_S: Final = 10 * 365 * 86_400
_MAX_SCOPES: Final = 200
OFFLINE: Final = "offline_access"


@dataclass(slots=True)
class Kept:
    """What is known of one server: a token and all it belongs to."""

    issuer: str
    access_token: str = ""
    token_type: str = "Bearer"  # noqa: S105 — the name of a scheme
    expires_at_ms: int | None = None
    refresh_token: str | None = None
    scopes: list[str] = field(default_factory=list)
    """All that was ever asked for, so that a step up loses nothing."""
    registration: Json = field(default_factory=dict)
    proof_key: str | None = None

    def __repr__(self) -> str:
        return f"Kept({self.issuer!r}, …)"


class OAuth:
    """Base of the grants. `dpop` is `None` to bind tokens to a key wherever the
    authorization server can."""

    def __init__(
        self,
        *,
        scopes: Sequence[str] = (),
        storage: TokenStorage | None = None,
        dpop: bool | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._wanted = list(scopes)
        self._storage = storage or InMemory()
        self._dpop = dpop
        self._clock = clock or Clock()
        self._kept: Kept | None = None
        self._proof_key: ProofKey | None = None
        self._lock = asyncio.Lock()
        self._is_loaded = False
        self._issuer: str | None = None
        """The authorization server that the credentials are for, once that is known."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    async def headers(self, method: str, url: Url) -> Sequence[tuple[str, str]]:
        refuse_plain(url)
        if not self._is_loaded:
            await self._load(url)
        kept = self._kept
        if kept is None or not kept.access_token or self._is_over(kept):
            return []
        if kept.token_type.lower() != "dpop":
            return [("Authorization", f"Bearer {kept.access_token}")]
        proof = self._key(kept).proof(method, url, kept.access_token)
        return [("Authorization", f"DPoP {kept.access_token}"), ("DPoP", proof)]

    async def renew(self, refusal: Refusal) -> bool:
        challenge = challenge_parameters(refusal.challenge)
        seen = self._kept and self._kept.access_token
        async with self._lock:
            if self._kept is not None and self._kept.access_token != seen:
                return True  # somebody else was refused as well, and has a new token by now
            if (
                challenge.get("error") == "use_dpop_nonce"
                and refusal.nonce
                and self._kept is not None
            ):
                self._key(self._kept).nonces[refusal.server.origin] = refusal.nonce
                return True
            if refusal.status == 403 and challenge.get("error") != "insufficient_scope":
                return False
            return await self._authorize(refusal, challenge)

    async def forget(self, server: str) -> None:
        """Log out of a server, as far as this machine goes."""
        self._kept = None
        await self._storage.delete(str(Url.parse(server)))

    # -- for subclasses
    # ---------------------------------------------------------------------------------------------

    async def _grant(self, fetch: Fetcher, server: Server, kept: Kept) -> Json:
        """A token response.

        Raises:
            OAuthRefused, AuthorizationFailed: there is none.
        """
        raise NotImplementedError

    def _client_authentication(
        self, server: Server, kept: Kept
    ) -> tuple[dict[str, str], list[tuple[str, str]]]:
        """What a request to the token endpoint says of the client: form members and headers."""
        raise NotImplementedError

    async def _token(
        self, fetch: Fetcher, server: Server, kept: Kept, form: dict[str, str]
    ) -> Json:
        """A request to the token endpoint, for the resource, with the client's
        authentication and a proof."""
        endpoint = server.endpoint("token_endpoint")
        if endpoint is None:
            raise AuthorizationFailed(401, "The authorization server has no token endpoint")
        about_client, headers = self._client_authentication(server, kept)
        form = {**form, **about_client, "resource": server.resource}
        for attempt in (1, 2):
            proof = (
                [("DPoP", self._key(kept).proof("POST", endpoint))] if self._binds(server) else []
            )
            try:
                return await fetch.post_form(endpoint, form, [*headers, *proof])
            except OAuthRefused as error:
                if attempt == 2 or error.error != "use_dpop_nonce" or not error.nonce:
                    raise
                self._key(kept).nonces[endpoint.origin] = error.nonce
        raise AssertionError("the second attempt returns or raises")

    # -- how it is done
    # ---------------------------------------------------------------------------------------------

    async def _authorize(self, refusal: Refusal, challenge: dict[str, str]) -> bool:
        fetch = Fetcher(refusal.transport, refusal.limits)
        server = await discover(fetch, refusal.server, challenge)
        kept = self._kept
        if kept is None or kept.issuer != server.issuer:
            kept = Kept(server.issuer)
        asked = self._scopes(server, challenge, kept)
        is_step_up = refusal.status == 403
        if is_step_up and refusal.attempt > 1 and set(asked) <= set(kept.scopes):
            raise AuthorizationFailed(
                403, f"The server still wants the scope {' '.join(asked)!r}, which was asked for"
            )
        try:
            response = None if is_step_up else await self._refreshed(fetch, server, kept)
            kept.scopes = asked
            if response is None:
                response = await self._grant(fetch, server, kept)
        except OAuthRefused as error:
            said = (
                f": {error.error} {error.description}".rstrip()
                if error.error
                else f" (HTTP status {error.status})"
            )
            raise AuthorizationFailed(
                401, f"The authorization server gave no token{said}"
            ) from None
        self._take(kept, server, response)
        self._kept = kept
        await self._save(refusal.server)
        return True

    def _scopes(self, server: Server, challenge: dict[str, str], kept: Kept) -> list[str]:
        """What to ask for (authorization, "Scope Selection Strategy"): never less than before."""
        named = challenge.get("scope", "").split()
        needed = named or self._wanted or list(server.scopes or ())
        asked = list(dict.fromkeys([*kept.scopes, *self._wanted, *needed]))
        if asked and server.supports("scopes_supported", OFFLINE) and self._wants_refresh:
            asked = list(dict.fromkeys([*asked, OFFLINE]))
        if len(asked) > _MAX_SCOPES:
            raise AuthorizationFailed(403, f"The server wants more than {_MAX_SCOPES} scopes")
        return asked

    _wants_refresh = False

    async def _refreshed(self, fetch: Fetcher, server: Server, kept: Kept) -> Json | None:
        if kept.refresh_token is None:
            return None
        form = {"grant_type": "refresh_token", "refresh_token": kept.refresh_token}
        kept.refresh_token = None
        try:
            return await self._token(fetch, server, kept, form)
        except OAuthRefused:
            return None  # it is over, too: the user has to log in again

    def _take(self, kept: Kept, server: Server, response: Json) -> None:
        kept.access_token = text_member(response, "access_token", "a token")
        kept.token_type = str(response.get("token_type", "Bearer"))
        if kept.token_type.lower() not in ("bearer", "dpop"):
            raise AuthorizationFailed(
                401, "The authorization server gave a token of an unknown type"
            )
        if self._dpop and kept.token_type.lower() != "dpop":
            raise AuthorizationFailed(
                401, "The authorization server did not bind the token to the key (DPoP)"
            )
        lasts_s = response.get("expires_in")
        if isinstance(lasts_s, (int, float)) and not isinstance(lasts_s, bool):
            lasts_ms = int(min(lasts_s, _LONGEST_LIFE_S) * 1_000)
            kept.expires_at_ms = self._clock.now_ms() + lasts_ms
        else:
            kept.expires_at_ms = None
        refresh = response.get("refresh_token")
        kept.refresh_token = refresh if isinstance(refresh, str) else kept.refresh_token
        kept.proof_key = self._key(kept).pem if kept.token_type.lower() == "dpop" else None

    def _is_over(self, kept: Kept) -> bool:
        # Without a way to a new one it is sent all the same: the server decides, and its
        # refusal leads to a new login.
        return (
            kept.expires_at_ms is not None
            and self._clock.now_ms() > kept.expires_at_ms - _LEEWAY_MS
        )

    def _binds(self, server: Server) -> bool:
        if self._dpop is not None:
            return self._dpop
        return server.supports("dpop_signing_alg_values_supported", "ES256")

    def _key(self, kept: Kept) -> ProofKey:
        if self._proof_key is None:
            from roundgate.client.auth.dpop import ProofKey

            self._proof_key = ProofKey(self._clock, kept.proof_key)
        return self._proof_key

    async def _load(self, server: Url) -> None:
        self._is_loaded = True
        secret = await self._storage.load(str(server))
        if secret is not None and self._kept is None:
            try:
                self._kept = Kept(**json.loads(secret))
                self._issuer = self._issuer or self._kept.issuer
            except (ValueError, TypeError):
                await self._storage.delete(str(server))

    async def _save(self, server: Url) -> None:
        if self._kept is not None:
            try:
                await self._storage.save(str(server), json.dumps(asdict(self._kept)))
            except (
                ClientError
            ) as error:  # the token is good all the same, for as long as this process lives
                log.warning("tokens are not kept for the next process: %s", error)


def secret_authentication(
    server: Server, client_id: str, secret: str | None, method: str | None = None
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """How a client with a secret, or without one, tells who it is: as its registration says,
    else as the server can."""
    if secret is None or method == "none":
        return {"client_id": client_id}, []
    known: Any = server.document.get("token_endpoint_auth_methods_supported")
    methods = known if isinstance(known, list) else ["client_secret_basic"]
    if method is None:
        choices = ("client_secret_basic", "client_secret_post", "none")
        method = next((one for one in choices if one in methods), "client_secret_basic")
    if method == "client_secret_post":
        return {"client_id": client_id, "client_secret": secret}, []
    if method == "none":
        return {"client_id": client_id}, []
    return {}, [("Authorization", basic_authorization(client_id, secret))]
