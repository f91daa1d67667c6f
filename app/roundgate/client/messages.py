"""JSON-RPC messages: construction of requests and their headers, parsing of results and events.

Requests follow basic/index, "Request metadata", and streamable-http, "Request Metadata". Events
follow WHATWG HTML, section 9.2.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeAlias

from msgspec import Struct

from roundgate import lenient
from roundgate.client.flows import is_error, rpc_error
from roundgate.client.sender import Headers, Redact, reason_in, reason_of
from roundgate.client.transport import (
    HttpResponse,
    Limits,
    read_body,
    read_media_type,
    unpacked_chunks,
)
from roundgate.client.types import Json, Tool, is_modern
from roundgate.errors import BadAnswer, HttpRefused, Inside, ParseError
from roundgate.protocol import without_none
from roundgate.protocol.v2026_07_28 import encode_value

META: Final = "io.modelcontextprotocol/"
"""The prefix of the protocol's own members of `_meta`."""
ACCEPT_BOTH: Final = ("Accept", "application/json, text/event-stream")
SENDS_JSON: Final = ("Content-Type", "application/json")
_NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}

log = logging.getLogger("roundgate.client")

# -- requests of 2026-07-28 ------------------------------------------------------------------------


class SessionOver(Inside):
    """The server of an older revision has forgotten the session."""


class Detached(Inside):
    """A request to an older server was left, so that another process can continue it."""


class TryLater(Inside):
    """The server cannot answer at the moment. `wait_s` is the pause in seconds before the next
    attempt."""

    def __init__(self, status: int, wait_s: float, reason: str = "") -> None:
        super().__init__(f"The server is not available now (HTTP status {status}){reason}")
        self.status = status
        self.wait_s = wait_s


def envelope(version: str, info: Json, capabilities: Json) -> Json:
    """Return the members of `_meta` that every request has:
    `{"io.modelcontextprotocol/protocolVersion": "2026-07-28", …}`.

    Args:
        version: the revision of the request.
        info: `clientInfo`, the client's name and version.
        capabilities: `clientCapabilities`; `{}` declares nothing optional.
    """
    return {
        META + "protocolVersion": version,
        META + "clientInfo": info,
        META + "clientCapabilities": capabilities,
    }


def message(method: str, params: Mapping[str, Any], request_id: int | str, meta: Json) -> Json:
    """Return a request as a JSON value; `meta` replaces the `_meta` of `params`."""
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "method": method,
        "params": {**params, "_meta": meta},
    }


def headers_of(message: Json) -> list[tuple[str, str]]:
    """Return the headers of a request, except `Mcp-Param-*` (see `of_arguments`) and the headers
    that every HTTP client adds."""
    params = message["params"]
    version: str = params["_meta"][META + "protocolVersion"]
    return [ACCEPT_BOTH, SENDS_JSON, *of_request(message["method"], params, version)]


def of_request(method: str, params: Mapping[str, Any], version: str) -> list[tuple[str, str]]:
    """Return the headers with the revision, the method, and the tool, prompt, resource or task that
    a request names."""
    headers = [("MCP-Protocol-Version", version), ("Mcp-Method", method)]
    if (member := _NAMED_BY.get(method)) is not None:
        headers.append(("Mcp-Name", encode_value(str(params.get(member, "")))))
    return headers


def of_arguments(tool: Tool, arguments: Mapping[str, Any]) -> Headers:
    """Return the `Mcp-Param-*` headers of a call: one for each annotated argument with a value."""
    headers: list[tuple[str, str]] = []
    for parameter in tool.param_headers:
        value: Any = arguments
        for key in parameter.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            headers.append((parameter.header, "true" if value else "false"))
        elif isinstance(value, (str, int, float)):
            headers.append((parameter.header, encode_value(str(value))))
    return headers


# -- while a request runs --------------------------------------------------------------------------


class Listener(Struct, frozen=True):
    """The handlers and additions of a request. `on_request` answers an older server's questions.
    `meta` is added to `_meta`, for example a progress token. `headers` are added to the HTTP headers
    in revisions without sessions, where `capabilities` replaces the client's own in this request.
    `caller_headers` are added in each revision, also to what belongs to the request: answers, its
    cancellation, and its resumed stream."""

    on_notification: Callable[[str, Json], Any] | None = None
    on_request: Callable[[Any, str, Json], Awaitable[Json]] | None = None
    meta: Json | None = None
    headers: Headers = ()
    capabilities: Json | None = None
    caller_headers: Headers = ()

    async def notify(self, message: Json) -> None:
        """Call `on_notification` with a notification."""
        params = message.get("params", {})
        if self.on_notification is not None and isinstance(params, dict):
            done = self.on_notification(str(message["method"]), params)
            if inspect.isawaitable(done):
                await done


