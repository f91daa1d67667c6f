"""Answers of one process that wait for their readers.

A large answer stays in memory until its client has read it. All such answers together have one
limit, `http.max_unread_bytes`. Beyond it, the caller with the most unread bytes loses its oldest
answer: the connection is aborted.

A caller that has half of the limit must read first: its next request waits, before its body is read,
until there is room, for `http.send_timeout_s`. While it waits, its oldest answer is aborted after
`PATIENCE_S`. Requests that arrive together with a large answer take turns, one in each iteration of
the event loop, so that encoding many answers delays no health check.

    request ──▶ turn ──▶ app ──▶ answer ──▶ buffer is full: add ──▶ read or aborted: discard
                 ▲                                                          │
                 └──────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from typing import Final, Protocol

from roundgate.errors import Unavailable

PATIENCE_S: Final = 5.0
"""Seconds that a request waits for the oldest answer of its caller to be read."""


class Reader(Protocol):
    """A connection whose client may read slowly."""

    @property
    def caller(self) -> Hashable:
        """The caller of the last request: the identity of its token, otherwise the address."""

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that are kept for the client."""

    def abort(self) -> None:
        """Drop the connection and its bytes."""


class UnreadAnswers:
    """The unread answers of a process, and the requests that wait for room.

    Args:
        max_bytes: the limit on all answers.
        wait_s: seconds that a request may wait.
    """

    def __init__(self, max_bytes: int, wait_s: float) -> None:
        self._max_bytes = max_bytes
        self._wait_s = wait_s
        self._readers: dict[Reader, None] = {}
        """The connections with unread answers, oldest first."""
        self._requests: dict[asyncio.Future[None], tuple[Reader, float]] = {}
        """The requests that wait, with the time since when, in order of their arrival."""
        self._is_taken = False
        """Whether a large answer was written in this iteration of the event loop."""
        self._wakes = False

    @property
    def is_idle(self) -> bool:
        """Whether no request needs to wait for its turn."""
        return not (self._readers or self._requests)

    def add(self, reader: Reader) -> None:
        """Note that a connection has an unread answer; drop answers beyond the limit."""
        self._readers.setdefault(reader)
        self._is_taken = True
        self._wake_soon()
        unread = self._unread()
        while unread.total() > self._max_bytes and len(self._readers) > 1:
            largest, _ = unread.most_common(1)[0]
            self._drop_oldest(largest)
            unread = self._unread()

    def discard(self, reader: Reader) -> None:
        """Note that an answer was read, or its connection lost."""
        if reader in self._readers:
            del self._readers[reader]
            self._wake_soon()

    async def turn(self, reader: Reader) -> None:
        """Wait until a request may be served.

        Raises:
            Unavailable: the caller's answers were not read in time.
        """
        if not self._is_taken and self._has_room(reader, self._unread()):
            return
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._requests[future] = reader, loop.time()
        self._wake_soon()
        try:
            async with asyncio.timeout(self._wait_s):
                await future
        except TimeoutError:
            raise Unavailable(
                "Earlier answers to this caller wait to be read (http.max_unread_bytes); read them,"
                " or try again soon"
            ) from None
        finally:
            self._requests.pop(future, None)

    def look(self, now: float) -> None:
        """Drop the oldest answer of each caller whose requests have waited too long. `now` is a
        time of the event loop's clock."""
        late = {
            reader.caller for reader, since in self._requests.values() if now - since > PATIENCE_S
        }
        for caller in late:
            self._drop_oldest(caller)
        self._wake_soon()

    def _unread(self) -> Counter[Hashable]:
        """Return the unread bytes of each caller."""
        unread: Counter[Hashable] = Counter()
        for reader in self._readers:
            unread[reader.caller] += reader.unread_bytes
        return unread

    def _has_room(self, reader: Reader, unread: Counter[Hashable]) -> bool:
        return reader not in self._readers and unread[reader.caller] < self._max_bytes // 2

    def _drop_oldest(self, caller: Hashable) -> None:
        oldest = next((reader for reader in self._readers if reader.caller == caller), None)
        if oldest is not None:
            self.discard(oldest)
            # not inside of the write that has added it
            asyncio.get_running_loop().call_soon(oldest.abort)

    def _wake_soon(self) -> None:
        if not self._wakes and (self._is_taken or self._requests):
            self._wakes = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        """Let the first request continue whose caller has room, and look for another one in the
        next iteration."""
        self._wakes = self._is_taken = False
        unread = self._unread()
        for future, (reader, _) in self._requests.items():
            if not future.done() and self._has_room(reader, unread):
                future.set_result(None)
                self._wake_soon()
                return
