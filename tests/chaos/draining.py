"""`scripts/chaos draining`: two replicas behind a balancer that stop in turn while calls run.

`AT_ONCE` clients call without a pause: plain calls, calls of steps, streams with reports, listeners
and tasks, most of them longer than a replica has left after SIGTERM. The balancer asks `/readyz`.

Must hold: every replica exits with 0; no answer is a bare 500 or another text that is not MCP, none
is cut, and none is missing; a call of steps or a task ends with its result, and repeats at most the
step that ran when its replica stopped; a plain call ends with its result, or is told that it may
have taken effect; listeners get their closing result; no replica logs an error.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from roundgate_aws.machine import reserved_port
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

AT_ONCE: Final = 200
DRAIN_S: Final = 4
"""Half of it passes until a replica accepts nothing more."""
KINDS: Final = ("plain", "steps", "stream", "listen", "task")
MAY_REFUSE: Final = {
    "plain": "may have taken effect",
    "stream": "may have taken effect",
    "listen": "shutting down",
    "tasks/get": "",
}


async def drained(
    directory: Path, times: int, at_once: int, dice: random.Random
) -> tuple[Told, list[int]]:
    """Stop replicas `times` times under the load of `at_once` clients. Return what the clients were
    told, and how many calls were in flight at each signal."""
    told, at_signal = Told(), []
    (directory / "tools.py").write_text(TOOLS)
    (directory / "gateway.yaml").write_text(
        "backends: [{kind: python, name: own, prefix: '', path: tools.py}]\n"
        "http: {max_streams_per_caller: 1000}\n"
        f"tasks: {{concurrency: {AT_ONCE}, max_open_per_owner: 10000}}\n"
    )
    environment = {
        "GATEWAY_STORE": f"sqlite:///{directory}/store.sqlite3",
        "GATEWAY_STATE_KEYS": KEYS,
        "GATEWAY_DRAIN_S": str(DRAIN_S),
    }
    with ExitStack() as stack:
        replicas = []
        for _ in range(2):
            port = stack.enter_context(reserved_port())
            replica = Replica(directory / "gateway.yaml", port, environment)
            replica.start()
            stack.callback(replica.end)
            replicas.append(replica)
        for replica in replicas:
            await replica.until_ready()
        balancer = stack.enter_context(RoundRobin([one.url for one in replicas], probes_s=0.3))
        async with connections() as http:
            clients = Clients(http, balancer.url, told, dice, 2 * DRAIN_S, MAY_REFUSE)
            async with clients.calling(KINDS, at_once):
                for time_ in range(times):
                    await asyncio.sleep(dice.uniform(1, 3))
                    at_signal.append(len(told.in_flight))
                    await replicas[time_ % 2].restart(told)
        told.wrong += [f"cut: {line}" for line in balancer.seen.cut]
    told.wrong += wrong_in_logs(directory)
    again = repeated(directory, told)
    told.wrong += [f"{call} repeated {again[call]} steps" for call in again if again[call] > times]
    return told, at_signal


async def chaos(arguments: argparse.Namespace) -> bool:
    """One run; whether everything held."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        dice = random.Random(arguments.seed)
        told, at_signal = await drained(Path(place), arguments.count, AT_ONCE, dice)
    before = {
        "stops": arguments.count,
        "calls in flight at each": ", ".join(map(str, at_signal)),
    }
    after = {
        "wrong": len(told.wrong),
        "seconds": round(time.monotonic() - begun),
    }
    return told.report("two replicas that stop in turn under load", before, after)


def main(arguments: argparse.Namespace) -> bool:
    """The run."""
    return asyncio.run(chaos(arguments))
