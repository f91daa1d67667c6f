"""Request bodies: what they may cost, and the id of one that is refused before anybody has read it.

Many clients show an error only if it is the response to one of their requests; of any other they
say that the server has returned an error. So a body that is short, and comes soon, is read for its
id and for nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final

from starlette.types import Receive

from roundgate import json
from roundgate.errors import ParseError, TransportError, Unavailable
from roundgate.protocol import RequestId, jsonrpc

SMALL: Final = 8_192
"""Bodies up to this many bytes are not counted: what connections may number bounds them."""
NODE_BYTES: Final = 100
"""What a value or key takes as a Python object, roughly."""


class BodyBudget:
    """The bodies that are being read and served at once.

    Args:
        max_nodes: values and keys in one body.
        max_pending_bytes: bytes of all of them together, with what their values take in memory.
    """

    def __init__(self, max_nodes: int, max_pending_bytes: int) -> None:
        self._max_nodes = max_nodes
        self._left = max_pending_bytes

    def take(self, size: int) -> int:
        """Have so many bytes more; returns them, for `give_back`.

        Raises:
            Unavailable: others have too many just now.
        """
        if size > self._left:
            raise Unavailable(
                "Too many large requests are being served (http.max_pending_bytes); try again soon"
            )
        self._left -= size
        return size

    def take_nodes(self, body: bytes) -> int:
        """Have what the values of a body take; returns their bytes, for `give_back`.

        Raises:
            TransportError: 413, there are more than a body may have.
            Unavailable: others have too many just now.
        """
        nodes = count_nodes(body, self._max_nodes)
        if nodes > self._max_nodes:
            raise TransportError(
                413,
                f"The body has more than {self._max_nodes} values and keys (http.max_json_nodes)",
            )
        return self.take(nodes * NODE_BYTES)

    def give_back(self, taken: int) -> None:
        """What was taken is free again."""
        self._left += taken


def count_nodes(body: bytes, limit: int) -> int:
    """How many values and keys a JSON text has, or a number over `limit`; of
    what is no JSON, some number.

    Each value but the first is behind a bracket, comma or colon. Counting those in the whole text
    is an upper bound at the speed of memory; only a text that may have too many is looked at
    without its strings. Its beginning comes first: that is enough to refuse one that consists of
    nothing else, at a tenth of the price.
    """
    if (most := _delimiters(body)) <= limit:
        return most
    if _outside_strings(body[: len(body) // 16], limit) > limit:
        return limit + 1
    return _outside_strings(body, limit)


def _outside_strings(text: bytes, limit: int) -> int:
    """The same of a text, or of the beginning of one, without what is in its strings."""
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * limit:
        return limit + 1
    return _delimiters(b"".join(unescaped.split(b'"')[::2]))


def _delimiters(text: bytes) -> int:
    return 1 + sum(map(text.count, (b",", b":", b"[", b"{")))


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
