"""Revision 2026-07-28: the validation of its requests and headers, its results, and its errors. The
functions implement the port `protocol.revision.Revision`.

A request and its headers become an `Inbound`, or the error of the first failed check.

The order decides which error a request with several mistakes gets, as clients and the conformance
suite expect:

    1  version and method headers are sent once; `Mcp-Method` equals the body's method        -32020
    2  `params._meta` has its required fields, a string and an object                         -32602
    3  `MCP-Protocol-Version` equals `_meta`'s version                                        -32020
    4  the version is supported                                                               -32022
       and the rest of `_meta` is valid in this version                                       -32602
    5  the method is served                                                                   -32601
    6  `Mcp-Name` equals the body's name, uri or taskId                                       -32020

Checks 7 (`Mcp-Param-*`), 8 (client capabilities) and 9 (domain) need the tool;
`roundgate.methods` makes them.

The headers that mirror the body (streamable-http, "Request Metadata") are encoded for HTTP (the
base64 sentinel) and decoded before they are compared. A server capability decides whether a method
is served, so `server/discover` advertises exactly the served methods.

Each result has `resultType` and `serverInfo`, and a cacheable result its caching time and scope
(basic/index, "Results"; server/utilities/caching):

    {"resultType": "complete", …, "ttlMs": 60000, "cacheScope": "public",
    "_meta": {".../serverInfo": {…}}}
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

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
from roundgate.protocol.jsonrpc import (
    CAPABILITIES_KEY,
    LOG_LEVELS,
    MAX_ID,
    SUPPORTED_VERSIONS,
    ClientCapabilities,
    Headers,
    Inbound,
    Meta,
    Request,
)
from roundgate.protocol.revision import CacheHint, ErrorTable, Route, WireError

VERSION_HEADER: Final = "MCP-Protocol-Version"
METHOD_HEADER: Final = "Mcp-Method"
NAME_HEADER: Final = "Mcp-Name"
PARAM_PREFIX: Final = "Mcp-Param-"
ANNOTATION: Final = "x-mcp-header"

_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
_PLAIN: Final = re.compile(r"[\x20-\x7e\t]*")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DECIMAL: Final = re.compile(r"(-?[0-9]+)(?:\.0*)?")
_MIRRORED: Final = frozenset(
    name.lower().encode() for name in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER)
)
_PARAM_PREFIX_LOWER: Final = PARAM_PREFIX.lower().encode()


def read_header(headers: Headers, name: bytes) -> str | None:
    """Return the encoded value of a mirroring header, or `None`. Remove the white space around it,
    which httptools leaves (RFC 9110 section 5.5)."""
    value = headers.get(name)
    return None if value is None else value.strip(b" \t").decode("latin-1")


def repeated_header(headers: Headers) -> str | None:
    """Return the first mirroring header that was sent twice, or `None`. With two values, two
    readers could use different ones."""
    for name in headers.repeated:
        if name in _MIRRORED or name.startswith(_PARAM_PREFIX_LOWER):
            return name.decode("latin-1")
    return None


def encode_value(value: str) -> str:
    """Return a string as a header value: unchanged if HTTP preserves it, otherwise `=?base64?…?=`
    of its UTF-8."""
    looks_encoded = value.startswith("=?base64?") and value.endswith("?=")
    if _PLAIN.fullmatch(value) and value == value.strip() and not looks_encoded:
        return value
    # as in the body, where `json.encode` writes "?" for a lone surrogate
    encoded = base64.b64encode(value.encode("utf-8", "replace"))
    return f"=?base64?{encoded.decode()}?="


def decode_value(header: str, value: str) -> str:
    """Return the string that `encode_value` encoded; strict in alphabet, padding and UTF-8.

    Raises:
        HeaderMismatch: the value is neither visible ASCII nor well-formed base64 in the sentinel.
    """
    sentinel = _SENTINEL.fullmatch(value) if value.startswith("=?") else None
    if sentinel is None:
        # the pattern allows tabs as well
        if not (value.isascii() and value.isprintable()) and _PLAIN.fullmatch(value) is None:
            raise HeaderMismatch(
                f"Header mismatch: {header} has characters outside visible ASCII; encode it as =?base64?…?="
            )
        return value
    try:
        decoded = base64.b64decode(sentinel[1], validate=True)
        if base64.b64encode(decoded).decode() == sentinel[1]:
            return decoded.decode()
    except (binascii.Error, ValueError):
        pass
    raise HeaderMismatch(
        f"Header mismatch: {header} is not well-formed base64 of UTF-8 between =?base64? and ?="
    )


class ParamHeader(Struct, frozen=True):
    """One property annotated with `x-mcp-header`: the header's name, the value's path in the
    arguments, its type."""

    header: str
    key: str
    path: tuple[str, ...]
    type: str

    def check(self, arguments: Mapping[str, Any], headers: Headers) -> None:
        """Compare the header and the argument, which must agree or both be absent. `null` counts as
        absent.

        Raises:
            HeaderMismatch: only one of them is present, or they differ.
        """
        value, raw = (
            _value_at(arguments, self.path),
            read_header(headers, _PARAM_PREFIX_LOWER + self.key.encode()),
        )
        where = f"argument {'.'.join(self.path)!r}"
        if value is None or isinstance(value, (dict, list)):
            if raw is not None:
                raise HeaderMismatch(
                    f"Header mismatch: {self.header} is sent but {where} has no value to mirror"
                )
        elif raw is None:
            raise HeaderMismatch(
                f"Header mismatch: {self.header} is missing; it must mirror {where}"
            )
        elif not self._equal(value, decode_value(self.header, raw)):
            raise HeaderMismatch(f"Header mismatch: {self.header} does not match {where}")

    def _equal(self, value: Any, text: str) -> bool:
        # "servers SHOULD compare the header value and the body value
        # numerically" (Server Validation)
        if (
            self.type == "integer"
            and not isinstance(value, bool)
            and isinstance(value, (int, float))
            and value == value // 1
        ):
            number = _DECIMAL.fullmatch(text)
            return number is not None and len(number[1]) < 400 and int(number[1]) == int(value)
        if isinstance(value, bool):
            return text == ("true" if value else "false")
        return text == str(value)


def mirrored_arguments(input_schema: Mapping[str, Any]) -> tuple[ParamHeader, ...]:
    """Return the `x-mcp-header` annotations of a tool's input schema.

    Raises:
        ValueError: an annotation violates "Schema Extension"; clients would have to drop the tool.
    """
    headers: dict[str, ParamHeader] = {}
    for path, schema in _positions(input_schema):
        if ANNOTATION in schema:
            header = _param_header(path, schema)
            if header.key in headers:
                raise ValueError(
                    f"{ANNOTATION} {schema[ANNOTATION]!r} is used twice; the names must differ in more than case"
                )
            headers[header.key] = header
    return tuple(headers.values())


def _param_header(path: tuple[str, ...] | None, schema: Mapping[str, Any]) -> ParamHeader:
    name, kind = schema[ANNOTATION], schema.get("type")
    if not path:
        raise ValueError(
            f"{ANNOTATION} {name!r} must be on a property reached through `properties` alone"
        )
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ValueError(
            f"{ANNOTATION} of {'.'.join(path)!r} must be an HTTP token (RFC 9110 section 5.6.2), not {name!r}"
        )
    if kind not in ("string", "integer", "boolean"):
        raise ValueError(
            f"{ANNOTATION} of {'.'.join(path)!r} needs type string, integer or boolean, not {kind!r}"
        )
    return ParamHeader(PARAM_PREFIX + name, name.lower(), path, kind)


# Keywords of 2020-12 and of the drafts before it, whose schemas are served too.
# Schema or list of schemas:
_APPLICATORS: Final = frozenset((
    "items", "contains", "unevaluatedItems", "additionalItems", "additionalProperties", "propertyNames",
    "unevaluatedProperties", "not", "if", "then", "else", "contentSchema", "allOf", "anyOf", "oneOf", "prefixItems",
))  # fmt: skip
_NAMED_SCHEMAS: Final = frozenset(
    ("patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
)


def _positions(
    root: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Yield every schema inside a schema, with its chain of `properties` keys, or `None` below
    another keyword."""
    stack: list[tuple[tuple[str, ...] | None, Any]] = [((), root)]
    while stack:
        path, schema = stack.pop()
        if isinstance(schema, list):
            stack.extend((None, member) for member in schema)
        if not isinstance(schema, Mapping):
            continue
        yield path, schema
        for keyword, value in schema.items():
            if keyword in _APPLICATORS:
                stack.append((None, value))
            elif not isinstance(value, Mapping):
                continue  # a draft without the keyword allows any value there
            elif keyword in _NAMED_SCHEMAS:
                stack.extend((None, member) for member in value.values())
            elif keyword == "properties":
                for name, member in value.items():
                    stack.append((None if path is None else (*path, name), member))


