"""Which revision a request is of: 2026-07-28, or one of those with sessions (basic/versioning).

A request of 2026-07-28 says so in its header and in its `_meta`. One that says neither is of
the others if it opens a session or belongs to one: by its header, by the session's id, or
because it is `initialize`. Where both are said, the later revision counts, and a session's id
on its requests means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roundgate.protocol.versions import SUPPORTED_VERSIONS

VERSION_HEADER: Final = b"mcp-protocol-version"
SESSION_HEADER: Final = b"mcp-session-id"
_METHOD_HEADER: Final = b"mcp-method"
_MODERN: Final = frozenset(version.encode() for version in SUPPORTED_VERSIONS)
_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"


def may_be_older(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the head leaves it open: one look, which is all that a request of 2026-07-28 pays."""
    version = headers.get(VERSION_HEADER)
    return version not in _MODERN and (version is None or version.strip() not in _MODERN)


def is_older(headers: Mapping[bytes, bytes], body: Any) -> bool:
    """Whether a request, of which the head leaves it open, is of a revision with
    sessions; `body` is decoded."""
    version = headers.get(VERSION_HEADER, b"").strip()
    if _is_modern(body):
        return False
    if SESSION_HEADER in headers or (isinstance(body, dict) and body.get("method") == "initialize"):
        return True
    # no client of these revisions sends the method's name; a version that nobody knows is
    # told there which there are
    return version != b"" and _METHOD_HEADER not in headers


def _is_modern(body: Any) -> bool:
    params = body.get("params") if isinstance(body, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and _VERSION_KEY in meta
