"""`scripts/chaos sessions`: calls of sessions whose gateway is killed while their question is open.

Calls in groups, each with two questions between steps that leave a line in a file. When all of a
group are asked, one or two gateways die, chosen by dice; clients that were cut off come back with
`Last-Event-ID` to any gateway, answers go to any gateway. Every call has to end with what its own
user said, and every step has to have left one line.

    POST ─▶ A: question   ✗ A   GET ─▶ B: waits   ✗ B   GET ─▶ C: waits   answer ─▶ D   C: goes on

DynamoDB stands still in every third group, for up to as long as a client waits for the answer to what it sends: no
answer of a user may be refused for that, because the Python SDK ends its session then. PostgreSQL is dead for as
long.

On the local stack of AWS Lambda, where nothing streams, a body ends with the question, and the
client comes back until there is a result: there too whoever held the call is dead by then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.chaos.fleet import ROOT, Fleet
from tests.chaos.orders import table
from tests.chaos.tasks import store, stores
from tests.support.rounds import accept
from tests.support.sessions import BOTH, calling, opening

CONFIG: Final = ROOT / "tests/fleet/served/gateway.yaml"
AT_ONCE: Final = 20
AT_ONCE_ON_LAMBDA: Final = 6
"""Three functions serve one request at a time, and each call has two that wait for an answer."""
PATIENCE_S: Final = 120
PAUSE_S: Final = 0.2
AWAY_EVERY: Final = 3
"""Groups."""
AWAY_S: Final = (5, 15)
BUSY: Final = frozenset({429, 500, 502, 503, 504})


@dataclass
class Gateways:
    """Where requests go, and what kills one of those who serve them."""

    http: httpx.AsyncClient
    urls: Sequence[str]
    kill: Callable[[], Awaitable[None]]
    dice: random.Random
    at_once: int
    halt: Callable[[float], Awaitable[None]] | None = None
    """Has the store stand still for some seconds, where it can be."""
    counts: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def send(
        self,
        method: str,
        headers: dict[str, str],
        message: Any = None,
        busy: frozenset[int] = BUSY,
    ) -> AsyncIterator[httpx.Response]:
        """The answer of any that is alive; what was not received, or not done, is sent to another."""
        until = time.monotonic() + PATIENCE_S
        while True:
            url = self.dice.choice(self.urls)
            self.counts[method] += 1
            try:
                async with self.http.stream(method, url, json=message, headers=headers) as response:
                    if response.status_code not in busy or time.monotonic() > until:
                        yield response
                        return
            except httpx.ConnectError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(PAUSE_S)


class CallLost(Exception):
    """A call that did not end as it should."""


@dataclass
class Trip:
    """One call of one session."""

    at: Gateways
    log: Path
    answers: dict[str, str]
    headers: dict[str, str] = field(default_factory=dict)
    last_id: str | None = None
    question: Any = None
    outcome: str = ""

    async def begin(self) -> None:
        """Open a session and call, until the first question is there."""
        headers = {"accept": BOTH, "content-type": "application/json"}
        async with self.at.send("POST", headers, opening()) as response:
            opened = json.loads(await response.aread())
        self.headers = {
            **headers,
            "mcp-session-id": response.headers["mcp-session-id"],
            "mcp-protocol-version": opened["result"]["protocolVersion"],
        }
        self._stream = self._messages(calling("journey", log=str(self.log)))
        self.question = await self._next()

    async def hold(self) -> Any:
        """The next message: of the stream that is open, or of another gateway's when that one ends."""
        return await self._next()

    async def answer(self) -> None:
        """Answer the open question, at any gateway."""
        name = self._name()
        message = {"jsonrpc": "2.0", "id": self.question["id"]}
        said = {**message, "result": accept(name=self.answers[name])}
        busy = BUSY if self.at.halt is None else BUSY - {503}
        async with self.at.send("POST", self.headers, said, busy) as response:
            if response.status_code != 202:
                raise CallLost(f"an answer was {response.status_code}: {await response.aread()!r}")

    def _name(self) -> str:
        if "params" not in self.question:
            raise CallLost(f"it ended before its question was answered: {self.question}")
        return "who" if self.question["params"]["message"].startswith("Who") else "where"

    async def _next(self) -> Any:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            raise CallLost("its stream ended without a result") from None

    async def _messages(self, call: Any) -> AsyncIterator[Any]:
        """All that comes, through as many streams as it takes."""
        until, method, headers = time.monotonic() + PATIENCE_S, "POST", self.headers
        while time.monotonic() < until:
            try:
                async with self.at.send(method, headers, call) as response:
                    if response.status_code != 200:
                        raise CallLost(f"{response.status_code}: {await response.aread()!r}")
                    async for message in self._events(response):
                        yield message
            except httpx.TransportError:
                self.at.counts["cut off"] += 1
            if self.last_id is None:
                raise CallLost("it was cut off before there was an id to come back with")
            method, call, headers = "GET", None, {**self.headers, "last-event-id": self.last_id}
            await asyncio.sleep(PAUSE_S)

    async def _events(self, response: httpx.Response) -> AsyncIterator[Any]:
        event: dict[str, str] = {}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                event[name] = value
                continue
            if "id" in event:
                self.last_id = event["id"]
            if event.get("data"):
                yield json.loads(event["data"])
            event = {}

    async def close(self) -> None:
        await self._stream.aclose()  # type: ignore[attr-defined]


