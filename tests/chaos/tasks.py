"""`scripts/chaos tasks`: many tasks with questions, through processes that die every two seconds.

Every request goes to a random gateway. Of what a client was told nothing may be lost or contradicted: the task it got
is there, what a question showed of a finished step is in the result, and every task ends once and rightly.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.fleet import ROOT, Fleet
from tests.support import wire

CONFIG = Path(__file__).parent / "served/gateway.yaml"
CAPABILITIES = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
AT_ONCE = 60
GIVE_UP_S = 300


@dataclass
class Told:
    """What the client of one order was told."""

    order: int
    street: str
    task_id: str | None = None
    receipts: dict[str, str] = field(default_factory=dict)
    final: dict[str, Any] | None = None
    wrong: list[str] = field(default_factory=list)


@dataclass
class Client:
    """Sends each request to a random gateway until one answers."""

    http: httpx.AsyncClient
    urls: list[str]
    dice: random.Random
    counts: Counter[str] = field(default_factory=Counter)

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result or error; an answer that was lost is asked for again, elsewhere."""
        message = wire.message(method, params, 1, clientCapabilities=CAPABILITIES)
        give_up_at = time.monotonic() + 60
        while time.monotonic() < give_up_at:
            self.counts[method] += 1
            try:
                response = await self.http.post(
                    self.dice.choice(self.urls), json=message, headers=wire.headers(message), timeout=20
                )
            except httpx.TransportError:
                self.counts["no answer"] += 1
                await asyncio.sleep(0.1)
                continue
            if response.status_code == 503:
                self.counts["503"] += 1
                await asyncio.sleep(0.2)
                continue
            body: dict[str, Any] = response.json()
            return body
        raise AssertionError(f"nobody answers {method}")

    async def order(self, told: Told) -> None:
        """One order from its call to its end."""
        created = (await self.ask("tools/call", {"name": "place_order", "arguments": {"order": told.order}}))["result"]
        assert created["resultType"] == "task", created
        told.task_id = created["taskId"]
        give_up_at = time.monotonic() + GIVE_UP_S
        while told.final is None and time.monotonic() < give_up_at:
            body = await self.ask("tasks/get", {"taskId": told.task_id})
            if "error" in body:
                told.wrong.append(f"tasks/get: {body['error']}")
                return
            await self.look_at(told, body["result"])
            await asyncio.sleep(self.dice.uniform(0.2, 0.8))

    async def look_at(self, told: Told, task: dict[str, Any]) -> None:
        if task["status"] in ("completed", "failed", "cancelled"):
            told.final = task
            return
        requests: dict[str, Any] = task.get("inputRequests", {})
        for key, request in requests.items():
            self.note(told, key, request["params"]["message"])
            content = {"street": told.street} if key.startswith("address") else {"go": True}
            params = {"taskId": told.task_id, "inputResponses": {key: {"action": "accept", "content": content}}}
            for _ in range(self.dice.choice((1, 1, 2))):  # some clients send it twice
                ack = (await self.ask("tasks/update", params)).get("result", {})
                if ack.get("resultType") != "complete":
                    told.wrong.append(f"tasks/update: {ack}")

    def note(self, told: Told, key: str, message: str) -> None:
        """A question shows the receipt of the step before it: from now on that step has happened."""
        step = "reserve" if key.startswith("address") else "pack"
        receipt = message.split("(")[1].rstrip(")") if step == "reserve" else message.split()[1]
        if told.receipts.setdefault(step, receipt) != receipt:
            told.wrong.append(f"{step} was {told.receipts[step]} and is {receipt} now")


@contextmanager
def store(kind: str, directory: Path) -> Iterator[dict[str, str]]:
    """The environment of processes that share a store of a kind."""
    file = {"GATEWAY_STATE_KEYS": base64.b64encode(os.urandom(32)).decode()}
    if kind == "sqlite":
        yield file | {"GATEWAY_STORE": f"sqlite:///{directory}/gateway.sqlite3"}
        return
    subprocess.run([ROOT / "scripts/dynamodb-local", "--install"], check=True)
    from tests.support.dynamodb import emulator

    with emulator(directory) as running, running.table() as table:
        yield file | {
            "GATEWAY_STORE": f"dynamodb://{table}",
            "GATEWAY_QUEUE": "local",
            "AWS_ENDPOINT_URL_DYNAMODB": running.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "eu-central-1",
        }


