"""`scripts/tools openapi --cold [PAIRS]`: the time that GitHub's whole document adds to a
function's cold start.

Two gateways, packed as for a deployment, run under AWS's Runtime Interface Emulator: the gateway of
`bench/cold_gateway`, and the same gateway with GitHub's document. Both are started alternately. The
time covers the init phase and the first answer (of a tool that adds), as wall-clock time and as
processor time, which is more reliable on a busy machine.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import yaml

from bench.cold import is_sum, request
from bench.openapi_documents import ROOT, entry, fetched
from roundgate.deployment import machine
from roundgate.deployment.stack.functions import INVOCATION, Environment, unpack
from roundgate.deployment.stack.services import make_resources, services
from roundgate.deployment.stack.stack import build_zips, find_tools
from roundgate.deployment.template import Template

PLAIN: Final = ROOT / "bench/cold_gateway/gateway.yaml"
CASES: Final = ("without", "with GitHub's")


def main() -> int:
    pairs = int(sys.argv[1]) if sys.argv[1:] else 10
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        aws = stack.enter_context(services(folder))
        resources = make_resources(aws, Template(machine.TEMPLATE, {}, {}))
        known = {**resources, "Queue": "https://" + resources["Queue"].partition("://")[2]}
        template = Template(machine.TEMPLATE, {"PublicUrl": "https://mcp.example.com"}, known)
        function, tools = template.function("GatewayFunction"), find_tools()
        variables = {**aws.environment, "TABLE": "tasks", "GATEWAY_ALLOW_ANONYMOUS": "true"}
        environments = [
            Environment(function, number, code, tools, variables, folder / f"{number}.log")
            for number, code in enumerate(built(folder))
        ]
        first = [started(environment) for environment in environments]  # warms the page cache
        assert all(first)
        measured = [[started(environment) for environment in environments] for _ in range(pairs)]
    tell(measured)
    return 0


def built(folder: Path) -> list[Path]:
    """Build the code of both gateways, unpacked as on AWS; return the folders."""
    made = []
    for number, config in enumerate((PLAIN, with_github(folder / "github"))):
        zips = build_zips(config, folder / f"zips-{number}")
        made.append(folder / f"code-{number}")
        unpack(zips / "gateway.zip", made[-1])
    return made


def with_github(folder: Path) -> Path:
    """Write the plain gateway with GitHub's document as a back end; return the path of its
    gateway.yaml."""
    shutil.copytree(PLAIN.parent, folder)
    shutil.copy(fetched("github"), folder / "api.json")
    config = yaml.safe_load(PLAIN.read_text("utf-8"))
    config["backends"].append({**entry("github", Path("api.json")), "name": "github"})
    (folder / "gateway.yaml").write_text(yaml.safe_dump(config), "utf-8")
    return folder / "gateway.yaml"


def started(environment: Environment) -> tuple[float, float]:
    """Return the milliseconds until the first answer: wall-clock time and processor time."""
    environment.start()
    try:
        url = f"http://127.0.0.1:{environment.port}{INVOCATION}"
        began = time.perf_counter()
        body = json.dumps(request("add")).encode()
        with urllib.request.urlopen(url, body, timeout=120) as response:
            answer: Mapping[str, Any] = json.load(response)
        took_ms = 1000 * (time.perf_counter() - began)
        assert environment.process is not None
        assert is_sum(answer), answer
        return took_ms, processor_ms(environment.process.pid)
    finally:
        environment.kill()


def processor_ms(emulator: int) -> float:
    """Return the processor time in milliseconds of the process that an emulator started.

    Raises:
        LookupError: the emulator has no process.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended meanwhile
            continue
        if int(fields[1]) == emulator:
            return 1000 * (int(fields[11]) + int(fields[12])) / ticks
    raise LookupError(f"the emulator {emulator} has no process")


def tell(measured: list[list[tuple[float, float]]]) -> None:
    """Print a row for each gateway, and the differences of the pairs."""
    print(f"| {len(measured)} pairs | clock, median | least | processor, median | least |")
    print("|---|---|---|---|---|")
    rows = [[pair[number] for pair in measured] for number in range(2)]
    for name, row in zip(CASES, rows, strict=True):
        print(_row(name, row))
    print(_row("more", [(b[0] - a[0], b[1] - a[1]) for a, b in measured]))
    least = [
        min(times[part] for times in rows[1]) - min(times[part] for times in rows[0])
        for part in (0, 1)
    ]
    print(f"least of the one less least of the other: {least[0]:.0f} ms, {least[1]:.0f} ms")


def _row(name: str, row: list[tuple[float, float]]) -> str:
    clock, processor = zip(*row, strict=True)
    shown = [
        f"{pick(part):.0f} ms" for part in (clock, processor) for pick in (statistics.median, min)
    ]
    return f"| {name} | {' | '.join(shown)} |"


if __name__ == "__main__":
    sys.exit(main())