NO_LISTENER: Final = Listener()


class Speaker(Struct, frozen=True):
    """The client's description of itself, and the form of its requests in each revision."""

    info: Json
    capabilities: Json

    def message(
        self, method: str, params: Json, request_id: int, version: str, listener: Listener
    ) -> Json:
        """Return a request in the form of a revision."""
        own, extra = params.get("_meta") or {}, listener.meta or {}
        if is_modern(version):
            capabilities = listener.capabilities
            described = self.capabilities if capabilities is None else capabilities
            members = {**own, **extra, **envelope(version, self.info, described)}
            return message(method, params, request_id, members)
        # Older revisions do not define these members; `logging/setLevel` sets their log level.
        extra = {key: value for key, value in extra.items() if not key.startswith(META)}
        request: Json = {"jsonrpc": "2.0", "id": request_id, "method": method}
        if extra:
            request["params"] = {**params, "_meta": {**own, **extra}}
        elif params:
            request["params"] = params
        return request


# -- events ----------------------------------------------------------------------------------------

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"
_LONGEST_EVENT_ID: Final = 4096


class ServerEvent(Struct, frozen=True):
    """One event. `id` is the latest id on the stream, `retry_ms` the value of the event's `retry`
    field, `type` the value of its `event` field."""

    data: bytes
    id: str | None
    retry_ms: int | None
    type: bytes = b""


