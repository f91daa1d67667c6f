"""What a function answered: JSON, bytes, the response of an HTTP
integration, or an error of its own.

{"total": 3}                                                     JSON, as it is
{"isBase64Encoded": true, "contentType": "image/png", "body": …} bytes
{"statusCode": 404, "headers": {…}, "body": "…"}                 as API Gateway would read it
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from roundgate import json
from roundgate.backends.aws_lambda.invoking import Target
from roundgate.backends.http.messages import Answer
from roundgate.errors import BackendError, FunctionFailed, ParseError

_JSON: Final = "application/json"
_OF_A_RESPONSE: Final = frozenset(
    {
        *("statusCode", "statusDescription", "headers", "multiValueHeaders", "cookies", "body"),
        "isBase64Encoded",
    }
)
_MARKS: Final = (b'"statusCode"', b'"isBase64Encoded"')
"""What only an answer can have that is more than JSON; looking for them is
cheaper than reading it."""
_TOO_LARGE: Final = "Function.ResponseSizeTooLarge"
MAX_CHARS: Final = 500
"""Of what a function says of its failure."""


def answer_of(payload: bytes) -> Answer:
    """The payload of an invocation that went well, as one answer whatever form it has.

    Raises:
        BackendError: it says that it is base64, and is not.
    """
    value = _members(payload)
    if value.get("isBase64Encoded") is True and isinstance(value.get("body"), str):
        return _response(value, _bytes(value["body"]))
    body = value.get("body", "")
    if (
        type(value.get("statusCode")) is int
        and value.keys() <= _OF_A_RESPONSE
        and isinstance(body, str)
    ):
        return _response(value, body.encode("utf-8", "replace"))
    return Answer(200, "OK", _JSON, payload or b"null")


def failure_of(payload: bytes, target: Target) -> FunctionFailed:
    """What the caller is told of a function's own error: its type and its
    message, not its stack."""
    try:
        said = json.decode(payload)
    except ParseError:
        said = None
    said = said if isinstance(said, Mapping) else {}
    kind, message = line(said.get("errorType")), line(said.get("errorMessage"))
    if kind == "Sandbox.Timedout" or "Task timed out after" in message:
        return FunctionFailed(
            f"The function {target.name} ran out of its own time, and may have done a part of its "
            f"work: {message}"
        )
    if kind == _TOO_LARGE:
        return FunctionFailed(
            f"The function {target.name} answered more than AWS Lambda returns, and may have done its "
            f"work: {message} Ask for less, or have it answer with a reference to where the data is"
        )
    told = ": ".join(part for part in (kind, message) if part)
    return FunctionFailed(f"The function {target.name} failed: {told or 'it did not say why'}")


def _members(payload: bytes) -> Mapping[str, Any]:
    """Those of an answer that may be more than JSON."""
    if not (payload.lstrip()[:1] == b"{" and any(mark in payload for mark in _MARKS)):
        return {}
    try:
        value = json.decode(payload)
    except ParseError:
        return {}
    return value if isinstance(value, dict) else {}


def _response(value: Mapping[str, Any], body: bytes) -> Answer:
    given = value.get("statusCode", 200)
    status = given if type(given) is int and 100 <= given <= 599 else 502
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = ""
    return Answer(status, reason, _content_type(value, body), body)


def _content_type(value: Mapping[str, Any], body: bytes) -> str:
    headers = value.get("headers")
    named = (
        {str(name).lower(): one for name, one in headers.items()}
        if isinstance(headers, Mapping)
        else {}
    )
    given = value.get("contentType") or named.get("content-type")
    if isinstance(given, str):
        return given
    if value.get("isBase64Encoded") is True:
        return "application/octet-stream"
    return _JSON if body.lstrip()[:1] in (b"{", b"[") else "text/plain"


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BackendError("The function says that its answer is base64, and it is not") from None


def line(said: Any) -> str:
    """A text of a function on one line, without what no terminal should get."""
    text = " ".join(said.split()) if isinstance(said, str) else ""
    shown = "".join(char for char in text if char.isprintable())
    return shown if len(shown) <= MAX_CHARS else f"{shown[:MAX_CHARS]}…"
