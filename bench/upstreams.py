"""Fifty MCP servers with 2,000 tools behind one gateway: `python -m bench.upstreams [--quick]`.

The servers are of the official Python SDK and run in one process (`bench.apps.upstreams`), on the
generator's core. Each gateway runs alone, in one process on the other core, in its default settings
except for authentication and log lines.

| column | what |
|---|---|
| start | from `exec` to a complete list of the tools |
| start, one away | the same where one of the servers is down, to a list of the other tools |
| start, all away | to the first answer to `tools/list` where all servers are down |
| healed | from then on: the servers start, and the list is complete |
| list | a `tools/list` of 2,000 tools |
| CPU per call | processor time of the gateway per `tools/call` of `add`, one call after the other |

The gateway's own tool, in the same process, is the reference for the last column.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Final

from bench import environments
from bench.catalogue import SERVERS
from bench.catalogue import TOOLS_OF_A_SERVER as TOOLS
from bench.measurements import Settings
from bench.servers import Cores, Server, free_port, spawn, stop
from bench.subjects import FASTMCP, REPOSITORY, ROOT, SDK, Environment, Kind, Subject
from roundgate.client import Client, Limits
from roundgate.errors import ClientError

PATIENCE_S: Final = 120.0
LISTS: Final = 5
CALLS: Final = 300
CALLS_S: Final = 5.0
"""A round has so many calls, or as many as take this time."""
UVICORN: Final = (
    "--no-access-log",
    "--log-level",
    "error",
    "--loop",
    "uvloop",
    "--http",
    "httptools",
)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway and how to start it."""

    name: str
    environment: Environment
    command: Callable[[Path, Sequence[str], int], Sequence[str]]
    """Returns the command, from a folder for files, the servers' URLs and the port."""
    variables: Callable[[Sequence[str]], Mapping[str, str]] = lambda urls: {}


@dataclass(slots=True)
class Figures:
    """The figures of one gateway; times are in seconds."""

    start_s: float | None = None
    one_away_s: float | None = None
    all_away_s: float | None = None
    healed_s: float | None = None
    list_ms: float = 0.0
    rss_mib: float = 0.0
    call_ms: list[float] = field(default_factory=list)
    own_ms: list[float] = field(default_factory=list)
    """The processor time of calls of a server's tool, and of the gateway's own tool."""


def _roundgate(folder: Path, urls: Sequence[str], port: int) -> Sequence[str]:
    servers = [{"kind": "mcp", "name": f"s{number}", "url": url} for number, url in enumerate(urls)]
    own = {"kind": "python", "name": "own", "prefix": "", "path": str(ROOT / OWN)}
    config = folder / "gateway.yaml"
    config.write_text(json.dumps({"backends": [*servers, own]}))  # JSON is YAML
    program = str(REPOSITORY.folder / "bin" / "roundgate")
    return [program, "serve", str(config), "--port", str(port), "--log-level", "error"]


def _fastmcp(folder: Path, urls: Sequence[str], port: int) -> Sequence[str]:
    # a call may take longer than the 5 s after which uvicorn closes an idle connection
    patient = ["--timeout-keep-alive", "600"]
    uvicorn = [str(FASTMCP.python), "-m", "uvicorn", "--port", str(port), *patient, *UVICORN]
    return [*uvicorn, "--factory", "bench.apps.fastmcp_proxy:proxy"]


