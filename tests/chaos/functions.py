"""`scripts/chaos lambda`: many tasks with questions, through functions of AWS Lambda
that die every two seconds.

The whole stack of `roundgate_aws.stack`: API Gateway, three gateways and two workers from
the built zips, and their queue. A message whose worker dies stays hidden for the template's hour
and a half, so it is the sweep that finds its task. Beside them two handlers that take three times
as long as the API waits.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from roundgate_aws.stack.functions import Environment, why_not
from roundgate_aws.stack.stack import Deployment, Times, build_zips, running
from tests.chaos.orders import CONFIG, Client, Told, all_of, report, table

SWEEP_EVERY_S = 2
LONG_S = 90
WITHIN_S = 240
AT_ONCE = 15
"""Clients that poll three gateways, each of which serves one request at a time: more are only told to come again."""


async def haunt(
    environments: Sequence[Environment], every_s: float, dice: random.Random, kills: Counter[str]
) -> None:
    """Kill one after another, for ever; the next invocation begins its next life."""
    while True:
        await asyncio.sleep(every_s)
        one = dice.choice(environments)
        kills["gateway" if one.name.startswith("Gateway") else "worker"] += one.is_alive
        await asyncio.to_thread(one.kill)


def text_of(result: Mapping[str, Any]) -> str:
    """The text that a tool answered with."""
    return "".join(block["text"] for block in result.get("content", []))


@dataclass
class Long:
    """A handler that takes longer than the API waits: how it ended."""

    title: str
    order: int
    text: str = ""
    requests: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    """Of its rounds."""
    late: int = 0
    """Rounds with a step so much longer than those before it that there was no time left to shed."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """What the client got in the end."""

    async def round(self, client: Client, more: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result of a round of the call; one that was late is repeated."""
        params = {"name": "haul", "arguments": {"order": self.order, "seconds": LONG_S}, **more}
        for _ in range(3):
            sent_at = time.monotonic()
            result: Mapping[str, Any] = (await client.ask("tools/call", params)).get("result", {})
            self.requests += 1
            self.longest_s = max(self.longest_s, time.monotonic() - sent_at)
            if not text_of(result).startswith("The call did not finish within"):
                break
            self.late += 1
        return result

    def ended(self, result: Mapping[str, Any], seconds: float) -> None:
        self.answer, self.text, self.seconds = result, text_of(result), seconds

    def is_right(self, effects: str) -> bool:
        """What the client was told is what was done last; before that only what nobody noted."""
        done = [line for line in effects.splitlines() if line.startswith(f"{self.order} ")]
        return done[-1:] == [f"{self.order} haul {self.text}"]


async def as_task(client: Client, patient: Client) -> Long:
    """One that goes on as a task, through functions that die; the call before there is one has a replica that lives."""
    long, begun = Long("as a task, through functions that die", -1), time.monotonic()
    task = await long.round(patient, {})
    while task.get("status") == "working" and time.monotonic() - begun < WITHIN_S:
        await asyncio.sleep(1)
        task = (await client.ask("tasks/get", {"taskId": task["taskId"]}))["result"]
        long.requests += 1
    long.ended(task.get("result", {}), time.monotonic() - begun)
    return long


async def by_shedding(patient: Client) -> Long:
    """One for a client that knows no tasks and can only repeat; its replica lives."""
    long, begun = Long("by shedding, for a client that can only repeat", -2), time.monotonic()
    result = await long.round(patient, {})
    while result.get("resultType") == "input_required" and time.monotonic() - begun < WITHIN_S:
        result = await long.round(patient, {"requestState": result["requestState"]})
    long.ended(result, time.monotonic() - begun)
    return long


@asynccontextmanager
async def patients(deployment: Deployment) -> AsyncIterator[tuple[Client, Client]]:
    """Clients whose gateways nobody kills: one that knows tasks, and one that does not."""
    dice = random.Random(0)
    with closing(deployment.gateways(2, "Patient")) as pool:
        transport = httpx.ASGITransport(deployment.api(pool))
        async with httpx.AsyncClient(transport=transport) as http:
            urls = ["http://127.0.0.1/mcp"]
            yield Client(http, urls, dice), Client(http, urls, dice, capabilities={})


async def run(count: int, seed: int, kill_every_s: float, *, with_long: bool) -> bool:
    """One run; whether everything ended rightly."""
    dice, kills = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        effects = directory / "effects.txt"
        effects.touch()
        zips = await asyncio.to_thread(build_zips, CONFIG, directory / "zips")
        times, limits = Times(SWEEP_EVERY_S), httpx.Limits(max_keepalive_connections=0)
        async with (
            running(directory, zips, times=times, more={"CHAOS_EFFECTS": str(effects)}) as up,
            patients(up.deployment) as (knowing, unknowing),
            httpx.AsyncClient(trust_env=False, limits=limits, timeout=60) as http,
        ):
            client = Client(http, [up.url], dice, again=frozenset({500, 503}))
            await client.ask("server/discover", {})
            begun = time.monotonic()
            killer = asyncio.create_task(haunt(up.environments, kill_every_s, dice, kills))
            long = asyncio.gather(
                *([as_task(client, knowing), by_shedding(unknowing)] if with_long else [])
            )
            told = [Told(number, f"street-{number}") for number in range(count)]
            await all_of(client, told, AT_ONCE)
            seconds = time.monotonic() - begun
            ended = await long
            killer.cancel()
        done = effects.read_text()
    of_orders = "".join(line for line in done.splitlines(keepends=True) if not line.startswith("-"))
    is_right = report("tasks on AWS Lambda", told, of_orders, client.counts, kills, seconds)
    shown = [show(one, done) for one in ended]
    return is_right and all(shown)


def show(long: Long, effects: str) -> bool:
    """Print how a long handler ended; whether it is as it must be."""
    is_right = long.is_right(effects)
    rows = {
        "ended rightly": "yes" if is_right else "NO",
        "requests": long.requests,
        "of them too late, and repeated": long.late,
        "longest round, seconds": round(long.longest_s, 1),
        "seconds": round(long.seconds, 1),
    }
    table(f"a handler of {LONG_S} s behind a limit of 30 s, {long.title}", rows)
    if not is_right:
        print(f"  it got {long.answer}")
    return is_right


def main(arguments: argparse.Namespace) -> bool:
    """The run, where the stack can be run; whether all ended rightly."""
    if reason := why_not():
        print(f"\nskipped: chaos on AWS Lambda: {reason}")
        return True
    return asyncio.run(
        run(
            arguments.count,
            arguments.seed,
            arguments.kill_every,
            with_long=arguments.run == "lambda",
        )
    )
