"""Pages of a list with opaque cursors (server/utilities/pagination).

A cursor names the entry after which the next page starts, so any replica can serve any page, even
after a restart with another page size or with entries added at other places in the list.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from msgspec import Struct

from roundgate.errors import InvalidParams


class Page(Struct, frozen=True):
    """One page: its entries as the inside of a JSON array, and the cursor of the next page, `None`
    for the last."""

    entries: bytes
    next_cursor: str | None


class Pages:
    """A whole list: (key, serialised entry) in order. Pages that start at a multiple of `size` are
    cached. Other pages are made each time, so that unusual cursors cost no memory."""

    def __init__(self, items: Sequence[tuple[str, bytes]], size: int) -> None:
        self.items = items
        self.size = size
        self._starts: dict[str, int] = {}
        """The start of the page after each entry, by the entry's key; filled for the first cursor."""
        self._made: dict[int, Page] = {}

    def page(self, cursor: str | None) -> Page:
        """Return the page of a cursor, or the first page.

        Raises:
            InvalidParams: the cursor was not made by `page`, or its entry is no longer in the list.
        """
        start = 0 if cursor is None else self._after(_decode(cursor))
        if start is None:
            raise InvalidParams(
                "Invalid cursor: start again without one; the list may have changed"
            )
        if start % self.size:
            return self._make(start)
        if start not in self._made:
            self._made[start] = self._make(start)
        return self._made[start]

    def _after(self, key: str) -> int | None:
        if not self._starts:
            self._starts.update((key, index + 1) for index, (key, _) in enumerate(self.items))
        return self._starts.get(key)

    def _make(self, start: int) -> Page:
        chosen = self.items[start : start + self.size]
        more = start + self.size < len(self.items)
        return Page(
            b",".join(entry for _, entry in chosen), _encode(chosen[-1][0]) if more else None
        )


def _encode(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def _decode(cursor: str) -> str:
    try:
        return base64.b64decode(
            cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True
        ).decode()
    except (binascii.Error, ValueError):
        return "\0"  # matches no key: names and URIs have no NUL
