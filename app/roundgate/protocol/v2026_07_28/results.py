"""The results of this revision: each has `resultType` and `serverInfo`, and a cacheable result has
its caching time and scope.

    {"resultType": "complete", …, "ttlMs": 60000, "cacheScope": "public",
    "_meta": {".../serverInfo": {…}}}

See basic/index ("Results") and server/utilities/caching.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

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
    QuotaExceeded,
    RateExceeded,
    TransportError,
    Unavailable,
    UnsupportedVersion,
)
from roundgate.json import encode
from roundgate.protocol.revision import CacheHint, ErrorTable, WireError

SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"


class Results:
    """The format of one server's results. `server_info` is the schema's `Implementation`."""

    def __init__(self, server_info: Mapping[str, Any]) -> None:
        self._meta = {SERVER_INFO: dict(server_info)}

    def write(self, result: Mapping[str, Any], cache: CacheHint | None = None) -> bytes:
        """Return a result as JSON. It is complete unless it has a `resultType` of its own.

        Raises:
            TypeError, ValueError, RecursionError: a part of it is not JSON.
        """
        written = {"resultType": "complete", **result}
        if cache is not None:
            written |= {"ttlMs": cache.ttl_ms, "cacheScope": cache.scope}
        meta = written.get("_meta")
        written["_meta"] = self._meta if meta is None else {**meta, **self._meta}
        return encode(written)

    def rest(self, cache: CacheHint | None = None) -> bytes:
        """Return the end of a result whose members are serialised already: a comma, and all up to
        the last brace."""
        return b"," + self.write({}, cache)[1:]

    def entries(self, member: str, entries: bytes) -> bytes:
        """Return the entries of a list unchanged, because the catalog has them in the form of this
        revision."""
        return entries

    def input_required(self, requests: Mapping[str, Any], request_state: str) -> bytes:
        """Return the schema's `InputRequiredResult`: the questions by key, if any, and the state
        of the call."""
        members = {"inputRequests": dict(requests)} if requests else {}
        return self.write(
            {"resultType": "input_required", **members, "requestState": request_state}
        )


def result_format(server_info: Mapping[str, Any]) -> Results:
    """Return the format of a server's results. `server_info` is the schema's `Implementation`."""
    return Results(server_info)


def kept_result(result: Mapping[str, Any]) -> bytes:
    """Return the `result` of a completed task as JSON, without the server's `_meta`.

    Raises:
        TypeError, ValueError, RecursionError: a part of it is not JSON.
    """
    return encode({"resultType": "complete", **result})


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
        QuotaExceeded: WireError(-32600, 429),
        RateExceeded: WireError(-32600, 429),
        Unavailable: WireError(-32600, 503),
        InternalError: WireError(-32603, 200),
        ProtocolError: WireError(
            -32600, 400
        ),  # Roundgate's own errors have a row above; a handler may define others
    }
)
"""The codes of basic/index, "Error Codes", and the statuses of streamable-http: 404 for an
unknown method, 400 for every other error in a request. -32603 travels with 200: no revision
gives it a status, the official client reads the error from the body, and a 5xx would invite
proxies to retry."""

ERRORS: Final = ErrorTable(TABLE)
look_up, render, kept_error = ERRORS.look_up, ERRORS.render, ERRORS.kept
