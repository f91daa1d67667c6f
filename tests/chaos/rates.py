"""`scripts/chaos rates`: callers that flood three replicas at once, which count their calls together.

Every caller has a burst of `BURST` calls and gains `PER_MINUTE` calls a minute. It calls each
replica until that replica refuses, again and again.

Must hold: the calls that run are at most one per cent more than one exact bucket for each caller
allows in the time between its first and last call; and no caller is more than one call away from
its own bucket, so no caller uses up another's. A caller lacks a call if its bucket gains one while
the last refusal is under way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.chaos.fleet import Fleet
from tests.chaos.orders import table
from tests.chaos.tasks import store, stores
from tests.support import wire
from tests.support.issuer import ISSUER, PUBLIC_URL, jwks, token
from tests.support.services import answer, service

REPLICAS = 3
BURST, PER_MINUTE = 30, 6
PAUSE_S = BURST / PER_MINUTE * 60 / 60 + 1
"""For longer than a replica leaves an empty bucket alone."""
AT_ONCE = 8
"""Callers that call a replica at once."""
PASSES = 3
LIFE_S = 7_200
WITHIN = 0.01
TOOL = '''
from roundgate import tool

@tool
async def look() -> str:
    """Looks."""
    return "looked"
'''


@dataclass
class Told:
    """The answers to one caller."""

    headers: Mapping[str, str]
    allowed: int = 0
    refused: int = 0
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def exact(self) -> int:
        """The calls that one bucket allows in this time."""
        return int(BURST + (self.last_s - self.first_s) * PER_MINUTE / 60)


class Connection:
    """A connection that is kept, which costs less than a client of HTTP."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, headers: Mapping[str, str], body: bytes) -> int:
        """Send a request and return the status of its answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST /mcp HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answered = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = answered.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        return int(answered.split()[1])

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()


async def run(kind: str, count: int, seed: int) -> bool:
    """One run; whether everything held."""
    dice, now_s = random.Random(seed), int(time.time())
    asked = wire.message("tools/call", {"name": "look", "arguments": {}})
    usual = {"host": "mcp.example.com", **wire.headers(asked)}
    callers = []
    for number in range(count):
        bearer = token(sub=f"caller {number}", exp=now_s + LIFE_S)
        callers.append(Told({**usual, "authorization": f"Bearer {bearer}"}))
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        async with service(answer(jwks("ec"))) as keys:
            config = configuration(directory, keys.url)
            with (
                store(kind, directory) as shared,
                Fleet(
                    config,
                    directory,
                    shared.environment | {"GATEWAY_PUBLIC_URL": PUBLIC_URL},
                    gateways=REPLICAS,
                    workers=0,
                ) as fleet,
            ):
                ports = [member.port for member in fleet.members if member.port is not None]
                await asyncio.gather(*map(until_it_answers, ports))
                begun_s = time.monotonic()
                body = json.dumps(asked).encode()
                for _ in range(PASSES):
                    await flood(ports, callers, body, dice)
                await asyncio.sleep(PAUSE_S)
                await flood(ports, callers, body, dice)
                seconds = time.monotonic() - begun_s
    return report(kind, callers, seconds)


def configuration(directory: Path, keys_url: str) -> Path:
    """Write the gateway's configuration and tools."""
    (directory / "tools.py").write_text(TOOL)
    path = directory / "gateway.json"
    backend = {"kind": "python", "name": "own", "prefix": "", "path": "tools.py"}
    rate = {"calls_per_minute": PER_MINUTE, "burst": BURST, "shared": True}
    auth = {"issuer": ISSUER, "jwks_url": f"{keys_url}/jwks"}
    path.write_text(json.dumps({"backends": [backend], "rate": rate, "auth": auth}))
    return path


async def until_it_answers(port: int) -> None:
    """Wait until a replica serves."""
    async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
        for _ in range(600):
            try:
                await http.get(f"http://127.0.0.1:{port}/healthz")
            except httpx.TransportError:
                await asyncio.sleep(0.1)
            else:
                return
    raise AssertionError(f"nothing answers at port {port}")


async def flood(
    ports: Sequence[int], callers: Sequence[Told], body: bytes, dice: random.Random
) -> None:
    """Have every caller call every replica until that replica refuses it."""

    async def one_after_another(port: int, waiting: list[Told]) -> None:
        connection = Connection(port)
        while waiting:
            await until_refused(connection, waiting.pop(), body)
        connection.close()

    floods = []
    for port in ports:
        waiting = dice.sample(callers, len(callers))
        floods += [one_after_another(port, waiting) for _ in range(AT_ONCE)]
    await asyncio.gather(*floods)


async def until_refused(connection: Connection, caller: Told, body: bytes) -> None:
    """Call a replica until it refuses."""
    while True:
        caller.first_s = caller.first_s or time.monotonic()
        status = await connection.post(caller.headers, body)
        caller.last_s = time.monotonic()
        if status == 429:
            caller.refused += 1
            return
        assert status == 200, status
        caller.allowed += 1


def report(kind: str, callers: Sequence[Told], seconds: float) -> bool:
    """Print a table; return whether everything held."""
    allowed, exact = (sum(of) for of in zip(*((c.allowed, c.exact) for c in callers), strict=True))
    differences = [caller.allowed - caller.exact for caller in callers]
    rows = {
        "callers": len(callers),
        "calls allowed": allowed,
        "calls that one exact bucket for each caller allows": exact,
        "difference in per cent": f"{100 * (allowed - exact) / exact:.2f}",
        "most calls of a caller beyond its bucket": max(differences),
        "most calls that a caller lacks": -min(differences),
        "calls refused": sum(caller.refused for caller in callers),
        "seconds": round(seconds),
    }
    table(f"calls of {len(callers)} callers at {REPLICAS} replicas on {kind}", rows)
    return allowed - exact <= WITHIN * exact and -1 <= min(differences) <= max(differences) <= 1


def main(arguments: argparse.Namespace) -> bool:
    """Every store that was asked for; whether all counted exactly."""
    results = [
        asyncio.run(run(kind, arguments.count, arguments.seed)) for kind in stores(arguments)
    ]
    return all(results)
