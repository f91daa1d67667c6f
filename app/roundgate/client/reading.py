"""What a server answers: HTTP responses and events become messages, and a message
becomes a result or an error."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeAlias

from roundgate.client.events import EventReader, ServerEvent
from roundgate.client.flows import is_error, rpc_error
from roundgate.client.limits import Limits
from roundgate.client.sender import reason_in, reason_of
from roundgate.client.transport import HttpResponse, read_body, refuse_compressed
from roundgate.client.types import Json
from roundgate.errors import BadAnswer, HttpRefused, ParseError, SessionOver, TryLater
from roundgate.json import decode

Observer: TypeAlias = Callable[[str, Json, int | None], None]
"""Sees each message: "sent" or "received", the message, the HTTP status of a response."""

_LONGEST_RETRY_AFTER_S: Final = 30
_TRY_LATER_STATUSES: Final = frozenset({429, 502, 503, 504})


class Reader:
    """Reads the responses of one server, and shows each message to the observer."""

    def __init__(self, limits: Limits, observer: Observer | None = None) -> None:
        self._limits = limits
        self._observer = observer

    async def json_result(
        self,
        response: HttpResponse,
        request_id: Any,
        *,
        in_session: bool,
        sent: Sequence[tuple[str, str]] = (),
    ) -> Json:
        """Return the result in a response that is one JSON object.

        Args:
            response: the HTTP response.
            request_id: the id of the request.
            in_session: whether the request named a session of an older server: then 404 means that
                the session has ended.
            sent: the headers of the request, which errors must not repeat.

        Raises:
            RpcError: the server answered with an error.
            SessionOver: the server has forgotten the session.
            TryLater: the server, or a proxy in front, asks to retry later.
            HttpRefused: the server refused the request without a JSON-RPC message.
            BadAnswer: the response is anything else.
        """
        status = response.status
        refuse_compressed(response)
        media_type = media_type_of(response)
        if media_type != "application/json":
            if status == 404 and in_session:
                raise SessionOver
            if 200 <= status < 300:
                raise BadAnswer(
                    f"The server answered with {media_type or 'no content'} instead of JSON or an "
                    "event stream"
                )
            raise _no_message(response, await reason_of(response, sent))
        body = await read_body(response, self._limits.max_message)
        try:
            message = self.message(body, status)
        except BadAnswer:
            if not 200 <= status < 300:
                raise _refusal(status, reason_in(body, response, sent)) from None
            raise
        if status == 404 and in_session:
            raise SessionOver
        is_success = 200 <= status < 300
        if message is None or not _is_response(message, any_error=is_success):
            if is_success:
                raise BadAnswer("The server answered with JSON that is no JSON-RPC response")
            raise _no_message(response, reason_in(body, response, sent))
        return result_of(message, request_id)

    async def events(self, response: HttpResponse) -> AsyncGenerator[ServerEvent, None]:
        """The events of a response that is a stream, as they come."""
        refuse_compressed(response)
        reader = EventReader(self._limits.max_message)
        async with aclosing(response.chunks()) as chunks:
            async for data in chunks:
                for event in reader.feed(data):
                    yield event

    def message(self, data: bytes, status: int | None = None) -> Json | None:
        """The message in a body or an event, `None` if there is nothing.

        Args:
            data: UTF-8.
            status: of the response whose body this is, `None` for an event.

        Raises:
            BadAnswer: this is no JSON object.
        """
        if not data.strip():
            return None
        try:
            message = decode(data)
        except ParseError as error:
            raise BadAnswer(f"The server sent something that is no JSON: {error}") from None
        if not isinstance(message, dict):
            raise BadAnswer("The server sent JSON that is no JSON-RPC message")
        if self._observer is not None:
            self._observer("received", message, status)
        return message


def result_of(message: Json, request_id: Any) -> Json:
    """Return the result in a response.

    An HTTP request gets one JSON-RPC response, so an error belongs to the request whatever its id:
    servers on the Python SDK 1.x send the id "server-error" when they refuse a request.

    Raises:
        RpcError: the response is an error.
        BadAnswer: the response belongs to another request, or has no result.
    """
    if "error" in message:
        raise rpc_error(message["error"])
    answered = message.get("id")
    if answered != request_id or isinstance(answered, bool):
        raise BadAnswer("The server answered with the id of another request")
    result = message.get("result")
    if not isinstance(result, dict):
        raise BadAnswer("The server answered with a result that is no object")
    return result


def is_stream(response: HttpResponse) -> bool:
    """Whether a response is a stream of events."""
    return response.status == 200 and media_type_of(response) == "text/event-stream"


def media_type_of(response: HttpResponse) -> str:
    """`application/json`, without parameters; empty if none is given."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_response(message: Json, *, any_error: bool) -> bool:
    """Return whether this is a JSON-RPC response. A proxy in front of the server may send an
    `error` of another shape, which `any_error` accepts."""
    if "method" in message:
        return False
    return "result" in message or ("error" in message and (any_error or is_error(message["error"])))


def _no_message(response: HttpResponse, reason: str) -> TryLater | HttpRefused:
    """Return the error for a response without a JSON-RPC message."""
    status = response.status
    if status not in _TRY_LATER_STATUSES:
        return _refusal(status, reason)
    retry_after = response.headers.get("retry-after", "")
    is_number = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 6
    asked_s = int(retry_after) if is_number else 1
    return TryLater(status, min(asked_s, _LONGEST_RETRY_AFTER_S), reason)


def _refusal(status: int, reason: str) -> HttpRefused:
    said = reason or " and no JSON-RPC message"
    return HttpRefused(status, f"The server answered with HTTP status {status}{said}")