class EventReader:
    """A parser of the Server-Sent Events of one stream, fed with bytes as they arrive."""

    def __init__(self, max_event: int) -> None:
        self._max = max_event
        self._line_so_far = bytearray()
        self._data = bytearray()
        self._has_data = False
        self._start = b""
        self._has_started = self._ended_with_cr = False
        self._retry_ms: int | None = None
        self._last_id: str | None = None
        self._type = b""

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Return the events that `data` completes. Raise `BadAnswer` if an event has more than
        `max_event` bytes."""
        if not self._has_started:
            self._start += data
            if len(self._start) < len(_BOM) and _BOM.startswith(self._start):
                return []
            self._has_started = True
            data, self._start = self._start.removeprefix(_BOM), b""
        # A carriage return ends its line at once; a line feed after it may be in the next piece.
        if self._ended_with_cr and data:
            data = data.removeprefix(b"\n")
            self._ended_with_cr = False
        events: list[ServerEvent] = []
        start = 0
        # Only new data is searched, so a line that arrives byte by byte is not scanned repeatedly.
        for end in _LINE_END.finditer(data):
            line = data[start : end.start()]
            if self._line_so_far:
                line = bytes(self._line_so_far + line)
                self._line_so_far.clear()
            if (event := self._take_line(line)) is not None:
                events.append(event)
            start = end.end()
        self._ended_with_cr = data.endswith(b"\r") or (self._ended_with_cr and not data)
        self._line_so_far += data[start:]
        self._check_size(len(self._line_so_far))
        return events

    def _take_line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value
            self._data += b"\n"
            self._has_data = True
            self._check_size(0)
        elif name == b"event":
            self._type = value
        elif name == b"id" and b"\0" not in value and len(value) <= _LONGEST_EVENT_ID:
            self._last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self._retry_ms = int(value)
        return None

    def _dispatch(self) -> ServerEvent | None:
        event = ServerEvent(bytes(self._data[:-1]), self._last_id, self._retry_ms, self._type)
        # Unlike a browser, report a block without data if it sets the reconnection time.
        is_event = self._has_data or self._retry_ms is not None
        self._data.clear()
        self._has_data, self._retry_ms, self._type = False, None, b""
        return event if is_event else None

    def _check_size(self, more: int) -> None:
        if len(self._data) + more > self._max:
            raise BadAnswer(
                f"The server sent an event of more than {self._max} bytes (limit max_message)"
            )


# -- responses -------------------------------------------------------------------------------------

Observer: TypeAlias = Callable[[str, Json, int | None], None]
"""A function that receives each message: "sent" or "received", the message, and the HTTP status of
a received body."""

_DECODER: Final = json.JSONDecoder()
_LONGEST_RETRY_AFTER_S: Final = 30
_LONGEST_SESSION_ID: Final = 8_192
_NO_SESSION: Final = -32000
_LONGEST_ID: Final = 15
_LONGEST_BEGINNING: Final = 500
_LONGEST_END: Final = 400
_MARK_OF_UTF16: Final = b"\xff\xfe"
_AROUND: Final = b" \t\r\n\0"
"""The bytes around a message that are no part of it. Some servers write a NUL."""
MAX_BATCH: Final = 100
"""The limit on the messages in one line."""
_FIRST_MEMBERS: Final = re.compile(
    rb"""\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"""
    rb"""(?:"id"\s*:\s*"?(\d{1,15})"?\s*,(?!\s*"method")|"(?:result|error)"\s*:)"""
)
_LAST_MEMBERS: Final = re.compile(
    rb""""id"\s*:\s*"?(\d{1,15})"?\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$"""
)
_TRY_LATER_STATUSES: Final = frozenset({429, 502, 503, 504})


class Received(Struct):
    """The data of one server that is no message: lines of its standard output, and events.

    Args:
        name: the server's name for the log.
    """

    name: str
    skipped: int = 0
    """The number of lines and events that were skipped."""

    def skip(self, reason: str) -> None:
        """Count a line or an event, and log the first one, without its text."""
        self.skipped += 1
        if self.skipped == 1:
            fields = {"of": self.name, "error": reason}
            log.warning("a server sends what is no message", extra={"fields": fields})


class Reader:
    """A reader of one server's responses, which passes each message to the observer."""

    def __init__(
        self,
        limits: Limits,
        observer: Observer | None = None,
        redact: Redact | None = None,
        received: Received | None = None,
    ) -> None:
        self._limits = limits
        self._observer = observer
        self._redact = redact
        self._received = received or Received("a server")

    async def json_result(
        self, response: HttpResponse, request_id: Any, *, in_session: bool, sent: Headers = ()
    ) -> Json:
        """Return the result in a response that is one JSON object.

        `in_session` is true if the request named a session of an older server: then 404 means that
        the session has ended. Errors do not repeat credentials in `sent`, the request's headers.

        Raises:
            RpcError: the server answered with an error.
            SessionOver: the server has forgotten the session.
            TryLater: the server, or a proxy in front of it, asks to retry later.
            HttpRefused: the server refused the request without a JSON-RPC message.
            BadAnswer: the response is anything else.
        """
        status = response.status
        is_success = 200 <= status < 300
        media_type = read_media_type(response)
        if media_type != "application/json":
            if status == 404 and in_session:
                raise SessionOver
            if is_success:
                raise BadAnswer(
                    f"The server answered with {media_type or 'no content'} instead of JSON or an "
                    "event stream"
                )
            raise _no_message(response, await reason_of(response, sent, self._redact))
        body, answer = b"", None
        try:
            body = await read_body(response, self._limits.max_message)
            content_type = response.headers.get("content-type", "")
            answer = self.message(lenient.in_utf8(body, content_type), status)
        except BadAnswer:
            if is_success:  # the status of a refusal counts, whatever its body is
                raise
        if in_session and (status == 404 or _is_session_refused(status, answer)):
            raise SessionOver
        if answer is None or not _is_response(answer, any_error=is_success):
            if is_success:
                raise BadAnswer("The server answered with JSON that is not a JSON-RPC response")
            raise _no_message(response, reason_in(body, response, sent, self._redact))
        return result_of(answer, request_id)

    async def events(self, response: HttpResponse) -> AsyncGenerator[ServerEvent, None]:
        """Yield the events of a stream as they arrive."""
        reader = EventReader(self._limits.max_message)
        async with aclosing(unpacked_chunks(response)) as chunks:
            async for data in chunks:
                for event in reader.feed(data):
                    yield event

    def event(self, event: ServerEvent, *, may_answer: bool = True) -> Json | None:
        """Return the message of an event, or `None` if it has none. Servers also send events of
        other types, and plain text as a sign of life. Raise `BadAnswer` if the event may be the
        response of the stream's request (`may_answer`) and cannot be read."""
        if event.type not in (b"", b"message"):
            return None
        try:
            return self.message(event.data)
        except BadAnswer as error:
            if may_answer and unreadable_response(event.data, event.data) is not None:
                raise
            self._received.skip(str(error))
            return None

    def message(self, data: bytes, status: int | None = None) -> Json | None:
        """Return the message in the data of a body or an event, or `None` if the data is empty.
        `status` is the HTTP status of a body. Members of a response that are null, such as
        `"error": null` beside a result, count as missing. Raise `BadAnswer` if the data is not a JSON object."""
        return self._noted(self._decoded(data), status) if data.strip() else None

    def messages(self, line: bytes) -> list[Json]:
        """Return the messages in a line of a stream. Servers also send several in one line, or a
        batch. Raise `BadAnswer` if the line has anything else."""
        if not (line := line.strip(_AROUND)):
            return []
        try:
            documents = [self._decoded(line)]
        except BadAnswer:
            documents = [self._decoded(part) for part in _documents(line)]
            if not documents:
                raise
        if isinstance(documents[0], list) and len(documents[0]) <= MAX_BATCH:
            documents = documents[0]
        return [self._noted(document, None) for document in documents]

    def _decoded(self, data: bytes) -> Any:
        try:
            clean = data if self._redact is None else self._redact(data)
            return lenient.value(clean, self._received.name)
        except ParseError as error:
            raise BadAnswer(f"The server sent text that is not JSON: {error}") from None

    def _noted(self, decoded: Any, status: int | None) -> Json:
        if not isinstance(decoded, dict):
            raise BadAnswer("The server sent JSON that is not a JSON-RPC message")
        if self._observer is not None:
            self._observer("received", decoded, status)
        is_request = isinstance(decoded.get("method"), str)  # with the id null, it is refused
        return decoded if is_request or None not in decoded.values() else without_none(**decoded)