async def group(trips: Sequence[Trip], at: Gateways, *, is_halted: bool) -> None:
    """A group of calls, whose gateways die at each of their questions; once with a store that stands still."""
    await asyncio.gather(*(one.begin() for one in trips))
    halted = at.dice.choice((False, True)) if is_halted else None
    for last in (False, True):
        held = [asyncio.create_task(one.hold()) for one in trips]
        for _ in range(at.dice.randint(1, 2)):
            await at.kill()
            await asyncio.sleep(at.dice.uniform(0, 0.5))
        answering = [one.answer() for one in trips]
        if last is halted and at.halt is not None:
            await asyncio.gather(at.halt(at.dice.uniform(*AWAY_S)), *answering)
        else:
            await asyncio.gather(*answering)
        for one, message in zip(trips, await asyncio.gather(*held), strict=True):
            if not last:
                one.question = message
            else:
                one.outcome = message.get("result", {}).get("content", [{}])[0].get("text", message)
    await asyncio.gather(*(one.close() for one in trips))


async def run(title: str, count: int, directory: Path, at: Gateways) -> bool:
    """One run; whether every call ended rightly."""
    begun, trips = time.monotonic(), []
    for number in range(count):
        answers = {"who": f"Ann {number}", "where": f"Rome {number}"}
        trips.append(Trip(at, directory / f"trip-{number}.log", answers))
    wrong: list[str] = []
    for first in range(0, count, at.at_once):
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                is_halted = first // at.at_once % AWAY_EVERY == 0
                await group(trips[first : first + at.at_once], at, is_halted=is_halted)
        except (CallLost, httpx.HTTPError, TimeoutError) as error:
            wrong.append(f"a group: {type(error).__name__}: {error}")
    doubled = 0
    for number, trip in enumerate(trips):
        if trip.outcome != f"Ann {number} in Rome {number}":
            wrong.append(f"call {number}: {trip.outcome!r}")
        steps = trip.log.read_text().splitlines() if trip.log.exists() else []
        doubled += steps != ["packed", f"left Ann {number}"]
    rows = {
        "calls": count,
        "ended with what their users said": count - sum(one.startswith("call") for one in wrong),
        "with a step that was not done exactly once": doubled,
        "gateways killed": at.counts["killed"],
        "streams cut off": at.counts["cut off"],
        "times that the store stood still": at.counts["halted"],
        "GETs": at.counts["GET"],
        "seconds": round(time.monotonic() - begun),
    }
    table(title, rows)
    for one in wrong[:10]:
        print(f"  {one}")
    return not wrong and not doubled


async def on_processes(kind: str, count: int, seed: int) -> bool:
    """Four gateways in processes of their own, with a store of a kind."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        with (
            store(kind, directory) as shared,
            Fleet(CONFIG, directory, shared.environment, gateways=4, workers=0) as fleet,
        ):
            async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:

                async def kill() -> None:
                    member = dice.choice(fleet.members)
                    await asyncio.to_thread(member.kill)
                    at.counts["killed"] += 1
                    member.start()

                async def halt(seconds: float) -> None:
                    at.counts["halted"] += 1
                    if shared.database is not None:
                        await asyncio.to_thread(shared.database.kill)
                        await asyncio.sleep(seconds)
                        await asyncio.to_thread(shared.database.start)
                        return
                    database = _process_of(shared.environment["AWS_ENDPOINT_URL_DYNAMODB"])
                    os.kill(database, signal.SIGSTOP)
                    await asyncio.sleep(seconds)
                    os.kill(database, signal.SIGCONT)

                halts = None if kind == "sqlite" else halt
                at = Gateways(http, fleet.urls, kill, dice, AT_ONCE, halts)
                await _all_up(http, fleet.urls)
                return await run(f"sessions on {kind}", count, directory, at)


def _process_of(url: str) -> int:
    """The process of DynamoDB Local."""
    port = url.rpartition(":")[2].encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().rstrip(b"\0").endswith(b"-port\0" + port):
                return int(path.parent.name)
    raise AssertionError(f"no process serves {url}")


async def _all_up(http: httpx.AsyncClient, urls: Sequence[str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for url in urls:
            while True:
                try:
                    await http.get(url.removesuffix("/mcp") + "/healthz")
                    break
                except httpx.TransportError:
                    await asyncio.sleep(PAUSE_S)


async def on_lambda(count: int, seed: int) -> bool:
    """Three functions behind API Gateway, where nothing streams."""
    from roundgate_aws.stack.stack import build_zips, running

    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        zips = await asyncio.to_thread(build_zips, CONFIG, directory / "zips")
        limits = httpx.Limits(max_keepalive_connections=0)
        async with (
            running(directory, zips) as up,
            httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False, limits=limits) as http,
        ):

            async def kill() -> None:
                one = dice.choice(up.gateways.environments)
                at.counts["killed"] += one.is_alive
                await asyncio.to_thread(one.kill)

            at = Gateways(http, [up.url], kill, dice, AT_ONCE_ON_LAMBDA)
            return await run("sessions on AWS Lambda", count, directory, at)


def main(arguments: argparse.Namespace) -> bool:
    """Every store that was asked for, and the stack for whoever asks for this run; whether all ended rightly."""
    if arguments.part == "lambda":
        return _on_lambda_if_it_can_be(arguments.count, arguments.seed)
    results = [
        asyncio.run(on_processes(kind, arguments.count, arguments.seed))
        for kind in stores(arguments)
    ]
    if arguments.store == "all" and arguments.run is not None:
        results.append(_on_lambda_if_it_can_be(max(1, arguments.count // 4), arguments.seed))
    return all(results)


def _on_lambda_if_it_can_be(count: int, seed: int) -> bool:
    from roundgate_aws.stack.functions import why_not

    if reason := why_not():
        print(f"\nskipped: sessions on AWS Lambda: {reason}")
        return True
    return asyncio.run(on_lambda(count, seed))
