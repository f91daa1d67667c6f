"""The payloads of invocations and of their answers.

An invocation sends the payload, or an event of an HTTP API, and the client context (API `Invoke`,
`ClientContext`), within AWS Lambda's limits. The client context describes the call to the function.
The runtimes of Python and Java read its member `custom`:

    {"custom": {"roundgate": {"tool": "orders__find", "subject": "ada", "issuer": "https://…", "client": "app",
                              "key": "…", "exchange": 1, "traceparent": "00-…"}}}

The client context contains neither the caller's token nor data from which the token could be
rebuilt. The caller's names are never cut, because a part of a subject could be another caller's.

A function answers JSON, bytes, the response of an HTTP integration, or an error of its own:

    {"total": 3}                                                     JSON, as it is
    {"isBase64Encoded": true, "contentType": "image/png", "body": …} bytes
    {"statusCode": 404, "headers": {…}, "body": "…"}                 as API Gateway would read it
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from pydantic import SecretStr

from roundgate import json, lenient
from roundgate.auth import Principal
from roundgate.backends.aws_lambda.config import (
    MAX_PAYLOAD_BYTES,
    HttpEventConfig,
    LambdaToolConfig,
    PayloadConfig,
)
from roundgate.backends.aws_lambda.invoking import FunctionTarget
from roundgate.backends.http.config import HttpArgument, HttpToolConfig
from roundgate.backends.http.endpoint import PATH_VARIABLE, ToolEndpoint
from roundgate.backends.http.messages import Outgoing, ServiceAnswer
from roundgate.backends.http.secrets import SECRET_NAME, parted
from roundgate.errors import FunctionFailed, ParseError, ToolError, UnexpectedAnswer
from roundgate.observability.tracing import outgoing
from roundgate.protocol import without_none

MAX_CONTEXT_CHARS: Final = 3_583
"""The limit on the client context in base64."""
_MAY_BE_LEFT_OUT: Final = ("baggage", "tracestate", "traceparent")
"""The members to omit, in this order, if the context is too long."""


def facts(
    tool: str, principal: Principal, key: str | None, exchange: int, meta: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the facts about a call that its function receives.

    Args:
        tool: the full name of the tool.
        key: the idempotency key, the same for each attempt; `None` if the call only asks about a
        job.
        exchange: the number in a dialogue, from 1.
        meta: the `_meta` of the request, which may have a trace context.

    Raises:
        ToolError: a name of the caller has half a surrogate pair, so its encoding would be another
            caller's name.
    """
    try:
        "".join(principal.identity).encode()
    except UnicodeEncodeError:
        raise ToolError(
            "The caller's name is not valid Unicode, so a function cannot receive it"
        ) from None
    return {
        "tool": tool,
        "subject": principal.subject,
        "issuer": principal.issuer,
        **without_none(client=principal.client_id or None, key=key),
        "exchange": exchange,
        **outgoing(meta),
    }


def encoded(facts: Mapping[str, Any]) -> str:
    """Return the client context for boto3: JSON in base64.

    Raises:
        ToolError: the context is too long, even without the trace.
    """
    shortened = dict(facts)
    for name in (*_MAY_BE_LEFT_OUT, None):
        text = base64.b64encode(json.encode({"custom": {"roundgate": shortened}})).decode()
        if len(text) <= MAX_CONTEXT_CHARS:
            return text
        shortened.pop(name or "", None)
    raise ToolError(
        f"The client context has {len(text)} characters, and AWS Lambda accepts {MAX_CONTEXT_CHARS};"
        " use a shorter subject, or set client_context: false for this back end"
    )


MAX_EVENT_BYTES: Final = 1_048_576
"""The limit on an asynchronous invocation's payload (API `Invoke`: 1 MB)."""
RESPONSES: Final = "inputResponses"
"""A member that only payloads from the second exchange on have."""


def make_payload(
    config: PayloadConfig, arguments: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the payload of an invocation.

    Args:
        config: the members besides the arguments.
        facts: the facts of the client context.

    Raises:
        ToolError: an argument has the name of another member.
    """
    inside = {config.arguments_in: dict(arguments)} if config.arguments_in else dict(arguments)
    more = dict(config.fixed)
    if config.context_in is not None:
        more[config.context_in] = dict(facts)
    if clashes := sorted(inside.keys() & more.keys()):
        raise ToolError(f"{', '.join(clashes)}: is reserved for the gateway; leave it out")
    return {**inside, **more}


def encode_payload(payload: Any, *, is_event: bool) -> bytes:
    """Encode a payload as JSON.

    Raises:
        ToolError: the payload is larger than AWS Lambda accepts.
    """
    data = json.encode(payload)
    limit = MAX_EVENT_BYTES if is_event else MAX_PAYLOAD_BYTES
    if len(data) > limit:
        raise ToolError(
            f"The payload for the function has {len(data)} bytes, and AWS Lambda accepts {limit} at"
            " most, so it was not invoked. Send less at once, or a reference to the data"
        )
    return data


def fixed_secrets(config: PayloadConfig | HttpEventConfig) -> Iterator[str]:
    """Yield the fixed texts whose names mark them as secret."""
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


def make_endpoint(tool: LambdaToolConfig, http: HttpEventConfig) -> ToolEndpoint:
    """Return the endpoint that places a tool's arguments in a request.

    Raises:
        ValueError: path and arguments contradict each other.
    """
    required = tool.input_schema.get("required", ())
    properties: Mapping[str, Any] = tool.input_schema.get("properties", {})
    if missing := sorted({*PATH_VARIABLE.findall(http.path)} - properties.keys()):
        raise ValueError(f"http.path needs {', '.join(missing)}, which input_schema does not have")
    config = HttpToolConfig.model_construct(  # Lambda's settings are validated already
        name=tool.name,
        description=tool.description,
        method=http.method,
        path=http.path,
        headers={name.lower(): SecretStr(value) for name, value in http.headers.items()},
        arguments={
            name: HttpArgument.model_construct(schema_=schema, required=name in required)
            for name, schema in properties.items()
        },
    )
    return ToolEndpoint(config)


def http_event(outgoing: Outgoing, request_id: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as the event of an HTTP API (payload format 2.0). The facts about the call
    take the place of a Lambda authorizer's claims."""
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
            **({"authorizer": {"lambda": {"roundgate": dict(facts)}}} if facts else {}),
            "requestId": request_id,
            "routeKey": "$default",
            "stage": "$default",
        },
        **body,
        "isBase64Encoded": False,
    }


