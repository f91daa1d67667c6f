"""Validating a request: (message, headers) → `Inbound`, or the error of the first check that fails.

The order is fixed by what clients and the conformance suite expect of each mistake
when a request has several:

    1  version and method headers are there, once; `Mcp-Method` equals the body's method     -32020
    2  `params._meta` is there with its required fields, a string and an object               -32602
    3  `MCP-Protocol-Version` equals `_meta`'s version                                        -32020
    4  the version is supported                                                               -32022
       and the rest of `_meta` is as this version has it                                      -32602
    5  the method is served                                                                   -32601
    6  `Mcp-Name` equals the body's name, uri or taskId                                       -32020

Checks 7 (`Mcp-Param-*`), 8 (client capabilities) and 9 (domain) need the tool;
`roundgate.methods` makes them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any, Final

from roundgate.errors import HeaderMismatch, InvalidParams, UnsupportedVersion
from roundgate.protocol import capabilities
from roundgate.protocol.capabilities import ClientCapabilities
from roundgate.protocol.header_lines import Headers
from roundgate.protocol.inbound import LOG_LEVELS, Inbound, Meta
from roundgate.protocol.jsonrpc import MAX_ID, Request
from roundgate.protocol.revision import Route
from roundgate.protocol.v2026_07_28 import headers, methods
from roundgate.protocol.v2026_07_28.methods import PROTOCOL_VERSION
from roundgate.protocol.versions import SUPPORTED_VERSIONS

VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
_VERSION_FIELD: Final = headers.PROTOCOL_VERSION.lower().encode()
_METHOD_FIELD: Final = headers.METHOD.lower().encode()
_NAME_FIELD: Final = headers.NAME.lower().encode()


def validate_request(
    request: Request,
    received: Headers,
    features: Container[str],
    extensions: Mapping[str, Route] = MappingProxyType({}),
) -> Inbound:
    """Checks 1 to 6 of one request, which came with these headers.

    `features` are those that there is something to serve for, `extensions` the methods that are not
    the revision's own.

    Raises:
        ProtocolError: of the first check that fails.
    """
    # an older client can send neither the headers nor `_meta`, and must be told why
    if request.method == "initialize":
        raise methods.not_found(request.method)
    _check_method_headers(request, received)
    envelope = _envelope(request.params)
    _check_version(envelope[VERSION_KEY], received)
    meta = _meta(envelope)
    route = methods.METHODS.get(request.method) or extensions.get(request.method)
    if route is None or (route.feature is not None and route.feature not in features):
        raise methods.not_found(request.method, route)
    name = None if route.named_by is None else _mirrored(request.params, route, received)
    return Inbound(
        request.id, request.method, name, request.params, meta, PROTOCOL_VERSION, received
    )


def _check_method_headers(request: Request, received: Headers) -> None:
    if (twice := headers.repeated(received)) is not None:
        raise HeaderMismatch(f"Header mismatch: {twice} is sent more than once")
    if _VERSION_FIELD not in received:
        raise HeaderMismatch(f"Header mismatch: {headers.PROTOCOL_VERSION} is missing")
    method = headers.read(received, _METHOD_FIELD)
    if method is None:
        raise HeaderMismatch(
            f"Header mismatch: {headers.METHOD} is missing; it must mirror the body's method"
        )
    if method != request.method:
        raise HeaderMismatch(
            f"Header mismatch: {headers.METHOD} does not match the body's method (case counts)"
        )


def _envelope(params: dict[str, Any]) -> dict[str, Any]:
    envelope = params.get("_meta")
    if not isinstance(envelope, dict):
        raise InvalidParams(
            f'params._meta must be an object with "{VERSION_KEY}" and "{capabilities.META_KEY}"'
        )
    for key in (VERSION_KEY, capabilities.META_KEY):
        if key not in envelope:
            raise InvalidParams(f'params._meta lacks the required "{key}"')
    if not isinstance(envelope[VERSION_KEY], str):
        raise InvalidParams(f'params._meta["{VERSION_KEY}"] must be a string')
    if not isinstance(envelope[capabilities.META_KEY], dict):
        raise InvalidParams(
            f'params._meta["{capabilities.META_KEY}"] must be an object; {{}} declares no '
            "capability"
        )
    return envelope


def _check_version(version: str, received: Headers) -> None:
    if headers.read(received, _VERSION_FIELD) != version:
        raise HeaderMismatch(
            f'Header mismatch: {headers.PROTOCOL_VERSION} does not match _meta["{VERSION_KEY}"]'
        )
    if version not in SUPPORTED_VERSIONS:
        raise UnsupportedVersion(version, SUPPORTED_VERSIONS)


def _meta(envelope: dict[str, Any]) -> Meta:
    declared = ClientCapabilities.parse(envelope[capabilities.META_KEY])
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
    return Meta(declared, client_info, log_level, token if _is_usable(token) else None, envelope)


def _is_usable(token: Any) -> bool:
    """Whether a progress token is one that the protocol allows, and short enough to be
    repeated with every event."""
    return (
        len(token) <= MAX_ID
        if isinstance(token, str)
        else isinstance(token, int) and not isinstance(token, bool)
    )


def _mirrored(params: dict[str, Any], route: Route, received: Headers) -> str:
    name = params.get(route.named_by or "")
    if not isinstance(name, str):
        raise InvalidParams(f"params.{route.named_by} must be a string")
    sent = headers.read(received, _NAME_FIELD)
    if sent is None:
        if route.needs_name_header:
            raise HeaderMismatch(
                f"Header mismatch: {headers.NAME} is missing; it must mirror "
                f"params.{route.named_by}"
            )
    elif headers.decode_value(headers.NAME, sent) != name:
        raise HeaderMismatch(
            f"Header mismatch: {headers.NAME} does not match params.{route.named_by}"
        )
    return name
