"""The reading of these revisions' requests as `Inbound`, and of `initialize` (basic/lifecycle)."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

from msgspec import Meta as Constraint
from msgspec import Struct, field

from roundgate.errors import InvalidParams, MethodNotFound
from roundgate.protocol import jsonrpc
from roundgate.protocol.jsonrpc import MAX_ID, ClientCapabilities, Inbound, Meta, Request
from roundgate.protocol.params import Params
from roundgate.protocol.v2025.shapes import OlderRevision, negotiated

MAX_NAME: Final = 100
"""The maximum length of a client's name, and of its version, in its session, in characters."""

FEATURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tools/list": "tools",
        "tools/call": "tools",
        "resources/list": "resources",
        "resources/templates/list": "resources",
        "resources/read": "resources",
        "prompts/list": "prompts",
        "prompts/get": "prompts",
        "completion/complete": "completions",
    }
)
"""The methods that every revision has, each with the feature that must be served."""
_NAMED: Final = MappingProxyType(
    {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
)
_OF_LATER: Final = frozenset({"inputResponses", "requestState"})


class _InitializeParams(Params, frozen=True):
    protocol_version: Annotated[str, Constraint(max_length=MAX_NAME)]
    capabilities: dict[str, Any] = field(default_factory=dict)
    client_info: dict[str, Any] = field(default_factory=dict)


class SessionOpening(Struct, frozen=True):
    """The client's statements when it opens a session."""

    requested: str
    """The revision that the client asked for."""
    revision: OlderRevision
    """The revision of the session."""
    capabilities: Mapping[str, Any]
    """The declared capabilities that let a server ask the client questions in this revision."""
    client_info: Mapping[str, str]

    @classmethod
    def of(cls, request: Request) -> SessionOpening:
        """Read the params of `initialize`.

        Raises:
            InvalidParams: the params are malformed.
        """
        opening = jsonrpc.validate(_InitializeParams, request.params)
        revision = negotiated(opening.protocol_version)
        named = {
            name: text[:MAX_NAME]
            for name, text in opening.client_info.items()
            if name in ("name", "version") and isinstance(text, str)
        }
        return cls(
            opening.protocol_version, revision, _askable(revision, opening.capabilities), named
        )


def _askable(revision: OlderRevision, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declared capabilities that let a server ask, as the newest `ClientCapabilities`.
    Raise InvalidParams if one is not an object."""
    askable: dict[str, Any] = {}
    for name in ("elicitation", "sampling", "roots"):
        capability = declared.get(name)
        if capability is None or name not in revision.asks:
            continue
        if not isinstance(capability, dict):
            raise InvalidParams(f"params.capabilities.{name} must be an object")
        askable[name] = {part: {} for part in capability if f"{name}.{part}" in revision.asks}
    # a client that names no mode has forms (2025-11-25); earlier revisions have only forms
    if "elicitation" in askable:
        capability = declared["elicitation"]
        if "form" in capability or not askable["elicitation"]:
            askable["elicitation"]["form"] = {}
    return askable


def make_inbound(
    request: Request,
    revision: OlderRevision,
    capabilities: ClientCapabilities,
    client_info: Mapping[str, str],
    features: Container[str],
) -> Inbound:
    """Validate a request of a session, for the methods that all revisions have.

    Raises:
        MethodNotFound: not every revision has the method, or its feature is not served.
        InvalidParams: `_meta`, or the name in the request, is malformed.
    """
    feature = FEATURES.get(request.method)
    if feature is None or feature not in features:
        raise MethodNotFound(f"Method not found: {request.method[:100]}")
    raw_meta = request.params.get("_meta", {})
    if not isinstance(raw_meta, dict):
        raise InvalidParams("params._meta must be an object")
    member = _NAMED.get(request.method)
    name = None if member is None else request.params.get(member)
    if member is not None and not isinstance(name, str):
        raise InvalidParams(f"params.{member} must be a string")
    # every level: the session's own level is stored in a row that is read when a handler logs
    meta = Meta(capabilities, dict(client_info), "debug", _progress_token(raw_meta), raw_meta)
    own = request.params
    if not _OF_LATER.isdisjoint(own):
        own = {key: value for key, value in own.items() if key not in _OF_LATER}
    return Inbound(request.id, request.method, name, own, meta, revision.version)


def _progress_token(meta: Mapping[str, Any]) -> str | int | None:
    token = meta.get("progressToken")
    if isinstance(token, str):
        return token if len(token) <= MAX_ID else None
    return token if isinstance(token, int) and not isinstance(token, bool) else None
