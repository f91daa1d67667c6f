"""The reading and writing of one JSON-RPC 2.0 message (basic/index, "Messages"; streamable-http,
"Sending Messages"), and the valid request that a message becomes: `Inbound`, with its headers and
the capabilities of its client.

Reading is strict: one object per body, in JSON as `roundgate.json` reads it, with an id that is a
64-bit integer or a string of up to 256 characters.

`protocol.revision.Revision.validate_request` makes an `Inbound`; `methods` serves it without
knowing the revision. A request of 2026-07-28 names the revision in its header and in its `_meta`. A
request belongs to a revision with sessions if its header names one, if it has a session's id, or if
it is `initialize`. If a request names revisions of both kinds, the later one counts and the
session's id is ignored (basic/versioning).

A requirement has the shape of the schema's `ClientCapabilities`: `{"sampling": {"tools": {}}}`,
`{"extensions": {"io.modelcontextprotocol/tasks": {}}}`. The error -32021 names missing capabilities
in the same shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import fields, replace

from roundgate.errors import InvalidParams, InvalidRequest, MissingCapability
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
        InvalidParams: the message names each invalid member, without its value.
    """
    try:
        return convert(params, model)
    except (ValidationError, UnicodeEncodeError):
        problems = "; ".join(_problems(model, params, "params")) or "params: Invalid value"
        raise InvalidParams(f"Invalid params: {problems}") from None


def _problems(model: Any, value: Any, place: str) -> Iterator[str]:
    """Yield a problem for each member of an object that is missing or invalid."""
    if isinstance(value, dict) and isinstance(model, type) and issubclass(model, Struct):
        for member in fields(model):
            name = member.encode_name
            if name in value:
                yield from _problems(member.type, value[name], f"{place}.{name}")
            elif member.required:
                yield f"{place}: Object missing required field `{name}`"
        return
    try:
        convert(value, model)
    except (ValidationError, UnicodeEncodeError) as error:
        reason, _, path = str(error).partition(" - at `$")
        if reason.startswith("Invalid value"):  # of a member that decides the type of an object
            reason = "Invalid value"
        yield f"{(place + path.rstrip('`'))[:500]}: {reason[:500]}"


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


SUPPORTED_VERSIONS: Final = ("2026-07-28",)
"""The supported revisions, newest first, as `server/discover` and the error -32022 list them."""


class Headers(dict[bytes, bytes]):
    """Header values by lower-case name. Lines with the same name are joined to one list (RFC 9110,
    section 5.3), such as two lines of `Accept`."""

    repeated: Sequence[bytes] = ()
    """The names that came on several lines, in the order of their second lines. If such a header
    should have one value, two readers could use different lines."""

    @classmethod
    def of(cls, lines: Sequence[tuple[bytes, bytes]]) -> Headers:
        """Return the headers in ASGI's pairs of lower-case name and value."""
        headers = cls(lines)
        if len(headers) < len(lines):
            headers._join(lines)
        return headers

    def _join(self, lines: Sequence[tuple[bytes, bytes]]) -> None:
        values: dict[bytes, list[bytes]] = {}
        repeated: dict[bytes, None] = {}
        for name, value in lines:
            if name in values:
                repeated[name] = None
            values.setdefault(name, []).append(value)
        self.update({name: b", ".join(values[name]) for name in repeated})
        self.repeated = tuple(repeated)


CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"


