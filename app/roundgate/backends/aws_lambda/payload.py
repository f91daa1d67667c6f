"""The payload of an invocation: arguments and what goes with them, within AWS Lambda's limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from roundgate import json
from roundgate.backends.aws_lambda.config import (
    MAX_PAYLOAD_BYTES,
    HttpEventConfig,
    PayloadConfig,
)
from roundgate.backends.http.secrets import SECRET_NAME, parted
from roundgate.errors import ToolError

MAX_EVENT_BYTES: Final = 1_048_576
"""Of an asynchronous invocation's payload (API `Invoke`: 1 MB)."""
RESPONSES: Final = "inputResponses"
"""Member of the payload of a second exchange and later ones, which no first one may have."""


def payload_of(
    config: PayloadConfig, arguments: Mapping[str, Any], told: Mapping[str, Any]
) -> dict[str, Any]:
    """What a function gets.

    Args:
        config: what is sent besides the arguments.
        arguments: those of the call.
        told: what the client context says.

    Raises:
        ToolError: an argument has the name of something that is sent anyway.
    """
    inside = {config.arguments_in: dict(arguments)} if config.arguments_in else dict(arguments)
    more = dict(config.fixed)
    if config.context_in is not None:
        more[config.context_in] = dict(told)
    if taken := sorted(inside.keys() & more.keys()):
        raise ToolError(f"{', '.join(taken)}: is the gateway's own; leave it out")
    return {**inside, **more}


def bytes_of(payload: Any, *, is_event: bool) -> bytes:
    """A payload as it is sent.

    Raises:
        ToolError: it is larger than AWS Lambda takes.
    """
    data = json.encode(payload)
    limit = MAX_EVENT_BYTES if is_event else MAX_PAYLOAD_BYTES
    if len(data) > limit:
        raise ToolError(
            f"The payload for the function has {len(data)} bytes, and AWS Lambda takes {limit} at"
            " most, so it was not invoked. Give it less at once, or a reference to where the data is"
        )
    return data


def secrets_of(config: PayloadConfig | HttpEventConfig) -> Iterator[str]:
    """Texts that are always sent under a name that says they are secret."""
    fixed = config.headers if isinstance(config, HttpEventConfig) else config.fixed
    yield from parted(_secrets(fixed, is_secret=False))


def _secrets(value: Any, *, is_secret: bool) -> Iterator[str]:
    match value:
        case str() if is_secret:
            yield value
        case dict():
            for name, inner in value.items():
                named = is_secret or bool(SECRET_NAME.search(name))
                yield from _secrets(inner, is_secret=named)
        case list():
            for inner in value:
                yield from _secrets(inner, is_secret=is_secret)