def _joined(query: str) -> dict[str, str]:
    """Return parameters by name. Join repeated parameters with commas, as API Gateway does."""
    joined: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    return joined


# Answers

_JSON: Final = "application/json"
_OF_A_RESPONSE: Final = frozenset(
    {
        *("statusCode", "statusDescription", "headers", "multiValueHeaders", "cookies", "body"),
        "isBase64Encoded",
    }
)
_MARKS: Final = (b'"statusCode"', b'"isBase64Encoded"')
"""Members that only bytes and responses have; searching for them is cheaper than parsing."""
_TOO_LARGE: Final = "Function.ResponseSizeTooLarge"
MAX_CHARS: Final = 500
"""The limit on the text of a function's failure, in characters."""


def answer_from_payload(payload: bytes) -> ServiceAnswer:
    """Convert the payload of a successful invocation to an answer.

    Raises:
        UnexpectedAnswer: the body is declared as base64, but is not base64.
    """
    value = _members(payload)
    body, status = value.get("body"), _status(value.get("statusCode"))
    if value.get("isBase64Encoded") is True and isinstance(body, str):
        return _response(value, status or 200, _bytes(body))
    if status is not None and value.keys() <= _OF_A_RESPONSE and isinstance(body, str | None):
        return _response(value, status, (body or "").encode("utf-8", "replace"))
    return ServiceAnswer(200, "OK", _JSON, payload or b"null")


def failure_from_payload(payload: bytes, target: FunctionTarget) -> FunctionFailed:
    """Convert a function's own error to the caller's error: type and message, without the stack."""
    try:
        details = lenient.read(payload).value
    except ParseError:
        details = None
    details = details if isinstance(details, Mapping) else {}
    kind, message = line(details.get("errorType")), line(details.get("errorMessage"))
    if kind == "Sandbox.Timedout" or "Task timed out after" in message:
        return FunctionFailed(
            f"The function {target.name} reached its own timeout, and may have done a part of its "
            f"work: {message}"
        )
    if kind == _TOO_LARGE:
        return FunctionFailed(
            f"The function {target.name} answered more than AWS Lambda returns, and may have done its "
            f"work: {message} Ask for less, or make the function return a reference to the data"
        )
    description = ": ".join(part for part in (kind, message) if part)
    return FunctionFailed(
        f"The function {target.name} failed: {description or 'it gave no reason'}"
    )


def _members(payload: bytes) -> Mapping[str, Any]:
    """Return the members of an answer that may be bytes or a response."""
    if not (payload.lstrip()[:1] == b"{" and any(mark in payload for mark in _MARKS)):
        return {}
    try:
        value = lenient.read(payload).value
    except ParseError:
        return {}
    return value if isinstance(value, dict) else {}


def _status(code: Any) -> int | None:
    """Return the status of a response, or `None` if a value is none. Some functions write it as
    text, which API Gateway reads, too."""
    if isinstance(code, str) and code.isascii() and code.isdecimal():
        code = int(code[:9])
    if type(code) is not int:
        return None
    return code if 100 <= code <= 599 else 502


def _response(value: Mapping[str, Any], status: int, body: bytes) -> ServiceAnswer:
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = ""
    return ServiceAnswer(status, reason, _content_type(value, body), body).in_utf8()


def _content_type(value: Mapping[str, Any], body: bytes) -> str:
    headers = value.get("headers")
    named = (
        {str(name).lower(): header for name, header in headers.items()}
        if isinstance(headers, Mapping)
        else {}
    )
    content_type = value.get("contentType") or named.get("content-type")
    if isinstance(content_type, str):
        return content_type
    if value.get("isBase64Encoded") is True:
        return "application/octet-stream"
    return _JSON if body.lstrip()[:1] in (b"{", b"[") else "text/plain"


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UnexpectedAnswer(
            "The function marked its answer as base64, but the body is not base64"
        ) from None


def line(value: Any) -> str:
    """Return a function's text on one line, without unprintable characters."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    shown = "".join(char for char in text if char.isprintable())
    return shown if len(shown) <= MAX_CHARS else f"{shown[:MAX_CHARS]}…"
