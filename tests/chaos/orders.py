"""What every chaos run does: orders that become tasks with questions, and what must
hold of each when it is over.

Of what a client was told nothing may be lost or contradicted: the task it got is there, what a
question showed of a finished step is in the result, and every task ends once and rightly.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support import wire

CONFIG = Path(__file__).parent / "served/gateway.yaml"
CAPABILITIES: Mapping[str, Any] = {
    "elicitation": {},
    "extensions": {"io.modelcontextprotocol/tasks": {}},
}
AT_ONCE = 60
GIVE_UP_S = 300


@dataclass
class Told:
    """What the client of one order was told."""

    order: int
    street: str
    task_id: str | None = None
    carrier: str | None = None
    """What was accepted when the carrier posted that it has the parcel."""
    receipts: dict[str, str] = field(default_factory=dict)
    final: dict[str, Any] | None = None
    wrong: list[str] = field(default_factory=list)


@dataclass
class Client:
    """Sends each request to a random gateway until one answers."""

    http: httpx.AsyncClient
    urls: list[str]
    dice: random.Random
    again: Set[int] = frozenset({503})
    """Statuses after which a request is repeated."""
    capabilities: Mapping[str, Any] = field(default_factory=lambda: CAPABILITIES)
    counts: Counter[str] = field(default_factory=Counter)

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result or error; an answer that was lost is asked for again, elsewhere."""
        message = wire.message(method, params, 1, clientCapabilities=self.capabilities)
        give_up_at, pause_s = time.monotonic() + 60, 0.2
        while time.monotonic() < give_up_at:
            self.counts[method] += 1
            try:
                response = await self.http.post(
                    self.dice.choice(self.urls),
                    json=message,
                    headers=wire.headers(message),
                    timeout=40,
                )
            except httpx.TransportError:
                self.counts["no answer"] += 1
                await asyncio.sleep(0.1)
                continue
            if response.status_code in self.again:
                self.counts[f"{response.status_code}"] += 1
                await asyncio.sleep(self.dice.uniform(0.5, 1) * pause_s)
                pause_s = min(
                    2 * pause_s, 5
                )  # a service that has no room is given time, as any client does
                continue
            body: dict[str, Any] = response.json()
            return body
        raise AssertionError(f"nobody answers {method}")

    async def order(self, told: Told) -> None:
        """One order from its call to its end."""
        params: dict[str, Any] = {"name": "place_order", "arguments": {"order": told.order}}
        created = (await self.ask("tools/call", params))["result"]
        while (
            created["resultType"] == "input_required"
        ):  # its row may be written or not: the state finds out
            created = (
                await self.ask("tools/call", {**params, "requestState": created["requestState"]})
            )["result"]
        assert created["resultType"] == "task", created
        told.task_id = created["taskId"]
        give_up_at = time.monotonic() + GIVE_UP_S
        while told.final is None and time.monotonic() < give_up_at:
            body = await self.ask("tasks/get", {"taskId": told.task_id})
            if "error" in body:
                told.wrong.append(f"tasks/get: {body['error']}")
                return
            await self.look_at(told, body["result"])
            await asyncio.sleep(
                self.dice.uniform(0.5, 1) * body["result"].get("pollIntervalMs", 1_000) / 1000
            )

    async def look_at(self, told: Told, task: dict[str, Any]) -> None:
        if task["status"] in ("completed", "failed", "cancelled"):
            told.final = task
            return
        if "picked up? " in task.get("statusMessage", "") and told.carrier is None:
            token = task["statusMessage"].partition("picked up? ")[2].partition(" ")[0]
            await self.deliver(told, token)
        requests: dict[str, Any] = task.get("inputRequests", {})
        for key, request in requests.items():
            self.note(told, key, request["params"]["message"])
            content = {"street": told.street} if key.startswith("address") else {"go": True}
            params = {
                "taskId": told.task_id,
                "inputResponses": {key: {"action": "accept", "content": content}},
            }
            for _ in range(self.dice.choice((1, 1, 2))):  # some clients send it twice
                ack = (await self.ask("tasks/update", params)).get("result", {})
                if ack.get("resultType") != "complete":
                    told.wrong.append(f"tasks/update: {ack}")

    async def deliver(self, told: Told, token: str) -> None:
        """Post that the carrier has the parcel, to a random gateway, until one has accepted it."""
        payload, give_up_at = f"carrier-{told.order}", time.monotonic() + 60
        while time.monotonic() < give_up_at:
            url = self.dice.choice(self.urls).removesuffix("/mcp") + f"/events/{token}"
            self.counts["events/deliver"] += 1
            try:
                response = await self.http.post(url, json=payload, timeout=40)
            except httpx.TransportError:
                self.counts["no answer"] += 1
                await asyncio.sleep(0.1)
                continue
            if response.status_code in (200, 202):
                told.carrier = payload
                return
            if response.status_code not in {*self.again, 429}:
                told.wrong.append(f"a delivery got {response.status_code}: {response.text}")
                return
            self.counts[f"{response.status_code}"] += 1
            await asyncio.sleep(self.dice.uniform(0.2, 1))
        told.wrong.append("nobody takes a delivery")

    def note(self, told: Told, key: str, message: str) -> None:
        """A question shows the receipt of the step before it: from now on that step has happened."""
        step = "reserve" if key.startswith("address") else "pack"
        receipt = message.split("(")[1].rstrip(")") if step == "reserve" else message.split()[1]
        if told.receipts.setdefault(step, receipt) != receipt:
            told.wrong.append(f"{step} was {told.receipts[step]} and is {receipt} now")


