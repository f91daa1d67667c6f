"""What an invocation sends: the payload, or an event of an HTTP API, and the client context
(API `Invoke`, `ClientContext`), within AWS Lambda's limits.

The client context tells the function of its call beside the payload. `custom` is where the
runtimes of Python and Java look:

    {"custom": {"roundgate": {"tool": "orders__find", "subject": "ada", "issuer": "https://…", "client": "app",
                              "key": "…", "exchange": 1, "traceparent": "00-…"}}}

It has neither the caller's token nor anything that a token could be made of. Names of the caller
are never cut: half of a subject could be another caller's.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from roundgate import json
from roundgate.auth import Principal
from roundgate.backends.aws_lambda.config import (
    MAX_PAYLOAD_BYTES,
    HttpEventConfig,
    LambdaToolConfig,
    PayloadConfig,
)
from roundgate.backends.http.bodies import Argument, Location
from roundgate.backends.http.endpoint import PATH_VARIABLE, Endpoint
from roundgate.backends.http.messages import Outgoing
from roundgate.backends.http.secrets import SECRET_NAME, parted
from roundgate.errors import ToolError
from roundgate.observability.tracing import outgoing
from roundgate.protocol import without_none

MAX_CONTEXT_CHARS: Final = 3_583
"""Of the client context in base64."""
_MAY_BE_LEFT_OUT: Final = ("baggage", "tracestate", "traceparent")
"""What goes first where there is no room for all."""


def facts(
    tool: str, principal: Principal, key: str | None, exchange: int, meta: Mapping[str, Any]
) -> dict[str, Any]:
    """What a function is told.

    Args:
        tool: its whole name.
        principal: who calls.
        key: the same however often this invocation is made, for a function that wants to do it
            once; `None` for one that only looks.
        exchange: which one of a dialogue it is, from 1.
        meta: of the request, which may have a trace context.

    Raises:
        ToolError: a name of who calls has half a surrogate pair: written down, it
            would become somebody else's.
    """
    try:
        "".join(principal.identity).encode()
    except UnicodeEncodeError:
        raise ToolError(
            "Who calls has a name that is no text; a function cannot be told it"
        ) from None
    return {
        "tool": tool,
        "subject": principal.subject,
        "issuer": principal.issuer,
        **without_none(client=principal.client_id or None, key=key),
        "exchange": exchange,
        **outgoing(meta),
    }


def encoded(told: Mapping[str, Any]) -> str:
    """As boto3 wants it: JSON in base64.

    Raises:
        ToolError: it does not fit, even without the trace.
    """
    kept = dict(told)
    for name in (*_MAY_BE_LEFT_OUT, None):
        text = base64.b64encode(json.encode({"custom": {"roundgate": kept}})).decode()
        if len(text) <= MAX_CONTEXT_CHARS:
            return text
        kept.pop(name or "", None)
    raise ToolError(
        f"Who calls takes {len(text)} characters, and a function can be told {MAX_CONTEXT_CHARS};"
        " use a shorter subject, or set client_context: false for this back end"
    )


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


def endpoint_of(tool: LambdaToolConfig, http: HttpEventConfig) -> Endpoint:
    """Where the arguments of a tool go in a request.

    Raises:
        ValueError: path and arguments contradict each other.
    """
    variables = PATH_VARIABLE.findall(http.path)
    elsewhere: Location = "query" if http.method in ("GET", "HEAD", "DELETE") else "body"
    properties: Mapping[str, Any] = tool.input_schema.get("properties", {})
    required = tool.input_schema.get("required", ())
    placed = [
        Argument(
            name,
            "path" if name in variables else elsewhere,
            name,
            schema,
            required=name in required,
        )
        for name, schema in properties.items()
    ]
    return Endpoint(
        tool.name,
        tool.description,
        http.method,
        http.path,
        placed,
        headers={name.lower(): value for name, value in http.headers.items()},
    )


def http_event(outgoing: Outgoing, request_id: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """A request as the event of an HTTP API (payload format 2.0); what a function is told stands
    where the claims of an AWS Lambda authorizer would."""
    query = outgoing.query
    body = {} if outgoing.body is None else {"body": outgoing.body.decode()}
    path = unquote(outgoing.path)
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": dict(outgoing.headers),
        **({"queryStringParameters": _joined(query)} if query else {}),
        "requestContext": {
            "http": {"method": outgoing.method, "path": path, "protocol": "HTTP/1.1"},
            **({"authorizer": {"lambda": {"roundgate": dict(told)}}} if told else {}),
            "requestId": request_id,
            "routeKey": "$default",
            "stage": "$default",
        },
        **body,
        "isBase64Encoded": False,
    }


def _joined(query: str) -> dict[str, str]:
    """Parameters by name; the values of one that comes several times are joined by commas,
    as API Gateway has it."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        found[name] = f"{found[name]},{value}" if name in found else value
    return found
