"""The server's own explanation of a refusal, for people.

The text comes from a JSON-RPC error, from the JSON of frameworks and OAuth, from one line of plain
text, or from the challenge. It is one short line. It never repeats a request header that may be a
credential, nor eight consecutive letters and digits of one, whatever stands between them.
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
_TELLING: Final = 8
"""The number of a credential's letters and digits that make a text secret. Servers often quote the
beginning or end of a key."""
_MEMBERS: Final = (
    "error_description",
    "message",
    "Message",
    "msg",
    "detail",
    "title",
    "error",
    "errors",
)
_PUBLIC: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "content-type",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
    }
)


async def reason_of(response: HttpResponse, sent: Iterable[tuple[str, str]] = ()) -> str:
    """Return ": " and the server's reason for refusing a request, or an empty string.

    Args:
        response: the response, with its body unread.
        sent: the headers of the request.
    """
    return reason_in(await _beginning(response), response, sent)


def reason_in(body: bytes, response: HttpResponse, sent: Iterable[tuple[str, str]] = ()) -> str:
    """Return ": " and the reason from a body that has been read, or an empty string."""
    challenge = response.headers.get("www-authenticate", "")
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    said = _in_body(body, media_type) or challenge_parameters(challenge).get(
        "error_description", ""
    )
    words = "".join(one if one.isprintable() else " " for one in said).split()
    line = " ".join(words)[:_LONGEST]
    return f": {line}" if line and not _tells_a_secret(line, sent) else ""


async def _beginning(response: HttpResponse) -> bytes:
    """Return the beginning of an uncompressed body: at most `_MAX_BODY` bytes, as far as they
    arrive in time."""
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
    if isinstance(found, list):
        return _in_json(found[0]) if found else ""
    if isinstance(found, dict):
        return next(filter(None, (_in_json(found.get(name)) for name in _MEMBERS)), "")
    return ""


def _tells_a_secret(line: str, sent: Iterable[tuple[str, str]]) -> bool:
    """Return whether a line repeats a credential or a usable part of one."""
    line_plain = _letters_and_digits(line)
    for secret in _secrets(sent):
        plain = _letters_and_digits(secret)
        size = max(_SHORTEST_SECRET, min(len(plain), _TELLING))
        parts = (plain[at : at + size] for at in range(len(plain) - size + 1))
        if secret in line or any(part in line_plain for part in parts):
            return True
    return False


def _secrets(sent: Iterable[tuple[str, str]]) -> Sequence[str]:
    """Return the words of headers that may be credentials, without their scheme."""
    words: list[str] = []
    for name, value in sent:
        if name.lower() not in _PUBLIC:
            found = value.split()
            has_scheme = name.lower() == "authorization" and len(found) > 1
            words += found[has_scheme:]
    return [word for word in words if len(word) >= _SHORTEST_SECRET]


def _letters_and_digits(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()
