"""Names and values of OpenTelemetry's semantic conventions for MCP (semantic-conventions-genai,
`docs/gen-ai/mcp.md`), and the rules that bound the number of their values.

Clients choose methods and codes, and servers choose codes. A value outside the known ones is
recorded as `_OTHER`, so a stranger cannot make a metric grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

OTHER: Final = "_OTHER"
"""The value for everything that the conventions and this gateway do not know."""

DURATIONS_S: Final = (0.01, 0.05, 0.2, 0.5, 1, 5, 30, 60, 300)
"""The bucket boundaries of the durations of MCP operations and sessions, in seconds: nine of the
fourteen of the conventions, because each is a series of Prometheus for each tool."""
HTTP_DURATIONS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""The bucket boundaries of the durations of HTTP requests, in seconds."""

METHODS: Final = frozenset(
    {
        *("completion/complete", "elicitation/create", "initialize", "logging/setLevel"),
        *("notifications/cancelled", "notifications/initialized", "notifications/message"),
        *("notifications/progress", "notifications/prompts/list_changed"),
        *("notifications/resources/list_changed", "notifications/resources/updated"),
        *("notifications/roots/list_changed", "notifications/tools/list_changed"),
        *("ping", "prompts/get", "prompts/list", "resources/list", "resources/read"),
        *("resources/subscribe", "resources/templates/list", "resources/unsubscribe"),
        *("roots/list", "sampling/createMessage", "tools/call", "tools/list"),
        # of 2026-07-28 and its extensions, which the conventions do not list yet
        *("server/discover", "subscriptions/listen", "tasks/get", "tasks/update", "tasks/cancel"),
        *("skills/list", "skills/get", "resources/directory/read"),
    }
)
"""The methods that are recorded by name."""

INTERNAL: Final = -32603
_CALLERS_FAULTS: Final = frozenset({-32700, -32600, -32601, -32602, -32002})
"""Codes of requests that the server could not serve, which are not errors of the server."""
_CODES: Final = frozenset({*_CALLERS_FAULTS, INTERNAL, *range(-32029, -32019), -32000, -32001})
"""The codes that are recorded as they are: of JSON-RPC, of MCP, and of the official SDKs."""

_NAMED_BY: Final[Mapping[str, tuple[str, str]]] = {
    "tools/call": ("name", "gen_ai.tool.name"),
    "prompts/get": ("name", "gen_ai.prompt.name"),
    "resources/read": ("uri", "mcp.resource.uri"),
    "resources/subscribe": ("uri", "mcp.resource.uri"),
    "resources/unsubscribe": ("uri", "mcp.resource.uri"),
}
"""The member of the params, and the attribute, with the target of a method."""


def known_method(method: str) -> str:
    """Return a method, or `_OTHER`."""
    return method if method in METHODS else OTHER


def known_code(code: int) -> str:
    """Return a JSON-RPC error code as text, or `_OTHER`."""
    return str(code) if code in _CODES else OTHER


def is_servers_error(code: int) -> bool:
    """Return whether a JSON-RPC error code in a response is an error of the server."""
    return code not in _CALLERS_FAULTS


def target_attribute(method: str) -> str | None:
    """Return the attribute that has the target of a method; `None` without one."""
    named_by = _NAMED_BY.get(method)
    return None if named_by is None else named_by[1]


def target_in(method: str, params: Mapping[str, Any]) -> str | None:
    """Return the tool, prompt or URI that a request names; `None` without one."""
    named_by = _NAMED_BY.get(method)
    value = None if named_by is None else params.get(named_by[0])
    return value if isinstance(value, str) else None