def _documents(line: bytes) -> list[bytes]:
    """Return the JSON documents in a line of several, or nothing if the line has anything else."""
    text, parts, start = line.decode("utf-8", "replace"), list[bytes](), 0
    try:
        while start < len(text) and len(parts) < MAX_BATCH:
            _, end = _DECODER.raw_decode(text, start)
            parts.append(text[start:end].encode())
            start = end + len(text[end:]) - len(text[end:].lstrip())
    except (ValueError, RecursionError):
        return []
    return parts if start == len(text) else []


def id_of(message: Json) -> Any:
    """Return the id of a response, or `None` if it is neither a number nor text. Some servers echo
    the client's whole numbers as text or with a fraction of zero."""
    match message.get("id"):
        case bool():
            return None
        case int() as number:
            return number
        case float() as number if number.is_integer():
            return int(number)
        case str() as text if text.isascii() and text.isdigit() and len(text) <= _LONGEST_ID:
            return int(text)
        case float() | str() as answered:
            return answered
    return None


def unreadable_response(beginning: bytes, end: bytes) -> int | None:
    """Return the id of a response that cannot be read, 0 for a response without a readable id, or
    `None` if the message is something else. SDKs write the id before or after the result. In UTF-16,
    the characters of an id are bytes between NULs."""
    beginning = beginning[:_LONGEST_BEGINNING].replace(b"\0", b"").lstrip(_MARK_OF_UTF16)
    if (first := _FIRST_MEMBERS.match(beginning)) is None:
        return None
    last = _LAST_MEMBERS.search(end[-_LONGEST_END:].replace(b"\0", b""))
    number = first[1] or (last[1] if last else None)
    return 0 if number is None else int(number)


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
    if id_of(message) != request_id:
        raise BadAnswer("The server answered with the id of another request")
    result = message.get("result")
    if not isinstance(result, dict):
        raise BadAnswer("The server answered with a result that is not an object")
    return result


def is_stream(response: HttpResponse) -> bool:
    """Return whether a response is a stream of events."""
    return response.status == 200 and read_media_type(response) == "text/event-stream"


def _is_response(message: Json, *, any_error: bool) -> bool:
    """Return whether a message is a JSON-RPC response. With `any_error`, every form of `error`
    counts. Otherwise a malformed `error` does not, because it may come from a proxy."""
    if "method" in message:
        return False
    return "result" in message or ("error" in message and (any_error or is_error(message["error"])))


def _is_session_refused(status: int, answer: Json | None) -> bool:
    """Return whether a server refuses a request because it does not know the session. Servers based
    on the examples of the TypeScript SDK answer 400 instead of 404."""
    error: Any = None if answer is None else answer.get("error")
    is_refusal = status == 400 and is_error(error) and error["code"] == _NO_SESSION
    return is_refusal and "session" in error["message"].lower()


def _no_message(response: HttpResponse, reason: str) -> TryLater | HttpRefused:
    status = response.status
    if status not in _TRY_LATER_STATUSES:
        fact = reason or " and no JSON-RPC message"
        return HttpRefused(status, f"The server answered with HTTP status {status}{fact}")
    retry_after = response.headers.get("retry-after", "")
    is_number = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 6
    wait_s = int(retry_after) if is_number else 1
    return TryLater(status, min(wait_s, _LONGEST_RETRY_AFTER_S), reason)


def read_session_id(response: HttpResponse) -> str | None:
    """Return the id of a new session, or `None` if the server has no sessions. Raise `BadAnswer` if
    the id is not visible ASCII (2025-11-25, "Session Management") or too long."""
    session_id = response.headers.get("mcp-session-id")
    if session_id is None:
        return None
    is_visible = session_id.isascii() and session_id.isprintable() and " " not in session_id
    if not session_id or not is_visible or len(session_id) > _LONGEST_SESSION_ID:
        raise BadAnswer(
            "The server began a session with an id that is not visible ASCII, or too long"
        )
    return session_id
