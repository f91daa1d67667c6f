"""How a round ended, as bytes that are kept for whoever asks for the same round again:
`label result`, or an error."""

from __future__ import annotations

from typing import Any, Final

from roundgate import json
from roundgate.errors import (
    GatewayError,
    InternalError,
    InvalidParams,
    MissingCapability,
    ResourceNotFound,
    ToolError,
)
from roundgate.methods.results import Reply

_KINDS: Final = {
    kind.__name__: kind
    for kind in (MissingCapability, ResourceNotFound, InternalError, ToolError, InvalidParams)
}
_ERROR: Final = b"error"


def kept_reply(reply: Reply) -> bytes:
    """A reply as it is kept."""
    return b"%b %b" % (reply.label.encode(), reply.result)


def kept_error(error: GatewayError) -> bytes:
    """An error as it is kept: what it takes to raise it again. One of a kind that is not known here
    becomes `InvalidParams` with its words."""
    match error:
        case MissingCapability():
            about = [error.what_for, dict(error.missing), error.has_substitute]
            facts: list[Any] = ["MissingCapability", *about]
        case ResourceNotFound():
            facts = ["ResourceNotFound", error.uri]
        case InternalError():
            facts = ["InternalError", error.reference]
        case ToolError():
            facts = ["ToolError", str(error)]
        case _:
            facts = ["InvalidParams", str(error)]
    return b"%b %b" % (_ERROR, json.encode(facts))


def reply_of(kept: bytes) -> Reply:
    """The reply that was kept.

    Raises:
        GatewayError: an error was.
    """
    word, _, body = kept.partition(b" ")
    if word != _ERROR:
        return Reply(body, word.decode())
    name, *facts = json.decode(body)
    raise _KINDS[name](*facts)
