"""The methods of the revision: what it defines for a client to call, and
what earlier revisions did.

A server capability decides whether a method is served (`MethodNotFound` otherwise), so what
`server/discover` advertises and what is answered cannot differ. Who serves a method is in the
table of `roundgate.methods.table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from roundgate.errors import MethodNotFound
from roundgate.protocol.versions import SUPPORTED_VERSIONS

PROTOCOL_VERSION: Final = "2026-07-28"


@dataclass(frozen=True, slots=True)
class Method:
    """One row. `mcp_name` is the member of params that `Mcp-Name` mirrors; `feature` is what
    must be served for it."""

    name: str
    feature: str | None
    mcp_name: str | None = None
    needs_mcp_name: bool = True
    """Whether a request without the header is refused; one that contradicts the body always is."""


def _rows(*methods: Method) -> Mapping[str, Method]:
    return MappingProxyType({method.name: method for method in methods})


METHODS: Final = _rows(
    Method("server/discover", feature=None),
    Method("tools/list", feature="tools"),
    Method("tools/call", feature="tools", mcp_name="name"),
    Method("resources/list", feature="resources"),
    Method("resources/templates/list", feature="resources"),
    Method("resources/read", feature="resources", mcp_name="uri"),
    Method("prompts/list", feature="prompts"),
    Method("prompts/get", feature="prompts", mcp_name="name"),
    Method("completion/complete", feature="completions"),
    Method("subscriptions/listen", feature="subscriptions"),
    # the extension demands the header of clients, for routing that we have no use for;
    # FastMCP 4.1 does not send it
    Method("tasks/get", feature="tasks", mcp_name="taskId", needs_mcp_name=False),
    Method("tasks/update", feature="tasks", mcp_name="taskId", needs_mcp_name=False),
    Method("tasks/cancel", feature="tasks", mcp_name="taskId", needs_mcp_name=False),
)

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


def not_found(method: str) -> MethodNotFound:
    """The error for a method that is not served, naming the successor where there is one."""
    if method == "initialize":
        versions = ", ".join(SUPPORTED_VERSIONS)
        message = f"Method not found: initialize was removed; this server speaks {versions}: {SUCCESSORS[method]}"
        return MethodNotFound(message, SUPPORTED_VERSIONS)
    if method in SUCCESSORS:
        return MethodNotFound(f"Method not found: {method} was removed; {SUCCESSORS[method]}")
    if method in METHODS:
        return MethodNotFound(
            f"Method not found: this server offers no {METHODS[method].feature}; see server/discover"
        )
    return MethodNotFound(f"Method not found: {method[:100]}")
