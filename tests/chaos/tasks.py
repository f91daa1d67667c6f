"""`scripts/chaos tasks`: many tasks with questions, through processes that die every two seconds.

Every request goes to a random gateway; what must hold of the tasks is in `orders`. PostgreSQL is one of the processes:
it is killed and started again like the others.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from bench import postgresql
from tests.chaos.fleet import ROOT, Fleet
from tests.chaos.orders import CONFIG, Client, Told, all_of, report
from tests.support import pgbouncer

POOLED: Final[Mapping[str, pgbouncer.Mode]] = {
    "pgbouncer-session": "session",
    "pgbouncer-transaction": "transaction",
}
"""PostgreSQL behind PgBouncer; only if it is asked for by name."""


@dataclass(frozen=True)
class Shared:
    """What processes share."""

    environment: dict[str, str]
    database: postgresql.Server | None = None
    """The server, if it can be killed."""


@contextmanager
def store(kind: str, directory: Path) -> Iterator[Shared]:
    """A store of a kind."""
    keys = {"GATEWAY_STATE_KEYS": base64.b64encode(os.urandom(32)).decode()}
    if kind == "sqlite":
        yield Shared(keys | {"GATEWAY_STORE": f"sqlite:///{directory}/gateway.sqlite3"})
        return
    if kind == "postgres":
        with postgresql.server() as server:
            yield Shared(keys | {"GATEWAY_STORE": server.url}, server)
        return
    if kind in POOLED:
        with postgresql.server() as server, pgbouncer.pooler(server, POOLED[kind]) as pooler:
            yield Shared(keys | {"GATEWAY_STORE": pooler.url}, server)
        return
    subprocess.run([ROOT / "scripts/tools", "dynamodb-local", "--install"], check=True)
    from tests.support.dynamodb import emulator

    with emulator(directory) as running, running.table() as table:
        at_aws = {
            "GATEWAY_STORE": f"dynamodb://{table}",
            "GATEWAY_QUEUE": "local",
            "AWS_ENDPOINT_URL_DYNAMODB": running.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "eu-central-1",
        }
        yield Shared(keys | at_aws)


async def run(kind: str, count: int, seed: int, kill_every_s: float) -> bool:
    """One run; whether everything ended rightly."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        effects = directory / "effects.txt"
        effects.touch()
        with (
            store(kind, directory) as shared,
            Fleet(
                CONFIG,
                directory,
                shared.environment | {"CHAOS_EFFECTS": str(effects)},
                gateways=3,
                workers=2,
                database=shared.database,
            ) as fleet,
        ):
            begun = time.monotonic()
            told = [Told(number, f"street-{number}") for number in range(count)]
            limits = httpx.Limits(
                max_keepalive_connections=0
            )  # a kept connection would stay with one process
            async with httpx.AsyncClient(limits=limits, timeout=60) as http:
                client = Client(http, fleet.urls, dice)
                await client.ask("server/discover", {})
                killer = asyncio.create_task(fleet.haunt(kill_every_s, dice))
                await all_of(client, told)
                killer.cancel()
            seconds = time.monotonic() - begun
            return report(
                f"tasks on {kind}", told, effects.read_text(), client.counts, fleet.kills, seconds
            )


def main(arguments: argparse.Namespace) -> bool:
    """Every store that was asked for; whether all ended rightly."""
    results = [
        asyncio.run(run(kind, arguments.count, arguments.seed, arguments.kill_every))
        for kind in stores(arguments)
    ]
    return all(results)


def stores(arguments: argparse.Namespace) -> Iterator[str]:
    """The kinds of store that were asked for and can be run here."""
    for kind in (
        ["sqlite", "dynamodb", "postgres"] if arguments.store == "all" else [arguments.store]
    ):
        if kind == "dynamodb" and not has_java():
            print("\nskipped: DynamoDB Local needs Java 17")
        elif kind == "postgres" and (reason := postgresql.why_not()):
            print(f"\nskipped: {reason}")
        elif kind not in POOLED:
            yield kind
        elif reason := pgbouncer.why_not(POOLED[kind]):
            print(f"\nskipped: {reason}")
        else:
            yield kind


def has_java() -> bool:
    """Whether there is a Java that starts."""
    try:
        return (
            subprocess.run(["java", "-version"], capture_output=True, check=False).returncode == 0
        )
    except FileNotFoundError:
        return False
