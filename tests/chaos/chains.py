"""`scripts/chaos chains`: a task with 100 sleeps and a job that is polled 100 times, on the local
stack.

Each sleep and each pause between polls lets the worker go, and a message wakes the task: for each
of the two a chain of messages and turns. The template allows such loops.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from roundgate_aws.stack.functions import why_not
from roundgate_aws.stack.stack import build_zips, running
from tests.chaos.orders import CONFIG, Client, table

PAUSE_S = 1.1
"""Longer than a worker waits itself."""


async def ended(client: Client, name: str, count: int) -> dict[str, Any]:
    """The task of a call, once it has ended."""
    arguments = {"order": count, "times": count, "pause_s": PAUSE_S}
    task = (await client.ask("tools/call", {"name": name, "arguments": arguments}))["result"]
    give_up_at = time.monotonic() + 60 + count * 6
    while task["status"] == "working" and time.monotonic() < give_up_at:
        await asyncio.sleep(1)
        task = (await client.ask("tasks/get", {"taskId": task["taskId"]}))["result"]
    return dict(task)


async def run(count: int) -> bool:
    """One run; whether both ended rightly."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        effects = directory / "effects.txt"
        effects.touch()
        zips = await asyncio.to_thread(build_zips, CONFIG, directory / "zips")
        async with (
            running(directory, zips, more={"CHAOS_EFFECTS": str(effects)}) as up,
            httpx.AsyncClient(
                trust_env=False, limits=httpx.Limits(max_keepalive_connections=0), timeout=60
            ) as http,
        ):
            client, begun = Client(http, [up.url], random.Random(0)), time.monotonic()
            tasks = await asyncio.gather(
                *(ended(client, name, count) for name in ("doze", "follow"))
            )
            counts, seconds = up.poller.counts, time.monotonic() - begun
    texts = [task.get("result", {}).get("content", [{}])[0].get("text") for task in tasks]
    rows = {
        "ended rightly": sum(text == str(count) for text in texts),
        "messages": counts["messages"],
        "functions at once, at most": up.deployment.account.most,
        "seconds": round(seconds, 1),
    }
    table(f"a task with {count} sleeps and a job polled {count} times", rows)
    return texts == [str(count)] * 2


def main(arguments: argparse.Namespace) -> bool:
    """The run, where the stack can be run."""
    if reason := why_not():
        print(f"\nskipped: chains on AWS Lambda: {reason}")
        return True
    return asyncio.run(run(arguments.count))
