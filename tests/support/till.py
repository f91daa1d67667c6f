"""A service that charges: once for each idempotency key, and without one
each time that it is asked.

What it is asked to do it does before it answers; then it may lose the answer, or never give one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.listening import listening


@dataclass
class Till:
    """What was charged, and how it answers from now on."""

    charges: list[str] = field(default_factory=list)
    """The body of each charge."""
    keys: list[str | None] = field(default_factory=list)
    """The key of each request."""
    lose: int = 0
    """How many of the next answers are cut off."""
    silent: bool = False
    """Whether it charges and then says nothing."""
    url: str = ""
    at_once: int = 0
    most_at_once: int = 0
    pause_s: float = 0
    _receipts: dict[str, bytes] = field(default_factory=dict)
    _charged: asyncio.Event = field(default_factory=asyncio.Event)

    async def charged(self) -> None:
        """Return when something has been."""
        await asyncio.wait_for(self._charged.wait(), 60)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._one(reader, writer):
            pass

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        pairs = [line.partition(":") for line in head.split("\r\n")[1:]]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.pause_s)
        self.at_once -= 1
        receipt = self._receipt(headers.get("idempotency-key"), body.decode())
        if self.silent:
            await asyncio.sleep(3600)
        whole = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        said = whole % (len(receipt), receipt)
        is_lost = self.lose > 0
        self.lose -= is_lost
        writer.write(said[: len(said) // 2] if is_lost else said)
        await writer.drain()
        return not is_lost

    def _receipt(self, key: str | None, body: str) -> bytes:
        self.keys.append(key)
        if key in self._receipts:
            return self._receipts[key]
        self.charges.append(body)
        self._charged.set()
        receipt = json.dumps({"receipt": len(self.charges)}).encode()
        if key is not None:
            self._receipts[key] = receipt
        return receipt


@asynccontextmanager
async def till() -> AsyncIterator[Till]:
    """One on a port of its own."""
    made = Till()
    async with listening(made.serve) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made
