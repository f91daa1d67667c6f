"""`scripts/tools bench-clients --commands`: one call from a command line, compared with FastMCP and
the Inspector.

    scripts/tools bench-clients --commands         ten calls of each, in turn
    scripts/tools bench-clients --commands 30      another number of calls

A call is a separate process that calls `add` at the gateway of `bench/gateway.yaml` and prints the
sum, which is checked. The times cover the whole process: the time that a person waits, and the
processor time.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench import environments
from bench.servers import Cores, running
from bench.subjects import FASTMCP, REPOSITORY, ROOT, SUBJECTS

INSPECTOR = ROOT / ".cache" / "bench" / "inspector"
INSPECTOR_PACKAGE = "@modelcontextprotocol/inspector@2.12.0"
LAUNCHER = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
NODE = ROOT / ".cache" / "node" / "node"
PATIENCE_S = 60
INSTALL_S = 1_200


def _ours(url: str) -> Sequence[str]:
    return [str(REPOSITORY.folder / "bin" / "roundgate"), "call", url, "add", "a=2", "b=40"]


def _fastmcp(url: str) -> Sequence[str]:
    return [str(FASTMCP.folder / "bin" / "fastmcp"), "call", url, "add", "a=2", "b=40"]


def _inspector(url: str) -> Sequence[str]:
    options = ["--method", "tools/call", "--tool-name", "add", "--tool-args-json", '{"a":2,"b":40}']
    return [str(NODE), str(INSPECTOR / LAUNCHER), "--cli", url, "--transport", "http", *options]


COMMANDS: Mapping[str, Callable[[str], Sequence[str]]] = MappingProxyType(
    {"roundgate call": _ours, "fastmcp call": _fastmcp, "Inspector --cli": _inspector}
)


@dataclass(frozen=True, slots=True)
class Took:
    """The times of a process in milliseconds."""

    whole_ms: float
    processor_ms: float


def measure(times: int) -> str:
    """Run each command `times` times, in turn; return the table."""
    environments.make([FASTMCP])
    _install_inspector()
    gateway = next(subject for subject in SUBJECTS if subject.name == "gateway")
    cores = Cores.of_this_process()
    took: dict[str, list[Took]] = {name: [] for name in COMMANDS}
    with running(gateway, "one_tool", "call_add", cores) as server:
        url = f"http://127.0.0.1:{server.port}/mcp"
        for number in range(times + 1):
            for name, command in COMMANDS.items():
                sample = _run(command(url), cores.generator)
                if number:  # skip the first call, which reads uncached files
                    took[name].append(sample)
    return _table(took)


def _install_inspector() -> None:
    if (INSPECTOR / LAUNCHER).exists():
        return
    INSPECTOR.mkdir(parents=True, exist_ok=True)
    node = [str(ROOT / "scripts" / "tools"), "node", "--npm", "install", "--silent", "--prefix"]
    subprocess.run(
        [*node, str(INSPECTOR), INSPECTOR_PACKAGE], check=True, timeout=INSTALL_S, stdout=sys.stderr
    )


def _run(command: Sequence[str], core: int) -> Took:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command,
        cwd=Path("/"),
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    whole_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode or "42" not in done.stdout:
        raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(whole_s * 1_000, used_s * 1_000)


def _table(took: Mapping[str, Sequence[Took]]) -> str:
    lines = ["| command | median | fastest | processor time |", "|---|---|---|---|"]
    for name, runs in took.items():
        whole = [run.whole_ms for run in runs]
        cells = [statistics.median(whole), min(whole)]
        cells.append(statistics.median(run.processor_ms for run in runs))
        lines.append(f"| `{name}` | {' | '.join(f'{cell:,.0f} ms' for cell in cells)} |")
    return "\n".join(lines)
