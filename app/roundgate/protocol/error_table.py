"""How a revision writes errors: a table of exception class → JSON-RPC code and
HTTP status, and its uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roundgate.errors import GatewayError, InvalidRequest, TransportError
from roundgate.json import encode
from roundgate.protocol.content import without_none
from roundgate.protocol.jsonrpc import RequestId, error_response


@dataclass(frozen=True, slots=True)
class WireError:
    """How one class of error looks from outside."""

    code: int
    status: int


class ErrorTable:
    """The errors of one revision. `rows` need not name a class whose base is there."""

    def __init__(self, rows: Mapping[type[GatewayError], WireError]) -> None:
        self._rows = rows

    def look_up(self, error: GatewayError) -> WireError:
        """The row for an error, found along its class's MRO.

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
        """`(HTTP status, JSON-RPC error response)` for an error. Raises
        KeyError as `look_up` does."""
        row = self.look_up(error)
        if request_id is None and isinstance(error, InvalidRequest):
            request_id = error.request_id
        return row.status, error_response(request_id, row.code, str(error), error.data)

    def kept(self, error: GatewayError) -> bytes:
        """The `error` of a task that failed, as JSON. Raises KeyError as `look_up` does."""
        return encode(
            {
                "code": self.look_up(error).code,
                "message": str(error),
                **without_none(data=error.data),
            }
        )
