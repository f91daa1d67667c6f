"""Answers of one process that wait for their readers.

A large answer stays in memory until its client has read it. All such answers together have one
limit, `http.max_unread_bytes`. Beyond it, the caller with the most unread bytes loses its oldest
answer: the connection is aborted.

A caller that has half of the limit must read first: its next request waits, before its body is read,
until there is room, for `http.send_timeout_s`; so does a plain function before its thread begins
(`aio`). While it waits, its oldest answer is aborted after `PATIENCE_S`.

The result of a handler that has ended counts before it is encoded. Results that arrive together
with a large answer, and do not fit, are dropped if their own caller has most: the connections with
its older answers cannot be closed before the event loop continues.

Requests and results that arrive together with a large answer take turns, one in each iteration of
the event loop, so that encoding many answers delays no health check.

    request ──▶ turn ──▶ handler ──▶ keep ──▶ encoded: hold ──▶ written: add ──▶ read or aborted: discard
                 ▲                    └▶ dropped                                        │
                 └──────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Hashable
from typing import Final, Protocol

from roundgate.errors import AnswersUnread
from roundgate.observability.metrics import instruments

PATIENCE_S: Final = 5.0
"""Seconds that a request waits for the oldest answer of its caller to be read."""

log = logging.getLogger("roundgate.request")


class ReadingClient(Protocol):
    """A connection whose client may read slowly."""

    @property
    def caller(self) -> Hashable:
        """The caller of the last request: the identity of its token, otherwise the address."""

    @property
    def address(self) -> str:
        """The address of the client, for the log."""

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
        self._readers: dict[ReadingClient, None] = {}
        """The connections with unread answers, oldest first."""
        self._results: deque[asyncio.Future[None]] = deque()
        """The finished results that wait to be encoded, in the order of their arrival."""
        self._requests: dict[asyncio.Future[None], tuple[ReadingClient, float]] = {}
        """The requests that wait, with the time since when, in order of their arrival."""
        self._is_taken = False
        """Whether a large answer was written in this iteration of the event loop."""
        self._wakes = False
        self._has_told = False
        """Whether a dropped answer was logged since answers last waited."""

    @property
    def is_idle(self) -> bool:
        """Return whether no request and no result needs to wait for its turn."""
        return not (self._readers or self._requests)

    def add(self, reader: ReadingClient) -> None:
        """Note that a connection has an unread answer; drop answers beyond the limit."""
        self._readers.setdefault(reader)
        self._is_taken = True
        self._wake_soon()
        unread = self._unread()
        while unread.total() > self._max_bytes and len(self._readers) > 1:
            largest, _ = unread.most_common(1)[0]
            self._drop_oldest(largest)
            unread = self._unread()

    def discard(self, reader: ReadingClient) -> None:
        """Note that an answer was read, or its connection lost."""
        if reader in self._readers:
            del self._readers[reader]
            self._has_told = self._has_told and bool(self._readers)
            self._wake_soon()

    def admit(self, reader: ReadingClient, size: int) -> None:
        """Make room for the result of a request, about `size` bytes that from now on `reader` has
        unread.

        Raises:
            AnswersUnread: the caller has most unread bytes, and a large answer was written or
                dropped in this iteration of the event loop.
        """
        is_taken = self._is_taken
        while (unread := self._unread()).total() and unread.total() + size > self._max_bytes:
            has_others = unread[reader.caller] > 0
            unread[reader.caller] += size
            largest = max(unread, key=lambda caller: (unread[caller], caller == reader.caller))
            if largest == reader.caller and (is_taken or not has_others):
                self._tell(reader, size)
                raise AnswersUnread(
                    "The result was dropped, because earlier answers to this caller wait to be read"
                    " (http.max_unread_bytes). The call has run and may have taken effect: find out"
                    " before calling again, and read answers as they arrive"
                )
            self._drop_oldest(largest)
            self._is_taken = True
            self._wake_soon()
        self._readers.setdefault(reader)

    async def encoding_turn(self) -> None:
        """Wait until an admitted result may be encoded."""
        if self._is_taken or self._results:
            turn = asyncio.get_running_loop().create_future()
            self._results.append(turn)
            self._wake_soon()
            await turn
        self._is_taken = True
        self._wake_soon()

    def has_room(self, reader: ReadingClient) -> bool:
        """Return whether the caller of a connection has less than half of the limit. Safe in any
        thread."""
        return self._unread()[reader.caller] < self._max_bytes // 2

    async def turn(self, reader: ReadingClient) -> None:
        """Wait until a request may be served.

        Raises:
            AnswersUnread: the caller's answers were not read in time.
        """
        if not self._is_taken and self._may_begin(reader, self._unread()):
            return
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._requests[future] = reader, loop.time()
        self._wake_soon()
        try:
            async with asyncio.timeout(self._wait_s):
                await future
        except TimeoutError:
            raise AnswersUnread(
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
        for reader in list(self._readers):  # a thread may ask while the event loop changes it
            unread[reader.caller] += reader.unread_bytes
        return unread

    def _may_begin(self, reader: ReadingClient, unread: Counter[Hashable]) -> bool:
        return reader not in self._readers and unread[reader.caller] < self._max_bytes // 2

    def _drop_oldest(self, caller: Hashable) -> None:
        oldest = next((reader for reader in self._readers if reader.caller == caller), None)
        if oldest is not None:
            self._tell(oldest, oldest.unread_bytes)
            self.discard(oldest)
            # not inside of the write that has added it
            asyncio.get_running_loop().call_soon(oldest.abort)

    def _tell(self, reader: ReadingClient, size: int) -> None:
        """Count a dropped answer, and log the first one since answers wait."""
        if made := instruments():
            made.dropped.add(1)
        if not self._has_told:
            self._has_told = True
            fields = {"address": reader.address, "bytes": size, "limit": self._max_bytes}
            log.warning("answers that nobody reads are dropped", extra={"fields": fields})

    def _wake_soon(self) -> None:
        if not self._wakes and (self._is_taken or self._requests or self._results):
            self._wakes = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        """Let the first result be encoded, or the first request continue whose caller has room,
        and look for another one in the next iteration."""
        self._wakes = self._is_taken = False
        while self._results:
            if not (turn := self._results.popleft()).done():
                turn.set_result(None)
                self._wake_soon()
                return
        unread = self._unread()
        for future, (reader, _) in self._requests.items():
            if not future.done() and self._may_begin(reader, unread):
                future.set_result(None)
                self._wake_soon()
                return
