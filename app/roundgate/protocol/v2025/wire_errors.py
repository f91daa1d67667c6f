"""The errors of these revisions: JSON-RPC's own codes, -32002 for an unknown resource, and no codes
of later revisions.

An error of a request has the status 200: 404 tells these clients that their session is gone, and
many ignore the body of any other status. Only an unreadable request, an error of HTTP itself and
`Unavailable` have another status. A call beyond `rate` is ordinary, so its client must get the text
and keep its connection, which Python's SDK closes after 429 (up to version 1.30).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from roundgate.errors import (
    GatewayError,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    ParseError,
    ProtocolError,
    QuotaExceeded,
    RateExceeded,
    ResourceNotFound,
    ToolError,
    TransportError,
    Unavailable,
)
from roundgate.protocol.revision import ErrorTable, WireError

TABLE: Final[Mapping[type[GatewayError], WireError]] = MappingProxyType(
    {
        ParseError: WireError(-32700, 400),
        InvalidRequest: WireError(-32600, 400),
        MethodNotFound: WireError(-32601, 200),
        InvalidParams: WireError(-32602, 200),
        ResourceNotFound: WireError(-32002, 200),
        TransportError: WireError(-32600, 400),
        QuotaExceeded: WireError(-32600, 429),
        RateExceeded: WireError(-32600, 200),
        Unavailable: WireError(-32600, 503),
        InternalError: WireError(-32603, 200),
        ToolError: WireError(-32603, 200),
        ProtocolError: WireError(-32600, 200),
    }
)

ERRORS: Final = ErrorTable(TABLE)
look_up, render = ERRORS.look_up, ERRORS.render
