"""A message of the revisions with sessions: a request, a notification or a response.

Revision 2026-07-28 has only requests and notifications (`jsonrpc.parse`). In earlier revisions
clients also send responses to the server's questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from roundgate.errors import InvalidRequest
from roundgate.protocol import jsonrpc
from roundgate.protocol.jsonrpc import JSONRPC_VERSION, Notification, Request, RequestId


@dataclass(frozen=True, slots=True)
class Response:
    """A client's response to a question. Either `result` or `error` is set."""

    id: RequestId
    result: dict[str, Any] | None
    error: dict[str, Any] | None


Message: TypeAlias = Request | Notification | Response


def message_from_json(value: Any) -> Message:
    """Read one message from a decoded body, or from an element of a batch.

    Raises:
        InvalidRequest: `value` is not a message; the error has the id if readable.
    """
    if (
        isinstance(value, dict)
        and "method" not in value
        and ("result" in value or "error" in value)
    ):
        return _response(value)
    if isinstance(value, list):
        raise InvalidRequest("A message must be an object; a batch cannot contain batches")
    return jsonrpc.message_from_json(value)


def _response(value: dict[str, Any]) -> Response:
    if value.get("jsonrpc") != JSONRPC_VERSION:
        raise InvalidRequest('"jsonrpc" must be the string "2.0"')
    request_id = jsonrpc.readable_id(value)
    if request_id is None:
        raise InvalidRequest(
            'The "id" of a response must be the id of the question that it answers'
        )
    result, error = value.get("result"), value.get("error")
    if isinstance(result, dict) and "error" not in value:
        return Response(request_id, result, None)
    if isinstance(error, dict) and "result" not in value:
        return Response(request_id, None, error)
    raise InvalidRequest('A response must have either "result" or "error", which must be an object')
