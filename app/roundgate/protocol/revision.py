"""The port of a revision of MCP, which reads requests and writes results and errors.

A revision is a module beside this one with these functions; `protocol.revisions` is
their table. The code between reading and writing (methods, tools, the engine, tasks) does not
depend on the revision.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from roundgate.errors import GatewayError, InvalidRequest, TransportError
from roundgate.json import encode
from roundgate.protocol.content import without_none
from roundgate.protocol.jsonrpc import Headers, Inbound, Request, RequestId, error_response


class WireError(Struct, frozen=True):
    """The JSON-RPC code and the HTTP status of one class of error."""

    code: int
    status: int


class ErrorTable:
    """The errors of one revision. `rows` may leave out a class whose base has a row."""

    def __init__(self, rows: Mapping[type[GatewayError], WireError]) -> None:
        self._rows = rows

    def look_up(self, error: GatewayError) -> WireError:
        """Return the row of an error's class, or of the nearest base class that has a row.

        Raises:
            KeyError: no client gets this class as a JSON-RPC error (`ToolError`, `ConfigError`).
        """
        for cls in type(error).__mro__:
            if cls in self._rows:
                row = self._rows[cls]
                return (
                    WireError(row.code, error.status) if isinstance(error, TransportError) else row
                )
        raise KeyError(type(error).__name__)

    def render(self, error: GatewayError, request_id: RequestId | None) -> tuple[int, bytes]:
        """Return HTTP status and JSON-RPC error response for an error; raise KeyError as
        `look_up`."""
        row = self.look_up(error)
        if request_id is None and isinstance(error, InvalidRequest):
            request_id = error.request_id
        return row.status, error_response(request_id, row.code, str(error), error.data)

    def kept(self, error: GatewayError) -> bytes:
        """Return the `error` of a failed task as JSON; raise KeyError as `look_up`."""
        return encode(
            {
                "code": self.look_up(error).code,
                "message": str(error),
                **without_none(data=error.data),
            }
        )


class Route(Struct, frozen=True):
    """The checks of one method before its params are read."""

    feature: str | None
    """The feature that must be served for the method; `None` for a method that every server has."""
    named_by: str | None = None
    """The member of params that `Mcp-Name` mirrors."""
    needs_name_header: bool = True
    """Whether a request without `Mcp-Name` is refused; a wrong header is always refused."""


class CacheHint(Protocol):
    """The time for which a result may be cached, and its scope."""

    @property
    def ttl_ms(self) -> int: ...
    @property
    def scope(self) -> str: ...


class ResultFormat(Protocol):
    """The format of one server's results in one revision."""

    def write(self, result: Mapping[str, Any], cache: CacheHint | None = None) -> bytes:
        """Return a result as JSON.

        Raises:
            TypeError, ValueError, RecursionError: a part of it is not JSON.
        """

    def rest(self, cache: CacheHint | None = None) -> bytes:
        """Return the end of a result whose members are serialised already, up to the last brace."""

    def entries(self, member: str, entries: bytes) -> bytes:
        """Return the serialised entries of a list in the form of this revision.

        Args:
            member: the member of the result that holds them, such as "tools".
            entries: the inside of a JSON array.
        """

    def input_required(self, requests: Mapping[str, Any], request_state: str) -> bytes:
        """Return a result that asks for input: the questions by key, if any, and the state of the
        call.

        Raises:
            TypeError, ValueError, RecursionError: see `write`.
        """


class MirroredArgument(Protocol):
    """An argument of a tool that a header of the request has to repeat."""

    def check(self, arguments: Mapping[str, Any], headers: Headers) -> None:
        """Compare the argument with the header, if either is present.

        Raises:
            HeaderMismatch: only one of them is present, or they differ.
        """


class Revision(Protocol):
    """One revision of the protocol, implemented by the functions of its module."""

    def validate_request(
        self,
        request: Request,
        headers: Headers,
        features: Container[str],
        extensions: Mapping[str, Route],
        /,
    ) -> Inbound:
        """Validate a request in this revision; return it if its method is served.

        Args:
            request: one JSON-RPC request.
            headers: its headers.
            features: the features that are served (`methods.table.catalog_features`).
            extensions: the methods of extensions (`methods.extensions.ROUTES`).

        Raises:
            ProtocolError: the error of the first check that fails.
        """

    def mirrored_arguments(self, input_schema: Mapping[str, Any], /) -> Sequence[MirroredArgument]:
        """Return the arguments of a tool that headers must repeat; none in a revision without such
        headers.

        Raises:
            ValueError: the schema declares a header incorrectly; clients would have to drop the
            tool.
        """

    def result_format(self, server_info: Mapping[str, Any], /) -> ResultFormat:
        """Return the format of a server's results. `server_info` is the schema's
        `Implementation`."""

    def look_up(self, error: GatewayError, /) -> WireError:
        """Return the JSON-RPC code and the HTTP status of an error.

        Raises:
            KeyError: no client gets this class as a JSON-RPC error.
        """

    def render(self, error: GatewayError, request_id: RequestId | None, /) -> tuple[int, bytes]:
        """Return HTTP status and JSON-RPC error response for an error; raise KeyError as
        `look_up`."""

    def kept_result(self, result: Mapping[str, Any], /) -> bytes:
        """Return the stored form of a completed task's result, as JSON.

        Raises:
            TypeError, ValueError, RecursionError: a part of it is not JSON.
        """

    def kept_error(self, error: GatewayError, /) -> bytes:
        """Return the stored form of a failed task's error, as JSON; raise KeyError as `look_up`."""
