"""What a method says of an operation (RFC 9110 section 9.2), as the hints of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "QUERY"})


@cache
def hints(method: str) -> Mapping[str, bool]:
    """The tool's annotations. What is neither safe nor DELETE leaves `destructiveHint` out,
    which is taken for true."""
    safe = method in SAFE
    destroys = (
        {"destructiveHint": False}
        if safe
        else {"destructiveHint": True}
        if method == "DELETE"
        else {}
    )
    return {
        "readOnlyHint": safe,
        **destroys,
        "idempotentHint": safe or method in ("PUT", "DELETE"),
        "openWorldHint": True,
    }
