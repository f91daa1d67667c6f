"""The list methods: pages of entries that were serialised when the catalog was built."""

from __future__ import annotations

from typing import Final

from roundgate.json import encode
from roundgate.methods.results import Reply, Results
from roundgate.protocol import Page, Pages
from roundgate.settings import CacheHint

MAX_PAGES_KEPT: Final = 64


class Listing:
    """One list. Nothing is serialised per request: a page and what stands around
    it are joined, and kept."""

    def __init__(self, member: str, cache: CacheHint, results: Results) -> None:
        self._member, self._results = member, results
        self._head, self._rest = b'{"%b":[' % member.encode(), results.rest(cache)
        self._made: dict[Page, Reply] = {}

    def reply(self, pages: Pages, cursor: str | None) -> Reply:
        """The page that a cursor stands for.

        Raises:
            InvalidParams: the cursor is none of this list's.
        """
        page = pages.page(cursor)
        reply = self._made.get(page)
        if reply is None:
            more = (
                b"" if page.next_cursor is None else b',"nextCursor":%b' % encode(page.next_cursor)
            )
            entries = self._results.entries(self._member, page.entries)
            reply = Reply(b"%b%b]%b%b" % (self._head, entries, more, self._rest))
            if len(self._made) < MAX_PAGES_KEPT:
                self._made[page] = reply
        return reply
