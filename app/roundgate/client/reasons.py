"""The server's own words about a refusal: what a person needs to do something about it.

Read from a JSON-RPC error, from the JSON that frameworks and OAuth send, from one line of plain
text, or from the challenge. The text is a server's: it is short, on one line, and never repeats a
header of the request that may be a credential.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from roundgate.client.auth import challenge_parameters
from roundgate.client.transport import HttpResponse
from roundgate.errors import ClientError, ParseError
from roundgate.json import decode

_MAX_BODY: Final = 16 * 1024
_READ_S: Final = 5
_LONGEST: Final = 300
_SHORTEST_SECRET: Final = 6
_MEMBERS: Final = ("error_description", "message", "detail", "title", "error")
_PUBLIC: Final = frozenset({"accept", "accept-encoding", "content-type", "mcp-protocol-version"})


async def reason_of(response: HttpResponse, sent: Iterable[tuple[str, str]] = ()) -> str:
    """Return ": " and why a server refused a request, or nothing if it does not say.

    Args:
        response: whose body nobody has read.
        sent: the headers of the request.
    """
    return reason_in(await _beginning(response), response, sent)


def reason_in(body: bytes, response: HttpResponse, sent: Iterable[tuple[str, str]] = ()) -> str:
    """Return the same from a body that has been read."""
    challenge = response.headers.get("www-authenticate", "")
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    said = _in_body(body, media_type) or challenge_parameters(challenge).get(
        "error_description", ""
    )
    line = " ".join("".join(one if one.isprintable() else " " for one in said).split())
    if not line or any(secret in line for secret in _secrets(sent)):
        return ""
    return f": {line[:_LONGEST]}"


async def _beginning(response: HttpResponse) -> bytes:
    """Return what a body begins with; nothing if the server does not send it in time."""
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        return b""
    found = b""
    try:
        async with asyncio.timeout(_READ_S):
            async for part in response.chunks():
                found += part
                if len(found) > _MAX_BODY:
                    break
    except (ClientError, TimeoutError):
        pass
    return found[:_MAX_BODY]


def _in_body(body: bytes, media_type: str) -> str:
    if media_type == "text/plain":
        return body.decode("utf-8", "replace")
    if not media_type.endswith("json"):
        return ""
    try:
        return _in_json(decode(body))
    except ParseError:
        return ""


def _in_json(found: Any) -> str:
    if isinstance(found, str):
        return found
    if isinstance(found, dict):
        return next(filter(None, (_in_json(found.get(name)) for name in _MEMBERS)), "")
    return ""


def _secrets(sent: Iterable[tuple[str, str]]) -> Sequence[str]:
    """Return the words of headers that may be credentials."""
    values = (value for name, value in sent if name.lower() not in _PUBLIC)
    return [word for value in values for word in value.split() if len(word) >= _SHORTEST_SECRET]
