"""The stream on which a server of an older revision tells and asks what belongs to no
request. Not all have one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from roundgate.client.types import Json
from roundgate.errors import ClientError, ConnectionLost, TimedOut

if TYPE_CHECKING:
    from roundgate.client.link import Link
    from roundgate.client.older_request import OlderRequest

_SETTLE_S: Final = 1.0
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 30.0


class SessionStream:
    """Reads that stream from when it is opened until it is closed, and opens
    it again when it breaks."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reading: asyncio.Task[None] | None = None
        self.taps: set[asyncio.Queue[Json]] = set()
        """Where notifications go; a queue that is full misses some."""
        self.standing: list[OlderRequest] = []
        """Who is asked before any single request: calls that take several, oldest first."""

    @property
    def is_open(self) -> bool:
        """Whether it is being read, or about to be again."""
        return self._reading is not None and not self._reading.done()

    async def open(self) -> None:
        """Begin to read it.

        What a server asks there before the stream is open may be lost, so the first call
        waits for it, for a moment: some servers send nothing, not even a head, before
        they have something to say.
        """
        is_settled = asyncio.Event()
        self._reading = asyncio.create_task(self._read(is_settled))
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await is_settled.wait()

    async def close(self) -> None:
        """Stop reading it."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    async def _read(self, is_settled: asyncio.Event) -> None:
        last_id: str | None = None
        wait = _FIRST_WAIT_S
        while True:
            try:
                async with aclosing(self._link.resumed_stream(last_id, is_settled)) as events:
                    async for event in events:
                        wait = _FIRST_WAIT_S
                        last_id = event.id or last_id
                        await self._take(self._link.reader.message(event.data))
            except (ConnectionLost, TimedOut):
                pass
            except ClientError:
                return
            finally:
                is_settled.set()
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    async def _take(self, message: Json | None) -> None:
        if message is None or "method" not in message:
            return
        if "id" in message:
            if asked := self.standing or self._link.under_way:
                asked[-1].asked(message)
            else:
                is_ping = message["method"] == "ping"
                no = {"error": {"code": -32601, "message": "Nobody is here to answer"}}
                await self._link.answer(message["id"], {"result": {}} if is_ping else no)
            return
        for tap in self.taps:
            if not tap.full():
                tap.put_nowait(message)
