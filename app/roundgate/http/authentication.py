"""Who is calling: found out before any route is reached, whatever the route.

    /mcp, the views            every caller that the configuration lets in
    /healthz, /.well-known/…   anybody: probes, and the documents that a client needs to get a token
    anything else              operators

An operator is a caller whose token has the scope that the configuration names for it; if it names
none, nobody is one. Without authentication the one local subject is an operator where the gateway
serves this machine alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate.auth import Principal, Verifier
from roundgate.errors import InsufficientScope
from roundgate.http import exchange
from roundgate.http.guard import HEALTH
from roundgate.http.old_transport import OLD_TRANSPORT

OPEN: Final = frozenset({HEALTH, OLD_TRANSPORT})
"""What nobody needs to be known for: whether there is a server, and that it does not
speak what it was asked in."""
PUBLIC: Final = "/.well-known/"
"""RFC 8615: where clients look before they have a token, and have to learn
what is not there too."""


class AuthenticationMiddleware:
    """Raises AuthError for callers that may not go on; says in the exchange who the others are.

    `verifiers` has that of each view, the usual one first. `nothing` answers whoever is no operator
    and cannot become one. `operator_scope` is the scope of operators. `local_operates` makes the
    one subject of a gateway without authentication an operator.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        verifiers: Mapping[str, Verifier],
        nothing: ASGIApp,
        operator_scope: str | None = None,
        local_operates: bool = False,
    ) -> None:
        self._app = app
        self._verifiers = verifiers
        self._usual = next(iter(verifiers.values()))
        self._nothing = nothing
        self._operator_scope = operator_scope
        self._local_operates = local_operates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found = exchange.of(scope)
            if found.is_mcp or not (found.path in OPEN or found.path.startswith(PUBLIC)):
                authorization = found.headers.get(b"authorization")
                verifier = self._verifiers[found.view] if found.is_mcp else self._usual
                found.principal = await verifier.principal(authorization, found.host.claims)
                if not found.is_mcp and not self._operates(found.principal):
                    await self._nothing(scope, receive, send)
                    return
        elif (
            scope["type"] == "websocket"
        ):  # nothing of ours is one, so nobody is asked who they are
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, send)

    def _operates(self, principal: Principal) -> bool:
        """Whether a caller is an operator.

        Raises:
            InsufficientScope: it is not, and a token with the scope would make it one.
        """
        if self._operator_scope is None:
            return self._local_operates
        if self._operator_scope not in principal.scopes:
            raise InsufficientScope("this address", [self._operator_scope])
        return True