class ClientCapabilities(Struct):
    """The capabilities that one request declares. The capabilities of other requests do not
    count."""

    declared: Mapping[str, Any]
    substituted: Mapping[str, Any] = field(default_factory=dict)
    """Capabilities that the gateway replaces if the client has not declared them (`roundgate docs
    clients`)."""

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> ClientCapabilities:
        """Read `_meta[".../clientCapabilities"]`.

        Raises:
            InvalidParams: a capability is not an object.
        """
        for name, capability in value.items():
            if not isinstance(capability, dict):
                raise InvalidParams(f'_meta["{CAPABILITIES_KEY}"].{name[:100]} must be an object')
        return cls(value)

    def with_substitutes(self, substituted: Mapping[str, Any]) -> ClientCapabilities:
        """Return the same client with substitutes for capabilities that it lacks."""
        return replace(self, substituted=substituted)

    def require(
        self, required: Mapping[str, Any], what_for: str, *, has_substitute: bool = True
    ) -> None:
        """Raise unless all of `required` is declared or has a substitute.

        Args:
            required: the capabilities.
            what_for: the feature that needs them, for the message.
            has_substitute: whether a `fallback` of the configuration could replace them.

        Raises:
            MissingCapability: names exactly the missing capabilities.
        """
        if missing := self._missing(required):
            raise MissingCapability(what_for, missing, has_substitute)

    def has(self, required: Mapping[str, Any]) -> bool:
        """Return whether all of `required` is declared or has a substitute."""
        return not self._missing(required)

    def has_declared(self, required: Mapping[str, Any]) -> bool:
        """Return whether the client itself declares all of `required`."""
        return not _missing(required, self._explicit())

    def _missing(self, required: Mapping[str, Any]) -> dict[str, Any]:
        missing = _missing(required, self._explicit())
        return _missing(missing, self.substituted) if missing and self.substituted else missing

    def _explicit(self) -> Mapping[str, Any]:
        # client/elicitation: "an empty object is equivalent to declaring support for form mode
        # only"
        if self.declared.get("elicitation") == {}:
            return {**self.declared, "elicitation": {"form": {}}}
        return self.declared


def merged(requirements: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one requirement that includes all of `requirements`."""
    whole: dict[str, Any] = {}
    for required in requirements:
        for name, inner in required.items():
            whole[name] = merged([whole.get(name, {}), inner])
    return whole


def _missing(required: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    missing: dict[str, Any] = {}
    for name, inner in required.items():
        declared_value = declared.get(name)
        if not isinstance(inner, Mapping) or not isinstance(declared_value, Mapping):
            if declared_value != inner:  # an extension's settings may hold any JSON
                missing[name] = inner
        elif deeper := _missing(inner, declared_value):
            missing[name] = deeper
    return missing


LOG_LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
"""RFC 5424 severities, least severe first (server/utilities/logging)."""


class Meta(Struct):
    """The client's statements in `_meta` about itself and about the answer that it wants."""

    capabilities: ClientCapabilities
    client_info: dict[str, Any] | None
    log_level: str | None
    progress_token: str | int | None
    raw: Mapping[str, Any] = field(default_factory=dict)
    """All of `params._meta`, with the members that the gateway does not interpret: trace context,
    extensions."""


class Inbound(Struct):
    """A request that is valid in its revision and whose method is served."""

    id: RequestId
    method: str
    name: str | None
    """The tool, prompt, URI or task of the request, if its method has one."""
    params: dict[str, Any]
    meta: Meta
    version: str
    """The revision of the request."""
    headers: Headers | None = None
    """The request's headers, some of which mirror arguments (`x-mcp-header`); `None` in a revision
    without such headers."""


VERSION_HEADER: Final = b"mcp-protocol-version"
SESSION_HEADER: Final = b"mcp-session-id"
_METHOD_HEADER: Final = b"mcp-method"
_MODERN: Final = frozenset(version.encode() for version in SUPPORTED_VERSIONS)
_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"


def may_be_older(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the headers permit an older revision. A request of 2026-07-28 needs only this
    check."""
    version = headers.get(VERSION_HEADER)
    return version not in _MODERN and (version is None or version.strip() not in _MODERN)


def is_older(headers: Mapping[bytes, bytes], body: Any) -> bool:
    """Return whether a request is of a revision with sessions, if its headers permit that. `body`
    is decoded JSON."""
    version = headers.get(VERSION_HEADER, b"").strip()
    if _is_modern(body):
        return False
    if SESSION_HEADER in headers or (isinstance(body, dict) and body.get("method") == "initialize"):
        return True
    # clients with sessions never send Mcp-Method; an unknown version gets the list of versions
    # there
    return version != b"" and _METHOD_HEADER not in headers


def _is_modern(body: Any) -> bool:
    params = body.get("params") if isinstance(body, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and _VERSION_KEY in meta
