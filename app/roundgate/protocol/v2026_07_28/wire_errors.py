"""The one table: exception class → JSON-RPC code and HTTP status.

Codes are those of basic/index, "Error Codes": JSON-RPC's own (-32700, -32600 to -32603) and the
three that this revision defines (-32020 to -32022). No others are sent. Statuses are those of
streamable-http: 404 for an unknown method, 400 for every other error in the request. -32603 travels
with 200: no revision gives it a status, the official client reads the error from its body, and a
5xx would invite proxies to retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from roundgate.errors import (
    GatewayError,
    HeaderMismatch,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    MissingCapability,
    ParseError,
    ProtocolError,
    TransportError,
    Unavailable,
    UnsupportedVersion,
)
from roundgate.protocol.revision import ErrorTable, WireError

TABLE: Final[Mapping[type[GatewayError], WireError]] = MappingProxyType(
    {
        ParseError: WireError(-32700, 400),
        InvalidRequest: WireError(-32600, 400),
        MethodNotFound: WireError(-32601, 404),
        InvalidParams: WireError(-32602, 400),
        HeaderMismatch: WireError(-32020, 400),
        MissingCapability: WireError(-32021, 400),
        UnsupportedVersion: WireError(-32022, 400),
        TransportError: WireError(-32600, 400),
        Unavailable: WireError(-32600, 503),
        InternalError: WireError(-32603, 200),
        ProtocolError: WireError(
            -32600, 400
        ),  # of ours each has its row above; a handler may raise one of its own
    }
)

ERRORS: Final = ErrorTable(TABLE)
look_up, render, kept_error = ERRORS.look_up, ERRORS.render, ERRORS.kept
