"""What request bodies may cost: how many values are in one, and how much of the memory
all of them together have.

Knows bytes and numbers; what is answered to whoever asks too much, the errors say.
"""

from __future__ import annotations

from typing import Final

from roundgate.errors import TransportError, Unavailable

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
