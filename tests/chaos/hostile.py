"""Clients that mean harm, all kinds at once, in a process of its own: `python -m
tests.chaos.hostile PORT SEED`.

Each attack is a loop; what the server answers is nobody's concern here. They come from `ADDRESSES`
of 127.0.0.0/8, honest clients from another one. Ends when it is killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from tests.support import wire

ADDRESSES = [f"127.0.0.{number}" for number in range(2, 22)]
HEAD = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
FULL = 4_000_000
"""Bytes of the largest body that is taken."""


class Attacker:
    """Raw connections to one port."""

    def __init__(self, port: int, dice: random.Random) -> None:
        self._port = port
        self.dice = dice

    async def send(
        self, *parts: bytes, pause_s: float = 0, stay_s: float = 0, read: bool = True
    ) -> None:
        """Open a connection, send, stay, perhaps read what comes, and reset it."""
        here = (self.dice.choice(ADDRESSES), 0)
        opening = asyncio.open_connection("127.0.0.1", self._port, limit=4096, local_addr=here)
        reader, writer = await asyncio.wait_for(opening, 10)
        try:
            for part in parts:
                writer.write(part)
                await asyncio.wait_for(writer.drain(), 10)
                await asyncio.sleep(pause_s)
            if read:
                await asyncio.wait_for(reader.read(FULL), 5)
            await asyncio.sleep(stay_s)
        finally:
            writer.transport.abort()


def request(
    method: str, params: dict[str, Any], more: bytes = b"", body: bytes | None = None, **meta: Any
) -> bytes:
    """A correct request, or one with another body."""
    asked = wire.message(method, params, **meta)
    said = json.dumps(asked).encode() if body is None else body
    lines = "".join(f"{name}: {value}\r\n" for name, value in wire.headers(asked).items()).encode()
    return HEAD.partition(b"\r\ncontent-type")[0] + b"\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
        lines,
        more,
        len(said),
        said,
    )


def call(name: str, arguments: dict[str, Any], **meta: Any) -> bytes:
    return request("tools/call", {"name": name, "arguments": arguments}, **meta)


async def large_heads(by: Attacker) -> None:
    filler = b"x" * by.dice.choice((60_000, 1_000_000, 20_000_000))
    name = by.dice.choice((b"accept", b"host", b"authorization", b"x"))
    await by.send(HEAD + b"%b: %d%b\r\n\r\n" % (name, by.dice.randrange(10**9), filler))


async def many_fields(by: Attacker) -> None:
    await by.send(HEAD + b"".join(b"x%d: y\r\n" % number for number in range(50_000)) + b"\r\n")


async def long_accepts(by: Attacker) -> None:
    accept = b"x-accept: %b\r\n" % (b"%d, " % by.dice.randrange(10**9) * 3_000)
    await by.send(call("add", {"a": 1, "b": 2}).replace(b"\r\n", b"\r\n" + accept, 1))


async def endless_trailers(by: Attacker) -> None:
    trailers = [b"x%d: %b\r\n" % (number, b"x" * 900) * 20 for number in range(20)]
    await by.send(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", *trailers)


async def idle(by: Attacker) -> None:
    half = by.dice.choice(
        (b"", b"POST /mc", HEAD, HEAD + b"content-length: 4000000\r\n\r\n" + b" " * 60_000)
    )
    await by.send(half, stay_s=by.dice.uniform(1, 30), read=False)


async def drips(by: Attacker) -> None:
    await by.send(HEAD, *[b"x: y\r\n"] * 200, pause_s=0.2)


async def slow_readers(by: Attacker) -> None:
    tool = by.dice.choice(("flood", "flood_thread"))
    await by.send(
        call(tool, {"count": 400, "size": 50_000}, logLevel="info"), stay_s=40, read=False
    )


async def unread_results(by: Attacker) -> None:
    await by.send(call("echo", {"text": "x" * 3_000_000}), stay_s=10, read=False)


async def many_values(by: Attacker) -> None:
    filler = by.dice.choice((b"[],", b"0,", b'{"a":0},', b'"",'))
    values = filler * ((FULL - 2_000) // len(filler))
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":[%b0]}}' % values
    await by.send(request("tools/list", {}, body=body))


async def full_bodies(by: Attacker) -> None:
    await by.send(call("echo", {"text": "x" * (FULL - 1_000)}), read=False)


async def deep_bodies(by: Attacker) -> None:
    await by.send(request("tools/list", {}, body=by.dice.choice((b"[", b'{"a":')) * 90_000))


async def long_uris(by: Attacker) -> None:
    uri = "note://by/" + "ann/" * by.dice.choice((2_000, 100_000, 900_000))
    await by.send(request("resources/read", {"uri": uri}))


async def streams(by: Attacker) -> None:
    uris = [
        f"note://{number}/{'x' * by.dice.choice((30, 3_000))}"
        for number in range(by.dice.choice((20, 1_000)))
    ]
    asked = request("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
    await by.send(asked, stay_s=by.dice.uniform(0, 20), read=False)


async def bombs(by: Attacker) -> None:
    await by.send(call(by.dice.choice(("bomb", "punycode", "endless")), {}))


async def pipelines(by: Attacker) -> None:
    await by.send(call("add", {"a": 1, "b": 2}) * 2_000)


async def garbage(by: Attacker) -> None:
    await by.send(by.dice.randbytes(by.dice.randrange(1, 20_000)))


ATTACKS: dict[Callable[[Attacker], Awaitable[None]], tuple[int, float]] = {
    large_heads: (2, 0.3),
    many_fields: (1, 0.5),
    long_accepts: (2, 0.05),
    endless_trailers: (1, 0.5),
    idle: (300, 0.1),
    drips: (10, 0.1),
    slow_readers: (20, 0.5),
    unread_results: (4, 0.5),
    many_values: (1, 0.5),
    full_bodies: (1, 0.5),
    deep_bodies: (1, 0.5),
    long_uris: (1, 0.5),
    streams: (60, 0.5),
    bombs: (2, 0.5),
    pipelines: (1, 1),
    garbage: (2, 0.1),
}
"""How many of each kind at once, and how many seconds each rests between two."""


async def again_and_again(
    attack: Callable[[Attacker], Awaitable[None]], by: Attacker, rest_s: float
) -> None:
    while True:
        with suppress(OSError, TimeoutError):  # refused, which is the point
            await attack(by)
        await asyncio.sleep(rest_s * by.dice.uniform(0.5, 1.5))


async def main(port: int, seed: int) -> None:
    dice = random.Random(seed)
    async with asyncio.TaskGroup() as group:
        for attack, (at_once, rest_s) in ATTACKS.items():
            for _ in range(at_once):
                group.create_task(
                    again_and_again(attack, Attacker(port, random.Random(dice.random())), rest_s)
                )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
