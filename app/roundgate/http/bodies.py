"""Request bodies: the limits on their memory, and the ids of requests that are refused before their
bodies are read.

Many clients show the text of an error only if it is the response to one of their requests. So the
gateway reads the id from a refused body that is short and arrives soon.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from roundgate import json
from roundgate.errors import ParseError, TransportError, Unavailable
from roundgate.protocol import RequestId, jsonrpc

SMALL: Final = 8_192
"""The size up to which bodies are not counted, in bytes, because the limit on connections bounds
them."""
NODE_BYTES: Final = 100
"""The approximate size of a value or key as a Python object, in bytes."""

_OTHERS: Final = bytes(set(range(256)) - set(b",:[{"))
"""All bytes but those before a value."""


class BodyBudget:
    """The limits on the bodies that are being read and served at once.

    Args:
        max_nodes: values and keys in one body.
        max_pending_bytes: bytes of all bodies together, with their values as Python objects.
    """

    def __init__(self, max_nodes: int, max_pending_bytes: int) -> None:
        self._max_nodes = max_nodes
        self._left = max_pending_bytes

    def take(self, size: int) -> int:
        """Reserve bytes and return their number, for `give_back`.

        Raises:
            Unavailable: other requests have reserved too many bytes.
        """
        if size > self._left:
            raise Unavailable(
                "Too many large requests are being served (http.max_pending_bytes); try again soon"
            )
        self._left -= size
        return size

    def take_nodes(self, body: bytes) -> int:
        """Reserve the bytes of a body's values and return their number, for `give_back`.

        Raises:
            TransportError: 413, the body has too many values.
            Unavailable: other requests have reserved too many.
        """
        nodes = count_nodes(body, self._max_nodes)
        if nodes > self._max_nodes:
            raise TransportError(
                413,
                f"The body has more than {self._max_nodes} values and keys (http.max_json_nodes)",
            )
        return self.take(nodes * NODE_BYTES)

    def give_back(self, taken: int) -> None:
        """Release reserved bytes."""
        self._left += taken


def count_nodes(body: bytes, limit: int) -> int:
    """Return the number of values and keys in a JSON text, or a number over `limit`.

    Each value but the first follows a bracket, comma or colon. The number of these characters is an
    upper bound that is fast to compute. Only a text above the limit is counted again without its
    strings, its first sixteenth before the rest, which refuses a hostile text at a tenth of the
    cost.
    """
    if (most := _delimiters(body)) <= limit:
        return most
    if _outside_strings(body[: len(body) // 16], limit) > limit:
        return limit + 1
    return _outside_strings(body, limit)


def _outside_strings(text: bytes, limit: int) -> int:
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * limit:
        return limit + 1
    return _delimiters(b"".join(unescaped.split(b'"')[::2]))


def _delimiters(text: bytes) -> int:
    return 1 + len(text.translate(None, _OTHERS))


MAX_BYTES: Final = 65_536
"""The maximum size of a body that is read for its id, in bytes. Its sender may be
unauthenticated."""
WAIT_S: Final = 2.0
"""Seconds that a refused client has for sending the rest of its body."""
_JSON: Final = b"application/json"
_ID: Final = rb'"id"\s*:\s*("[ !#-\[\]-~]{0,256}"|-?\d{1,18})'
_FIRST: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb"\s*[,}]")
_LAST: Final = re.compile(_ID + rb"\s*\}\s*$")
"""The places where clients write the id: `_FIRST` at the beginning, beside the version, and `_LAST`
at the very end. Neither matches inside `params`."""


async def read_id(
    method: str, headers: Mapping[bytes, bytes], receive: Receive
) -> RequestId | None:
    """Read the body of a POST and return its id, or `None` if its head does not announce short
    JSON, it takes longer than `WAIT_S`, or it has no id."""
    length = headers.get(b"content-length", b"")
    is_json = headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == _JSON
    if method != "POST" or not is_json or not length.isdigit() or int(length[:20]) > MAX_BYTES:
        return None
    try:
        async with asyncio.timeout(WAIT_S):
            body = await read_body(receive, MAX_BYTES)
    except (TimeoutError, ClientDisconnect):
        return None
    return None if body is None else id_from_body(body)


def id_from_body(body: bytes) -> RequestId | None:
    """Return the id of the request in a body, or `None`. Only the beginning and the end of a long
    body are searched."""
    if len(body) > MAX_BYTES:
        match = _FIRST.match(body[:1_024]) or _LAST.search(body[-1_024:])
        return None if match is None else jsonrpc.readable_id({"id": json.decode(match[1])})
    try:
        message = json.decode(body)
    except ParseError:
        return None
    return (
        jsonrpc.readable_id(message) if isinstance(message, dict) and "method" in message else None
    )


async def read_body(
    receive: Receive, most: int, hold: Callable[[int], None] = lambda size: None
) -> bytes | None:
    """Return a body, or `None` if it has more than `most` bytes. `hold` gets the size after each
    part. Raise ClientDisconnect if the client hangs up."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > most:
            return None
        hold(len(body))
        more = message.get("more_body", False)
    return bytes(body)