OWN: Final = "bench/apps/gateway_one_tool.py"
GATEWAYS: Final = (
    Gateway("gateway", REPOSITORY, _roundgate),
    Gateway("FastMCP's proxy", FASTMCP, _fastmcp, lambda urls: {"BENCH_SERVERS": " ".join(urls)}),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.upstreams")
    parser.add_argument("--quick", action="store_true", help="three short rounds of calls")
    cores = Cores.of_this_process()
    settings = Settings.quick(cores) if parser.parse_args().quick else Settings(cores)
    environments.make([SDK, *(gateway.environment for gateway in GATEWAYS)])
    rows = []
    for gateway in GATEWAYS:
        figures = measure(gateway, settings)
        print(f"{gateway.name}: {figures}", file=sys.stderr, flush=True)
        rows.append((gateway.name, figures))
    print(table(rows))


def measure(gateway: Gateway, settings: Settings) -> Figures:
    """Return the figures of a gateway."""
    figures, port = Figures(), free_port()
    urls = [f"http://127.0.0.1:{port}/{number}/mcp" for number in range(SERVERS)]
    complete = SERVERS * TOOLS
    with servers(port, settings.cores), running(gateway, urls, settings.cores) as server:
        figures.start_s = until_listed(server, complete)
        url = f"http://127.0.0.1:{server.port}/mcp"
        figures.list_ms = 1000 * median(list_s(url) for _ in range(LISTS))
        for _ in range(settings.rounds):
            figures.call_ms.append(cpu_ms_per_call(server, "s7__add"))
            if gateway.environment is REPOSITORY:
                figures.own_ms.append(cpu_ms_per_call(server, "add"))
        figures.rss_mib = server.memory().rss_mib
    away = [*urls[:-1], f"http://127.0.0.1:{free_port()}/mcp"]
    with servers(port, settings.cores), running(gateway, away, settings.cores) as server:
        figures.one_away_s = until_listed(server, complete - TOOLS)
    with running(gateway, urls, settings.cores) as server:
        figures.all_away_s = until_listed(server, 0)
        with servers(port, settings.cores):
            figures.healed_s = until_listed(server, complete)
    return figures


@contextmanager
def servers(port: int, cores: Cores) -> Iterator[None]:
    """Run the fifty servers until the block ends."""
    uvicorn = [str(SDK.python), "-m", "uvicorn", "--port", str(port), *UVICORN]
    command = [*uvicorn, "--factory", "bench.apps.upstreams:fifty"]
    own = Cores(server=cores.generator, generator=cores.generator)
    with tempfile.TemporaryFile() as log:
        process = spawn(command, own, log, {}, ROOT)
        try:
            until = time.perf_counter() + PATIENCE_S
            while count_tools(f"http://127.0.0.1:{port}/{SERVERS - 1}/mcp") != TOOLS:
                if process.poll() is not None or time.perf_counter() > until:
                    raise SystemExit(f"the servers did not start:\n{_end_of(log)}")
                time.sleep(0.05)
            yield
        finally:
            stop(process)


@contextmanager
def running(gateway: Gateway, urls: Sequence[str], cores: Cores) -> Iterator[Server]:
    """Start a gateway, which need not answer yet, and stop it at the end of the block."""
    port = free_port()
    subject = Subject(gateway.name, Kind.PEER, gateway.environment, ())
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        command = gateway.command(Path(folder), urls, port)
        process = spawn(command, cores, log, gateway.variables(urls), Path(folder))
        try:
            yield Server(subject, port, process.pid, 0.0)
        except ClientError:
            print(_end_of(log), file=sys.stderr)
            raise
        finally:
            stop(process)


def until_listed(server: Server, tools: int) -> float | None:
    """Return the seconds from now until a gateway lists at least so many tools; `None` if that
    takes too long."""
    began = time.perf_counter()
    while time.perf_counter() - began < PATIENCE_S:
        count = count_tools(f"http://127.0.0.1:{server.port}/mcp")
        if count is not None and count >= tools:
            return time.perf_counter() - began
        time.sleep(0.02)
    return None


def count_tools(url: str) -> int | None:
    """Return the number of tools that a server lists, or `None` if it does not answer."""

    async def count() -> int | None:
        async with Client(url, limits=Limits(connect_s=5, request_s=60)) as client:
            try:
                return len(await client.tools())
            except ClientError:
                return None

    return asyncio.run(count())


def cpu_ms_per_call(server: Server, tool: str) -> float:
    """Call a tool, one call after the other; return the processor time of the gateway per call."""

    async def call() -> float:
        async with Client(f"http://127.0.0.1:{server.port}/mcp") as client:
            await client.call(tool, a=0, b=0)  # reads the list of tools
            before_s, began, number = server.cpu_s(), time.perf_counter(), 0
            while number < CALLS and time.perf_counter() - began < CALLS_S:
                number += 1
                assert "3" in (await client.call(tool, a=1, b=2)).text
            return 1000 * (server.cpu_s() - before_s) / number

    return asyncio.run(call())


def list_s(url: str) -> float:
    """Return the seconds that a list of all tools takes, with a new client."""
    began = time.perf_counter()
    count_tools(url)
    return time.perf_counter() - began


def _end_of(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")[-4_000:]


def table(rows: Sequence[tuple[str, Figures]]) -> str:
    """Return the figures in Markdown."""
    reference = median(rows[0][1].own_ms)
    lines = [
        "| | start | one away | all away | healed | list | RSS | CPU per call | of the own tool |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, each in rows:
        times = [each.start_s, each.one_away_s, each.all_away_s, each.healed_s]
        cells = ["never" if value is None else f"{value:.1f} s" for value in times]
        cpu_ms = median(each.call_ms)
        cells += [f"{each.list_ms:.0f} ms", f"{each.rss_mib:.0f} MiB", f"{cpu_ms:.2f} ms"]
        lines.append(f"| {name} | {' | '.join(cells)} | {cpu_ms / reference:.1f}x |")
    lines.append(f"\nThe gateway's own tool: {reference:.2f} ms.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
