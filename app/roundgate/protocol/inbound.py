"""A valid request, whichever revision it came in: what a revision's package makes of
a message and its headers.

`protocol.revision.Revision.validate_request` makes one; `methods` serves it
without knowing the revision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate.protocol.capabilities import ClientCapabilities
from roundgate.protocol.header_lines import Headers
from roundgate.protocol.jsonrpc import RequestId

LOG_LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
"""RFC 5424 severities, least severe first (server/utilities/logging)."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What the client says about itself and about the answer that it wants."""

    capabilities: ClientCapabilities
    client_info: dict[str, Any] | None
    log_level: str | None
    progress_token: str | int | None
    raw: Mapping[str, Any] = field(default_factory=dict)
    """All of `params._meta`, for what is not ours to interpret: trace context, extensions."""


@dataclass(frozen=True, slots=True)
class Inbound:
    """One request that is valid in its revision and whose method is served."""

    id: RequestId
    method: str
    name: str | None
    """The tool, prompt, URI or task that it is about, where its method has one."""
    params: dict[str, Any]
    meta: Meta
    version: str
    """The revision that it is written in."""
    headers: Headers | None = None
    """The headers that it came with, where some mirror arguments (`x-mcp-header`); `None` in a
    revision in which none do."""
