"""The reading and writing of one JSON-RPC 2.0 message (basic/index, "Messages"; streamable-http,
"Sending Messages").

Reading is strict: one object per body, in JSON as `roundgate.json` reads it, with an id that is a
64-bit integer or a string of up to 256 characters.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct, ValidationError, convert

from roundgate.errors import InvalidParams, InvalidRequest
from roundgate.json import encode

RequestId: TypeAlias = str | int

S = TypeVar("S", bound=Struct)

JSONRPC_VERSION: Final = "2.0"
INT64: Final = range(-(2**63), 2**63)
MAX_ID: Final = 256
"""The maximum length of an id, in characters. A stream keeps and repeats its id while it is
open."""


class Request(Struct):
    """A message that expects an answer."""

    id: RequestId
    method: str
    params: dict[str, Any]


class Notification(Struct):
    """A message that expects no answer."""

    method: str
    params: dict[str, Any]


class Response(Struct, frozen=True):
    """A client's response to a question. Either `result` or `error` is set."""

    id: RequestId
    result: dict[str, Any] | None
    error: dict[str, Any] | None


def message_from_json(message: Any) -> Request | Notification:
    """Read a decoded body as a message.

    Raises:
        InvalidRequest: the body is not one request or notification; the error has the id if
        readable.
    """
    if not isinstance(message, dict):
        raise InvalidRequest(_not_an_object(message))
    request_id = readable_id(message)
    if message.get("jsonrpc") != JSONRPC_VERSION:
        raise InvalidRequest('"jsonrpc" must be the string "2.0"', request_id)
    method = message.get("method")
    if not isinstance(method, str):
        raise InvalidRequest(_no_method(message), request_id)
    params = message.get("params", _NO_PARAMS)
    if not isinstance(params, dict):
        raise InvalidRequest('"params" must be an object', request_id)
    if "id" not in message:
        return _notification(method, params)
    if request_id is None:
        raise InvalidRequest(
            f'"id" must be a string of up to {MAX_ID} characters or a 64-bit integer, and never '
            "null"
        )
    return Request(request_id, method, params)


def session_message_from_json(value: Any) -> Request | Notification | Response:
    """Read one message of a session from a decoded body, or from an element of a batch. Clients with
    sessions also send responses to questions.

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
    return message_from_json(value)


def _response(value: dict[str, Any]) -> Response:
    if value.get("jsonrpc") != JSONRPC_VERSION:
        raise InvalidRequest('"jsonrpc" must be the string "2.0"')
    request_id = readable_id(value)
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


_NO_PARAMS: Final[dict[str, Any]] = {}


def validate(model: type[S], params: dict[str, Any]) -> S:
    """Validate the params of a message; return them as a value of their class (`protocol.params`).

    Raises:
        InvalidParams: the message names the first invalid member, without its value.
    """
    try:
        return convert(params, model)
    except (ValidationError, UnicodeEncodeError) as error:
        reason, _, path = str(error).partition(" - at `$")
        if reason.startswith("Invalid value"):  # of a member that decides the type of an object
            reason = "Invalid value"
        place = f"params{path.rstrip('`')}"
        raise InvalidParams(f"Invalid params: {place[:500]}: {reason[:500]}") from None


def result_response(request_id: RequestId, result: bytes) -> bytes:
    """Return `{"jsonrpc": "2.0", "id": …, "result": …}` around a serialised result."""
    written = encode(request_id) if isinstance(request_id, str) else b"%d" % request_id
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (written, result)


def error_response(
    request_id: RequestId | None, code: int, message: str, data: Any = None
) -> bytes:
    """Return `{"jsonrpc": "2.0", "id": …, "error": …}`. An unknown id is absent, never null
    (`JSONRPCErrorResponse`)."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    response: dict[str, Any] = {"jsonrpc": JSONRPC_VERSION}
    if request_id is not None:
        response["id"] = request_id
    return encode(response | {"error": error})


def notification(method: str, params: dict[str, Any]) -> bytes:
    """Return a notification of the server."""
    return encode({"jsonrpc": JSONRPC_VERSION, "method": method, "params": params})


def encode_notification(method: str, params: dict[str, Any], more: bytes) -> bytes:
    """Return a notification of the server with further params, a serialised JSON object that is
    not empty."""
    head = b'{"jsonrpc":"2.0","method":%b,"params":%b' % (encode(method), encode(params)[:-1])
    return b"%b,%b}" % (head, more[1:])


def readable_id(message: dict[str, Any]) -> RequestId | None:
    """Return the id of a message, or `None` if it is not valid."""
    request_id = message.get("id")
    if isinstance(request_id, str):
        return request_id if len(request_id) <= MAX_ID else None
    # in Python a bool is an int; in JSON it is not
    if isinstance(request_id, int) and not isinstance(request_id, bool) and request_id in INT64:
        return request_id
    return None


def _notification(method: str, params: dict[str, Any]) -> Notification:
    if not method.startswith("notifications/"):
        raise InvalidRequest(
            f'"id" is missing: {method[:100]} is a request and needs a string or integer id'
        )
    return Notification(method, params)


def _not_an_object(message: Any) -> str:
    if isinstance(message, list):
        return "Batches are not part of this revision: send each message in a separate POST"
    return "The body must be one JSON-RPC object"


def _no_method(message: dict[str, Any]) -> str:
    if "result" in message or "error" in message:
        return (
            "Clients do not send responses: answers to input requests go into "
            "params.inputResponses of a retry"
        )
    return '"method" must be a string'
