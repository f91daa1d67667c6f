"""The id of a request that is refused before anybody has read it, so that its client
can tell what was refused.

Many clients show an error only if it is the response to one of their requests; of any other they
say that the server has returned an error. So a body that is short, and comes soon, is read for
its id and for nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final

from starlette.types import Receive

from roundgate import json
from roundgate.errors import ParseError
from roundgate.protocol import RequestId, jsonrpc

MAX_BYTES: Final = 65_536
"""A larger body is not read: whoever sends it may be anybody."""
WAIT_S: Final = 2.0
_JSON: Final = b"application/json"
_ID: Final = rb'"id"\s*:\s*("[ !#-\[\]-~]{0,256}"|-?\d{1,18})'
_FIRST: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb"\s*[,}]")
_LAST: Final = re.compile(_ID + rb"\s*\}\s*$")
"""Where clients write ids: beside the version at the beginning, or at the very end. Neither
can be inside of params."""


async def read_id(
    method: str, headers: Mapping[bytes, bytes], receive: Receive
) -> RequestId | None:
    """The id in the body of a POST that nobody has read yet, if its head says that it is short.

    Args:
        method: of HTTP.
        headers: lower-case names.
        receive: ASGI's; what is read here nobody else can read.
    """
    length = headers.get(b"content-length", b"")
    is_json = headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == _JSON
    if method != "POST" or not is_json or not length.isdigit() or int(length[:20]) > MAX_BYTES:
        return None
    try:
        async with asyncio.timeout(WAIT_S):
            body = await _short(receive)
    except TimeoutError:
        return None
    return None if body is None else id_of(body)


def id_of(body: bytes) -> RequestId | None:
    """The id of the request in a body; of a long one only where that can be told
    from its beginning or end."""
    if len(body) > MAX_BYTES:
        found = _FIRST.match(body[:1_024]) or _LAST.search(body[-1_024:])
        return None if found is None else jsonrpc.readable_id({"id": json.decode(found[1])})
    try:
        message = json.decode(body)
    except ParseError:
        return None
    return (
        jsonrpc.readable_id(message) if isinstance(message, dict) and "method" in message else None
    )


async def _short(receive: Receive) -> bytes | None:
    """A body, unless it is too long or its client goes away."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > MAX_BYTES:
            return None
        more = message.get("more_body", False)
    return body