async def all_of(client: Client, told: Sequence[Told], at_once: int = AT_ONCE) -> None:
    """Every order from its call to its end, a limited number at once."""
    room = asyncio.Semaphore(at_once)

    async def one(order: Told) -> None:
        async with room:
            try:
                await client.order(order)
            except AssertionError as error:
                order.wrong.append(str(error))

    await asyncio.gather(*map(one, told))


def report(
    title: str,
    told: Sequence[Told],
    effects: str,
    counts: Counter[str],
    kills: Mapping[str, int],
    seconds: float,
) -> bool:
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
        **{f"{kind}s killed": kills[kind] for kind in sorted({"gateway", "worker", *kills})},
        "requests": sum(counts[method] for method in counts if "/" in method),
        "of them without an answer": counts["no answer"],
        **{
            f"of them answered {status}": counts[status]
            for status in ("500", "503")
            if counts[status] or status == "503"
        },
        "steps done": sum(done.values()),
        "of them again, because their worker died before they were noted": repeated,
        "seconds": round(seconds, 1),
    }
    table(title, rows)
    for one in [one for one in told if one.wrong][:10]:
        print(f"  order {one.order}, task {one.task_id}: {'; '.join(one.wrong)}")
    return right == len(told)


def table(title: str, rows: Mapping[str, object]) -> None:
    """A line a row."""
    print(f"\n{title}")
    for name, value in rows.items():
        print(f"  {name:66}{value:>8}")


def check(one: Told, happened: set[tuple[str, ...]]) -> None:
    """Hold the end of a task against what was told before, and against what really happened."""
    if one.final is None:
        one.wrong.append("it did not end")
        return
    if one.final["status"] != "completed" or one.final["result"].get("isError"):
        one.wrong.append(f"it ended as {one.final}")
        return
    text = one.final["result"]["content"][0]["text"]
    order, street, reserved, packed, shipped, carrier = text.split()
    if carrier != one.carrier:
        one.wrong.append(f"{one.carrier} has the parcel, ended with {carrier}")
    if (order, street) != (str(one.order), one.street):
        one.wrong.append(f"it is about {order} to {street}")
    if one.receipts != {"reserve": reserved, "pack": packed}:
        one.wrong.append(f"shown {one.receipts}, ended with {reserved} {packed}")
    if (
        not {(order, "reserve", reserved), (order, "pack", packed), (order, "ship", shipped)}
        <= happened
    ):
        one.wrong.append("it tells of what did not happen")