async def run(kind: str, count: int, seed: int, kill_every_s: float) -> bool:
    """One run; whether everything ended rightly."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        effects = directory / "effects.txt"
        effects.touch()
        with (
            store(kind, directory) as environment,
            Fleet(CONFIG, directory, environment | {"CHAOS_EFFECTS": str(effects)}, gateways=3, workers=2) as fleet,
        ):
            begun = time.monotonic()
            told = [Told(number, f"street-{number}") for number in range(count)]
            limits = httpx.Limits(max_keepalive_connections=0)  # a kept connection would stay with one process
            async with httpx.AsyncClient(limits=limits) as http:
                client = Client(http, fleet.urls, dice)
                await client.ask("server/discover", {})
                killer = asyncio.create_task(fleet.haunt(kill_every_s, dice))
                room = asyncio.Semaphore(AT_ONCE)

                async def one(order: Told) -> None:
                    async with room:
                        try:
                            await client.order(order)
                        except AssertionError as error:
                            order.wrong.append(str(error))

                await asyncio.gather(*map(one, told))
                killer.cancel()
            return report(kind, told, effects.read_text(), client.counts, fleet, time.monotonic() - begun)


def report(kind: str, told: list[Told], effects: str, counts: Counter[str], fleet: Fleet, seconds: float) -> bool:
    """Print the table; whether all is as it must be."""
    done = Counter((line.split()[0], line.split()[1]) for line in effects.splitlines())
    happened = {tuple(line.split()) for line in effects.splitlines()}
    for one in told:
        check(one, happened)
    right = sum(not one.wrong for one in told)
    repeated = sum(times - 1 for times in done.values())
    rows = {
        "tasks": len(told),
        "ended rightly": right,
        "ended wrongly or lost": len(told) - right,
        "gateways killed": fleet.kills["gateway"],
        "workers killed": fleet.kills["worker"],
        "requests": sum(counts[method] for method in counts if "/" in method),
        "of them without an answer": counts["no answer"],
        "of them answered 503": counts["503"],
        "steps done": sum(done.values()),
        "of them again, because their worker died before they were noted": repeated,
        "seconds": round(seconds, 1),
    }
    print(f"\ntasks on {kind}")
    for name, value in rows.items():
        print(f"  {name:66}{value:>8}")
    for one in [one for one in told if one.wrong][:10]:
        print(f"  order {one.order}, task {one.task_id}: {'; '.join(one.wrong)}")
    return right == len(told)


def check(one: Told, happened: set[tuple[str, ...]]) -> None:
    """Hold the end of a task against what was told before, and against what really happened."""
    if one.final is None:
        one.wrong.append("it did not end")
        return
    if one.final["status"] != "completed" or one.final["result"].get("isError"):
        one.wrong.append(f"it ended as {one.final}")
        return
    order, street, reserved, packed, shipped = one.final["result"]["content"][0]["text"].split()
    if (order, street) != (str(one.order), one.street):
        one.wrong.append(f"it is about {order} to {street}")
    if one.receipts != {"reserve": reserved, "pack": packed}:
        one.wrong.append(f"shown {one.receipts}, ended with {reserved} {packed}")
    if not {(order, "reserve", reserved), (order, "pack", packed), (order, "ship", shipped)} <= happened:
        one.wrong.append("it tells of what did not happen")


def main(arguments: argparse.Namespace) -> bool:
    """Every store that was asked for; whether all ended rightly."""
    stores = ["sqlite", "dynamodb"] if arguments.store == "both" else [arguments.store]
    results = []
    for kind in stores:
        if kind == "dynamodb" and not has_java():
            print("\nskipped: DynamoDB Local needs Java 17")
            continue
        results.append(asyncio.run(run(kind, arguments.count, arguments.seed, arguments.kill_every)))
    return all(results)


def has_java() -> bool:
    """Whether there is a Java that starts."""
    try:
        return subprocess.run(["java", "-version"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
