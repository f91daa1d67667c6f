"""`scripts/chaos rolling`: two replicas and a worker that restart in turn under live traffic.

    restart all ─ stage 1: old,new ─ restart all ─ stage 2: new,old ─ restart all ─ stage 3: new ─ restart all

Plain calls, calls of steps, streams, questions whose answers go to another replica, and tasks, all
of them shorter than the time that a replica has after SIGTERM. The ring of state keys is a file
that `roundgate keys rotate` rewrites, as the runbook says.

Must hold: 0 calls fail, 0 tasks are lost, all replicas show the ring of the stage in `/healthz`, and
every process exits with 0 without having logged an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx

from roundgate.tokens import keys
from roundgate_aws.machine import reserved_port
from tests.chaos.tasks import store, stores
from tests.chaos.traffic import (
    TOOLS,
    Clients,
    Replica,
    Told,
    connections,
    repeated,
    wrong_in_logs,
)
from tests.support.round_robin import RoundRobin
from tests.support.rounds import KEYS
from tests.support.server import COMMAND

AT_ONCE: Final = 40
KINDS: Final = ("plain", "steps", "stream", "question", "task")
DRAIN_S: Final = 6
LONGEST_S: Final = 1.5
STAGES: Final = (1, 2, 3)


async def rolled(
    kind: str, directory: Path, rotations: int, at_once: int, dice: random.Random
) -> Told:
    """Restart everything once, then for each stage of some rotations."""
    told = Told()
    (directory / "tools.py").write_text(TOOLS)
    config = directory / "gateway.yaml"
    config.write_text(
        "backends: [{kind: python, name: own, prefix: '', path: tools.py}]\n"
        "tasks: {concurrency: 40, max_open_per_owner: 10000, clock_skew_s: 0}\n"
    )
    ring = directory / "state_keys"
    ring.write_text(KEYS)
    data = directory / "store"
    data.mkdir()
    with ExitStack() as stack:
        shared = stack.enter_context(store(kind, data)).environment
        environment = {
            **{name: shared[name] for name in shared if name != "GATEWAY_STATE_KEYS"},
            "GATEWAY_STATE_KEYS_FILE": str(ring),
            "GATEWAY_DRAIN_S": str(DRAIN_S),
            "GATEWAY_WORKER": "off",
        }
        ports = [stack.enter_context(reserved_port()) for _ in range(2)]
        members = [Replica(config, port, environment) for port in (*ports, None)]
        for member in members:
            member.start()
            stack.callback(member.end)
        for member in members:
            await member.until_ready()
        urls = [member.url for member in members if member.port is not None]
        balancer = stack.enter_context(RoundRobin(urls, probes_s=0.3))
        async with connections() as http:
            clients = Clients(http, balancer.url, told, dice, LONGEST_S, {})
            async with clients.calling(KINDS, at_once):
                for stage in (None, *STAGES * rotations):
                    if stage is not None:
                        await asyncio.to_thread(_rotate, ring, stage)
                    for member in dice.sample(members, len(members)):
                        await member.restart(told)
                    told.wrong += await _rings_that_differ(http, urls, stage)
                    await asyncio.sleep(1 + LONGEST_S)  # questions of the stage before are answered
        told.wrong += [f"cut: {line}" for line in balancer.seen.cut]
    told.wrong += wrong_in_logs(directory)
    return told


def _rotate(ring: Path, stage: int) -> None:
    environment = os.environ | {"GATEWAY_STATE_KEYS_FILE": str(ring)}
    held = keys.parse(ring.read_text(), str(ring))
    new = [] if stage == 1 else [f"--key={held[1 if stage == 2 else 0].id}"]
    command = [*COMMAND, "keys", "rotate", "--stage", str(stage), *new]
    ring.write_bytes(subprocess.run(command, env=environment, check=True, stdout=-1).stdout)


async def _rings_that_differ(
    http: httpx.AsyncClient, urls: Sequence[str], stage: int | None
) -> list[str]:
    health = [(await http.get(url.replace("/mcp", "/healthz"))).json() for url in urls]
    shown = [facts["keys"] for facts in health]
    is_right = shown[0] == shown[1] and len(shown[0]) == (2 if stage in (1, 2) else 1)
    return [] if is_right else [f"rings differ: {json.dumps(shown)}"]


async def chaos(kind: str, arguments: argparse.Namespace) -> bool:
    """One run; whether everything held."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        dice = random.Random(arguments.seed)
        told = await rolled(kind, Path(place), arguments.count, AT_ONCE, dice)
        again = repeated(Path(place), told).total()
    before = {
        "rotations, of three stages": arguments.count,
        "processes restarted": 3 * (1 + 3 * arguments.count),
        "calls and tasks that ended rightly": told.done(KINDS),
    }
    after = {
        "steps that ran again": again,
        "failed": len(told.wrong),
        "seconds": round(time.monotonic() - begun),
    }
    return told.report(f"a rolling restart and rotations on {kind}", before, after)


def main(arguments: argparse.Namespace) -> bool:
    """Every store that was asked for; whether everything held."""
    results = [asyncio.run(chaos(kind, arguments)) for kind in stores(arguments)]
    return all(results)
