"""One HTTP request on its way through the layers: what each of them has found out, and its line in
the log.

RequestMiddleware ─makes it, media types, principal→ McpEndpoint
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Scope

from roundgate.auth import Principal
from roundgate.http.responder import Responder
from roundgate.observability import REQUESTS
from roundgate.observability.correlation import Correlation
from roundgate.protocol import NEWEST, Headers, RequestId, Revision

EXTENSION: Final = "roundgate"


@dataclass(frozen=True, slots=True)
class Hosting:
    """Facts about one request that its hosting environment knows and a server does not: an extension
    of the ASGI scope. Only an entry point sets it (`roundgate.lambda_http`); no client can."""

    remaining_ms: float | None = None
    """For how long the environment lets it run."""
    claims: Mapping[str, Any] | None = None
    """What an authorizer in front has found in a token that it verified."""

    def put(self, scope: MutableMapping[str, Any]) -> None:
        """Into an ASGI scope."""
        scope["extensions"] = {**scope.get("extensions", {}), EXTENSION: self}


_NONE: Final = Hosting()


def hosting_of(scope: Mapping[str, Any]) -> Hosting:
    """Return the facts in an ASGI scope."""
    found = (scope.get("extensions") or {}).get(EXTENSION)
    return found if isinstance(found, Hosting) else _NONE


log: Final = logging.getLogger(REQUESTS)

_KEY: Final = "roundgate.exchange"
_HEADERS: Final = "roundgate.headers"


class Exchange:
    """One request and its answer. What nobody has found out yet has the value that stands here."""

    accepted: frozenset[bytes] = frozenset()
    """Which of JSON and event streams the client takes."""
    principal: Principal | None = None
    revision: Revision = NEWEST
    """The one that the client speaks."""
    request_id: RequestId | None = None
    method: str | None = None
    name: str | None = None
    code: int | None = None
    label: str = "ok"
    """How it ended, in a word: the `outcome` of its line in the log, which
    that of a handler is not."""
    error: str | None = None
    reason: str | None = None
    """Why a tool failed, in a word or two."""
    trace: str | None = None
    is_read: bool = False
    """Whether somebody has read its body, or begun to."""
    is_element: bool = False
    """Whether this is one message of a batch."""
    held_bytes: int = 0
    """What its body has taken of the budget."""

    def __init__(self, scope: Scope, endpoints: Mapping[str, str], responder: Responder) -> None:
        self.path = route_path(scope) if scope.get("root_path") else scope["path"]
        """As the app's own routes have it, without what a proxy puts in front."""
        view = endpoints.get(self.path)
        self.is_mcp = view is not None
        """Whether it is for an MCP endpoint: they are at these paths."""
        self.view = view or ""
        """The view that it is for; empty for the endpoint of everything."""
        self.headers = headers_of(scope)
        self.host = hosting_of(scope)
        self.responder = responder
        self.correlation = Correlation()
        """The ids of the call, for the log."""
        scope[_KEY] = self

    @property
    def caller(self) -> Principal:
        """Who it is from.

        Raises:
            RuntimeError: nobody has looked: no layer authenticates requests.
        """
        if self.principal is None:
            raise RuntimeError("the request was not authenticated")
        return self.principal

    def element(self) -> Exchange:
        """Return the exchange of one message of a batch, which has no status and size of its own."""
        element = copy(self)
        element.is_element, element.method, element.correlation = True, None, Correlation()
        return element

    def write_line(self, took_ms: float) -> None:
        """Write the log line of this request, without what callers said to tools or tools to
        callers."""
        if not log.isEnabledFor(logging.INFO):
            return
        fields: dict[str, Any] = {}
        if self.view:
            fields["view"] = self.view
        if self.method is not None:
            fields["method"] = self.method[:100]
        ids = self.correlation
        name = ids.tool or self.name
        if name is not None:
            fields["name"] = name[:200]
        if ids.through is not None:
            fields["through"] = ids.through
        if ids.known_call_id is not None:
            fields["call"] = ids.known_call_id
        if ids.task is not None:
            fields["task"] = ids.task
        if self.principal is not None:
            fields |= self.principal.names
        if self.responder.status and not self.is_element:
            fields["status"] = self.responder.status
        fields["outcome"] = self.label
        if self.code is not None:
            fields["code"] = self.code
        if self.error is not None:
            fields["error"] = self.error
        if self.reason is not None:
            fields["reason"] = self.reason
        if self.trace is not None:
            fields["trace"] = self.trace[:55]
        fields["ms"] = round(took_ms, 2)
        if not self.is_element:
            fields["bytes"] = self.responder.bytes_sent
        log.info("request", extra={"fields": fields})


def of(scope: Scope) -> Exchange:
    """From an ASGI scope of an HTTP request, inside `RequestMiddleware`."""
    found: Exchange = scope[_KEY]
    return found


def leave(scope: Scope) -> None:
    """The request is over. Server, scope, exchange and `send` would keep each other alive: 27
    objects a request, which only the garbage collector would find, a tenth of what a call costs."""
    del scope[_KEY]


def headers_of(scope: Scope) -> Headers:
    """The headers of a request, which are read from its scope once, for all layers."""
    found: Headers | None = scope.get(_HEADERS)
    if found is None:
        found = scope[_HEADERS] = Headers.of(scope["headers"])
    return found


def route_path(scope: Scope) -> str:
    """The path as the app's own routes have it: Starlette's rule, which the router follows too."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and (path == root or path.startswith(root + "/")) else path
