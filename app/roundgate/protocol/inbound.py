"""A valid request of any revision: its headers, its client's capabilities, and its revision.

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

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate.errors import InvalidParams, MissingCapability
from roundgate.protocol.jsonrpc import RequestId

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
