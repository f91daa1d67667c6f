"""An app whose MCP endpoints are reached without what Starlette, or FastAPI, has around everything.

    any request      FastAPI ▶ Starlette ▶ errors ▶ telemetry ▶ body limit ▶ our layers ▶ router
    an MCP endpoint  ─────────────────────────────────────────────────────▶ our layers

Those outside change nothing for an MCP endpoint: our layers answer whatever is raised in them,
bound bodies, and make the spans. To go through them takes a tenth of a `tools/call`
(docs/decisions/0041). It is an ordinary app all the same: what somebody adds to it applies to every
request, since from then on every request goes through everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send


class ShortcutApp(Starlette):
    """See the module. Together with FastAPI it is a base of `roundgate.main`'s.

    Args:
        paths: those of the MCP endpoints, as requests have them.
        middleware: our layers, outermost first.
        more: what Starlette takes, or FastAPI.
    """

    def __init__(self, paths: Iterable[str], middleware: Sequence[Middleware], **more: Any) -> None:
        super().__init__(middleware=middleware, **more)
        self._shortcuts = frozenset(spelled for path in paths for spelled in (path, path + "/"))
        self._layers = list(middleware)
        self._outermost: ASGIApp | None = None
        """The first of our layers, once they are made and if nothing of somebody
        else's is around them."""

    def build_middleware_stack(self) -> ASGIApp:
        """Made for the first request; no middleware can be added after that."""
        stack = super().build_middleware_stack()
        if self.user_middleware == self._layers:
            self._outermost = _first_of(self._layers[0].cls, stack)
        return stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            self._outermost is not None
            and scope["type"] == "http"
            and scope["path"] in self._shortcuts
        ):
            scope["app"] = self
            await self._outermost(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _first_of(kind: Any, stack: Any) -> ASGIApp | None:
    """The outermost layer of a kind, if all around it are plain layers."""
    while stack is not None and not isinstance(stack, kind):
        stack = getattr(stack, "app", None)
    found: ASGIApp | None = stack
    return found
