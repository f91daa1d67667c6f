"""What a request ends with when it cannot be served: its own fault, its caller's
rights, or a fault of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from roundgate.errors.base import GatewayError


class ProtocolError(GatewayError):
    """The request is at fault."""


class ParseError(ProtocolError):
    """The body is not the JSON we accept; no request id could be read."""


class InvalidRequest(ProtocolError):
    """JSON, but not one JSON-RPC 2.0 request or notification. `request_id` is the id
    where it could be read."""

    def __init__(self, message: str, request_id: str | int | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class MethodNotFound(ProtocolError):
    """A method that this server does not serve. `supported_versions` is told to clients
    that try `initialize`."""

    def __init__(self, message: str, supported_versions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.supported_versions = supported_versions

    @property
    def data(self) -> dict[str, Any] | None:
        return {"supported": list(self.supported_versions)} if self.supported_versions else None


class InvalidParams(ProtocolError):
    """`params` or `params._meta` has the wrong shape, or names something that does not exist."""


MAX_URI: Final = 200
"""Characters of a URI that an error repeats."""


class ResourceNotFound(InvalidParams):
    """No resource has this URI."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            f"Resource not found: {uri[:MAX_URI]}; resources/list and resources/templates/list say what can be read"
        )
        self.uri = uri

    @property
    def data(self) -> dict[str, Any] | None:
        return {"uri": self.uri}


REFUSAL: Final = "requestState is not valid for this request; start the call again without it"


class StateRefused(InvalidParams):
    """A `requestState` that is not taken; why is in the log alone."""

    def __init__(self) -> None:
        super().__init__(REFUSAL)


class TaskNotFound(InvalidParams):
    """A task id that the caller has no task under: unknown, expired,
    malformed, or somebody else's."""

    def __init__(self) -> None:
        super().__init__(
            "Unknown task: there is none with this id, it has expired, or it is not yours"
        )


class HeaderMismatch(ProtocolError):
    """A header is missing, malformed, repeated, or disagrees with the body."""


class MissingCapability(ProtocolError):
    """A client lacks capabilities that a call needs. `missing` is shaped like `ClientCapabilities`:
    exactly the capabilities that the client would have to add.

    `what_for` names the caller that needs them; `has_substitute` is True if a `fallback` in the
    configuration can replace them. The text includes all of this and the remedy, because many
    clients show only the text.
    """

    def __init__(
        self, what_for: str, missing: Mapping[str, Any], has_substitute: bool = True
    ) -> None:
        named = ", ".join(_paths(missing))
        super().__init__(
            f"{what_for} needs client capabilities that this request does not declare: {named}. "
            f"Use a client that has them{_substitutes(missing) if has_substitute else ''}"
        )
        self.what_for = what_for
        self.missing = missing
        self.has_substitute = has_substitute

    @property
    def data(self) -> dict[str, Any] | None:
        return {"requiredCapabilities": dict(self.missing)}


_QUESTIONS: Final = frozenset({"elicitation", "sampling", "roots"})


def _substitutes(missing: Mapping[str, Any]) -> str:
    """Return the settings with which the server does without these capabilities."""
    settings = []
    if _QUESTIONS & missing.keys():
        settings.append("fallback.ask_in_words: true")
    if "io.modelcontextprotocol/tasks" in missing.get("extensions", {}):
        settings.append("fallback.without_tasks: wait")
    if not settings:
        return ""
    return f", or set {' and '.join(settings)} in the server's gateway.yaml"


def _paths(missing: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """`{"elicitation": {"form": {}}, "roots": {}}` as elicitation.form, roots."""
    for name, inner in missing.items():
        if isinstance(inner, Mapping) and inner:
            yield from _paths(inner, f"{above}{name}.")
        else:
            yield f"{above}{name}"


class UnsupportedVersion(ProtocolError):
    """A protocol revision that this server does not speak."""

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        super().__init__(f"Unsupported protocol version: this server speaks {', '.join(supported)}")
        self.requested = requested
        self.supported = supported

    @property
    def data(self) -> dict[str, Any] | None:
        return {"supported": list(self.supported), "requested": self.requested}


class TransportError(GatewayError):
    """Refused before JSON-RPC is looked at; `status` is the HTTP status of RFC
    9110, `headers` go with it."""

    def __init__(
        self, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class SessionNotFound(TransportError):
    """404: a session id that is not taken; the client has to open another session."""

    def __init__(self) -> None:
        super().__init__(
            404,
            "Session not found: it has expired, was ended, or is not yours; begin with initialize",
        )


class Unavailable(GatewayError):
    """What is needed to answer cannot be had just now: try again in `retry_s` seconds. A
    write may have happened."""

    retry_s: Final = 5


class StoreAway(Unavailable):
    """What is kept of a session's calls cannot be read or written, and it has been tried for a
    while: a client that comes back for its call may find it."""


class AuthError(GatewayError):
    """The caller is not known or not allowed. `error` is RFC 6750's code, `None` if no
    token was sent at all."""

    status = 401

    def __init__(self, error: str | None, message: str, scopes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.error = error
        self.scopes = scopes


class Unauthenticated(AuthError):
    """401: no token, or none that holds."""


class InsufficientScope(AuthError):
    """403: `scopes` are those that a new token would need."""

    status = 403

    def __init__(self, what: str, scopes: Sequence[str]) -> None:
        super().__init__("insufficient_scope", f"{what} needs the scope {' '.join(scopes)}", scopes)


class InternalError(GatewayError):
    """Our own fault, or a handler's. The wire gets one sentence with the reference under
    which the log has the rest."""

    def __init__(self, reference: str, shown: str | None = None) -> None:
        """`shown` is what its caller sees of the cause, in development."""
        said = f": {shown}" if shown else ""
        super().__init__(
            f"Internal error{said}; the server's log has the details under reference {reference}"
        )
        self.reference = reference
