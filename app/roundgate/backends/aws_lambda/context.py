"""What a function is told of its call beside the payload: the client context
(API `Invoke`, `ClientContext`).

    {"custom": {"roundgate": {"tool": "orders__find", "subject": "ada", "issuer":
    "https://…", "client": "app",
                              "key": "…", "exchange": 1, "traceparent": "00-…"}}}

`custom` is where the runtimes of Python and Java look. The caller's token is not in it, and
nothing that it could be made of. Nothing about who calls is ever cut: half of a subject
could be somebody else's.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from roundgate import json
from roundgate.auth import Principal
from roundgate.errors import ToolError
from roundgate.observability.tracing import outgoing
from roundgate.protocol import without_none

MAX_CHARS: Final = 3_583
"""Of the client context in base64."""
_MAY_BE_LEFT_OUT: Final = ("baggage", "tracestate", "traceparent")
"""What goes first where there is no room for all."""


def facts(
    tool: str, principal: Principal, key: str | None, exchange: int, meta: Mapping[str, Any]
) -> dict[str, Any]:
    """What a function is told.

    Args:
        tool: its whole name.
        principal: who calls.
        key: the same however often this invocation is made, for a function that wants to do it
            once; `None` for one that only looks.
        exchange: which one of a dialogue it is, from 1.
        meta: of the request, which may have a trace context.

    Raises:
        ToolError: a name of who calls has half a surrogate pair: written down, it
            would become somebody else's.
    """
    try:
        "".join(principal.identity).encode()
    except UnicodeEncodeError:
        raise ToolError(
            "Who calls has a name that is no text; a function cannot be told it"
        ) from None
    return {
        "tool": tool,
        "subject": principal.subject,
        "issuer": principal.issuer,
        **without_none(client=principal.client_id or None, key=key),
        "exchange": exchange,
        **outgoing(meta),
    }


def encoded(told: Mapping[str, Any]) -> str:
    """As boto3 wants it: JSON in base64.

    Raises:
        ToolError: it does not fit, even without the trace.
    """
    kept = dict(told)
    for name in (*_MAY_BE_LEFT_OUT, None):
        text = base64.b64encode(json.encode({"custom": {"roundgate": kept}})).decode()
        if len(text) <= MAX_CHARS:
            return text
        kept.pop(name or "", None)
    raise ToolError(
        f"Who calls takes {len(text)} characters, and a function can be told {MAX_CHARS};"
        " use a shorter subject, or set client_context: false for this back end"
    )