def _value_at(arguments: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    node: Any = arguments
    for key in path:
        if not isinstance(node, Mapping):
            return None
        node = node.get(key)
    return node


PROTOCOL_VERSION: Final = "2026-07-28"


METHODS: Final[Mapping[str, Route]] = MappingProxyType(
    {
        "server/discover": Route(None),
        "tools/list": Route("tools"),
        "tools/call": Route("tools", named_by="name"),
        "resources/list": Route("resources"),
        "resources/templates/list": Route("resources"),
        "resources/read": Route("resources", named_by="uri"),
        "prompts/list": Route("prompts"),
        "prompts/get": Route("prompts", named_by="name"),
        "completion/complete": Route("completions"),
        "subscriptions/listen": Route("subscriptions"),
    }
)
"""The revision's own methods; `methods.extensions` has the methods of extensions."""

SUCCESSORS: Final = MappingProxyType(
    {
        "initialize": "every request carries its own protocol version and capabilities in params._meta",
        "ping": "call server/discover to see whether the server answers",
        "logging/setLevel": 'set params._meta["io.modelcontextprotocol/logLevel"] on each request instead',
        "resources/subscribe": "open subscriptions/listen with notifications.resourceSubscriptions",
        "resources/unsubscribe": "close the stream of subscriptions/listen",
        "tasks/result": "the result is in the answer of tasks/get once the task is completed",
        "tasks/list": "keep the taskId of each task; tasks/get reads one",
        "tasks/input_response": "answer the questions of a task with tasks/update",
    }
)
"""The replacement of each method of earlier revisions and drafts (changelog; SEP-2575,
SEP-2663)."""


def not_found(method: str, route: Route | None = None) -> MethodNotFound:
    """Return the error for a method that is not served; it names the successor if there is one.
    `route` is set for a method that other servers may serve."""
    if method == "initialize":
        versions = ", ".join(SUPPORTED_VERSIONS)
        message = f"Method not found: initialize was removed; this server speaks {versions}: {SUCCESSORS[method]}"
        return MethodNotFound(message, SUPPORTED_VERSIONS)
    if method in SUCCESSORS:
        return MethodNotFound(f"Method not found: {method} was removed; {SUCCESSORS[method]}")
    if route is not None:
        return MethodNotFound(
            f"Method not found: this server offers no {route.feature}; see server/discover"
        )
    return MethodNotFound(f"Method not found: {method[:100]}")


VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
_VERSION_FIELD: Final = VERSION_HEADER.lower().encode()
_METHOD_FIELD: Final = METHOD_HEADER.lower().encode()
_NAME_FIELD: Final = NAME_HEADER.lower().encode()


def validate_request(
    request: Request,
    received: Headers,
    features: Container[str],
    extensions: Mapping[str, Route] = MappingProxyType({}),
) -> Inbound:
    """Validate a request by checks 1 to 6, and return it as an `Inbound`.

    Args:
        request: one JSON-RPC request.
        received: its headers.
        features: the features that are served.
        extensions: the methods of extensions.

    Raises:
        ProtocolError: the error of the first check that fails.
    """
    # an older client can send neither the headers nor `_meta`, so name the reason first
    if request.method == "initialize":
        raise not_found(request.method)
    sent_version = _check_method_headers(request, received)
    envelope = _envelope(request.params)
    _check_version(envelope[VERSION_KEY], sent_version)
    meta = _meta(envelope)
    route = METHODS.get(request.method) or extensions.get(request.method)
    if route is None or (route.feature is not None and route.feature not in features):
        raise not_found(request.method, route)
    name = None if route.named_by is None else _mirrored(request.params, route, received)
    return Inbound(
        request.id, request.method, name, request.params, meta, PROTOCOL_VERSION, received
    )


def _check_method_headers(request: Request, received: Headers) -> str:
    """Make check 1, and return the value of the version header."""
    if received.repeated and (twice := repeated_header(received)) is not None:
        raise HeaderMismatch(f"Header mismatch: {twice} is sent more than once")
    version = read_header(received, _VERSION_FIELD)
    if version is None:
        raise HeaderMismatch(f"Header mismatch: {VERSION_HEADER} is missing")
    method = read_header(received, _METHOD_FIELD)
    if method is None:
        raise HeaderMismatch(
            f"Header mismatch: {METHOD_HEADER} is missing; it must mirror the body's method"
        )
    if method != request.method:
        raise HeaderMismatch(
            f"Header mismatch: {METHOD_HEADER} does not match the body's method (case counts)"
        )
    return version


def _envelope(params: dict[str, Any]) -> dict[str, Any]:
    envelope = params.get("_meta")
    if not isinstance(envelope, dict):
        raise InvalidParams(
            f'params._meta must be an object with "{VERSION_KEY}" and "{CAPABILITIES_KEY}"'
        )
    version, capabilities = envelope.get(VERSION_KEY), envelope.get(CAPABILITIES_KEY)
    if isinstance(version, str) and isinstance(capabilities, dict):
        return envelope
    for key in (VERSION_KEY, CAPABILITIES_KEY):
        if key not in envelope:
            raise InvalidParams(f'params._meta lacks the required "{key}"')
    if not isinstance(version, str):
        raise InvalidParams(f'params._meta["{VERSION_KEY}"] must be a string')
    raise InvalidParams(
        f'params._meta["{CAPABILITIES_KEY}"] must be an object; {{}} declares no capability'
    )


def _check_version(version: str, sent: str) -> None:
    if sent != version:
        raise HeaderMismatch(
            f'Header mismatch: {VERSION_HEADER} does not match _meta["{VERSION_KEY}"]'
        )
    if version not in SUPPORTED_VERSIONS:
        raise UnsupportedVersion(version, SUPPORTED_VERSIONS)


def _meta(envelope: dict[str, Any]) -> Meta:
    declared = ClientCapabilities.parse(envelope[CAPABILITIES_KEY])
    client_info, log_level = envelope.get(CLIENT_INFO_KEY), envelope.get(LOG_LEVEL_KEY)
    if client_info is not None and not isinstance(client_info, dict):
        raise InvalidParams(
            f'params._meta["{CLIENT_INFO_KEY}"] must be an object with name and version'
        )
    if log_level is not None and log_level not in LOG_LEVELS:
        raise InvalidParams(
            f'params._meta["{LOG_LEVEL_KEY}"] must be one of {", ".join(LOG_LEVELS)}'
        )
    token = envelope.get("progressToken")
    if token is not None and not _is_usable(token):
        token = None
    return Meta(declared, client_info, log_level, token, envelope)


def _is_usable(token: Any) -> bool:
    """Return whether a progress token is valid and short enough to repeat with every event."""
    return (
        len(token) <= MAX_ID
        if isinstance(token, str)
        else isinstance(token, int) and not isinstance(token, bool)
    )


def _mirrored(params: dict[str, Any], route: Route, received: Headers) -> str:
    name = params.get(route.named_by or "")
    if not isinstance(name, str):
        raise InvalidParams(f"params.{route.named_by} must be a string")
    sent = read_header(received, _NAME_FIELD)
    if sent is None:
        if route.needs_name_header:
            raise HeaderMismatch(
                f"Header mismatch: {NAME_HEADER} is missing; it must mirror params.{route.named_by}"
            )
    elif decode_value(NAME_HEADER, sent) != name:
        raise HeaderMismatch(
            f"Header mismatch: {NAME_HEADER} does not match params.{route.named_by}"
        )
    return name


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
