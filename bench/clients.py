"""`scripts/tools bench-clients`: `roundgate.client` compared with the official Python client,
against the same server.

    scripts/tools bench-clients                 10,000 sequential calls each, three rounds in turn
    scripts/tools bench-clients 2000            another number of calls
    scripts/tools bench-clients --commands      see `bench.commands`

The server is the gateway of `bench/gateway.yaml` on its own core; each client is a new process on
the other core. A call is a `tools/call` of `add`, each with different numbers; every answer is
checked. The start is the time from `exec` to the answer of the first call.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.servers import Cores, running
from bench.subjects import ROOT, SUBJECTS

ROUNDS = 3
CLIENTS = ("roundgate.client", "mcp")
PATIENCE_S = 600


def main() -> int:
    if sys.argv[1:2] == ["--client"]:
        asyncio.run(_measure(sys.argv[2], sys.argv[3], int(sys.argv[4])))
        return 0
    if sys.argv[1:2] == ["--commands"]:
        from bench.commands import measure

        print(measure(int(sys.argv[2]) if sys.argv[2:] else 10))
        return 0
    calls = int(sys.argv[1]) if sys.argv[1:] else 10_000
    gateway = next(subject for subject in SUBJECTS if subject.name == "gateway")
    cores = Cores.of_this_process()
    results: dict[str, list[Told]] = {name: [] for name in CLIENTS}
    with running(gateway, "one_tool", "call_add", cores) as server:
        for number in range(ROUNDS):
            for name in CLIENTS[number % 2 :] + CLIENTS[: number % 2]:
                results[name].append(
                    _run(name, f"http://127.0.0.1:{server.port}/mcp", calls, cores.generator)
                )
    print(_table(calls, results))
    return 0


@dataclass(frozen=True, slots=True)
class Told:
    """The figures of a client process: calls per second, processor time per call, and start
    time."""

    rate: float
    cpu_us: float
    start_ms: float


def _run(name: str, url: str, calls: int, core: int) -> Told:
    began = time.time()
    command = [sys.executable, "-m", "bench.clients", "--client", name, url, str(calls)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=PATIENCE_S,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    result = json.loads(done.stdout)
    return Told(
        calls / result["seconds"],
        result["cpu_s"] / calls * 1e6,
        (result["first_at"] - began) * 1_000,
    )


async def _measure(name: str, url: str, calls: int) -> None:
    measured = await (_ours(url, calls) if name == CLIENTS[0] else _official(url, calls))
    print(json.dumps(dict(zip(("seconds", "cpu_s", "first_at"), measured, strict=True))))


async def _ours(url: str, calls: int) -> tuple[float, float, float]:
    from roundgate.client import Client

    async with Client(url) as client:
        assert (await client.call("add", a=1, b=2)).value == 3
        first_at, cpu, began = time.time(), time.process_time(), time.perf_counter()
        for number in range(calls):
            result = await client.call("add", a=number, b=7)
            assert result.value == number + 7
        return time.perf_counter() - began, time.process_time() - cpu, first_at


async def _official(url: str, calls: int) -> tuple[float, float, float]:
    from mcp import Client

    async with Client(url) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
        first_at, cpu, began = time.time(), time.process_time(), time.perf_counter()
        for number in range(calls):
            result = await client.call_tool("add", {"a": number, "b": 7})
            assert result.structured_content == number + 7
        return time.perf_counter() - began, time.process_time() - cpu, first_at


def _table(calls: int, results: dict[str, list[Told]]) -> str:
    def row(cells: Sequence[object]) -> str:
        return f"| {' | '.join(map(str, cells))} |"

    official = statistics.median(result.rate for result in results[CLIENTS[1]])
    title = f"calls a second, {calls:,} in a row"
    lines = [
        row(
            ["client", title, "times", "its own processor time a call", "start to the first answer"]
        )
    ]
    lines.append("|---|---|---|---|---|")
    for name in CLIENTS:
        rates = [result.rate for result in results[name]]
        rate = statistics.median(rates)
        cpu_us, start_ms = (
            statistics.median(getattr(result, of) for result in results[name])
            for of in ("cpu_us", "start_ms")
        )
        shown = f"{rate:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        lines.append(
            row([name, shown, f"{rate / official:.1f}", f"{cpu_us:.0f} us", f"{start_ms:.0f} ms"])
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
