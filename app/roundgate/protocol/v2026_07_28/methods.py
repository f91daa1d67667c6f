"""The methods of the revision: what it defines for a client to call, and
what earlier revisions did.

A server capability decides whether a method is served (`MethodNotFound` otherwise), so what
`server/discover` advertises and what is answered cannot differ. Who serves a method is in the
table of `roundgate.methods.table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from roundgate.errors import MethodNotFound
from roundgate.protocol.revision import Route
from roundgate.protocol.versions import SUPPORTED_VERSIONS

PROTOCOL_VERSION: Final = "2026-07-28"


METHODS: Final[Mapping[str, Route]] = MappingProxyType(
    {
        "server/discover": Route(None),
        "tools/list": Route("tools"),
        "tools/call": Route("tools", named_by="name"),
        "resources/list": Route("resources"),
        "resources/templates/list": Route("resources"),
        "resources/read": Route("resources", named_by="uri"),
        "prompts/list": Route("prompts"),
        "prompts/get": Route("prompts", named_by="name"),
        "completion/complete": Route("completions"),
        "subscriptions/listen": Route("subscriptions"),
    }
)
"""The revision's own methods; those of extensions are in `methods.extensions`."""

SUCCESSORS: Final = MappingProxyType(
    {
        "initialize": "every request carries its own protocol version and capabilities in params._meta",
        "ping": "call server/discover to see whether the server answers",
        "logging/setLevel": 'set params._meta["io.modelcontextprotocol/logLevel"] on each request instead',
        "resources/subscribe": "open subscriptions/listen with notifications.resourceSubscriptions",
        "resources/unsubscribe": "close the stream of subscriptions/listen",
        "tasks/result": "the result is in the answer of tasks/get once the task is completed",
        "tasks/list": "keep the taskId of each task; tasks/get reads one",
        "tasks/input_response": "answer the questions of a task with tasks/update",
    }
)
"""Methods of earlier revisions and drafts → what to do instead (changelog; SEP-2575, SEP-2663)."""


def not_found(method: str, route: Route | None = None) -> MethodNotFound:
    """Return the error for a method that is not served; it names the successor if there is one.
    `route` is that of a method that other servers have."""
    if method == "initialize":
        versions = ", ".join(SUPPORTED_VERSIONS)
        message = f"Method not found: initialize was removed; this server speaks {versions}: {SUCCESSORS[method]}"
        return MethodNotFound(message, SUPPORTED_VERSIONS)
    if method in SUCCESSORS:
        return MethodNotFound(f"Method not found: {method} was removed; {SUCCESSORS[method]}")
    if route is not None:
        return MethodNotFound(
            f"Method not found: this server offers no {route.feature}; see server/discover"
        )
    return MethodNotFound(f"Method not found: {method[:100]}")
