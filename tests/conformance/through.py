"""Runs the official suite against example servers, directly and through a gateway, and compares the
results; `scripts/conformance --through` calls it.

The servers are the fixture server beside this file and, if a folder has clones of their
repositories, the everything-servers of the suite and of both official SDKs. A scenario must have
the same results through the gateway as directly, or a reason in `through.yaml`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import yaml

from roundgate_aws.machine import is_listening, reserved_port
from tests.conformance import suite
from tests.conformance.judge import Check, Status
from tests.support.round_robin import RoundRobin

CACHE = suite.CACHE / "through"
REASONS = suite.HERE / "through.yaml"
START_S: Final = 120
_WORST: Final = (Status.FAILURE, Status.WARNING, Status.SKIPPED, Status.SUCCESS)
"""The statuses of repeated checks, in the order in which they decide."""


# -- the servers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Example:
    """A server for the suite."""

    name: str
    clone: str | None = None
    """The repository's name, which is the folder of its clone. `None`: the fixture server."""
    files: str = ""
    """The folder of the server in the clone."""
    command: Sequence[str] = ()
    """The command, run in a copy of `files`; `{port}` is the port."""
    packages: Sequence[str] = ()
    """npm packages, or with `is_python` PyPI packages."""
    is_python: bool = False
    extra: Sequence[str] = ()
    """Scenarios of extensions, besides those of the revision."""


_TSX: Final = (str(suite.NODE), "--import", "tsx")
EXAMPLES: Final = (
    Example("fixtures", extra=suite.SKILLS),
    Example(
        "conformance",
        "conformance",
        "examples/servers/typescript",
        (*_TSX, "everything-server.ts"),
        ("@modelcontextprotocol/sdk@1.32.2", "cors@2", "express@5", "zod@4", "tsx@4"),
    ),
    Example(
        "typescript-sdk",
        "typescript-sdk",
        "test/conformance/src",
        (*_TSX, "everythingServer.ts"),
        (
            *(f"@modelcontextprotocol/{name}@2" for name in ("server", "node", "express")),
            *("cors@2", "express@5", "zod@4", "tsx@4"),
        ),
    ),
    Example(
        "python-sdk",
        "python-sdk",
        "examples/servers/everything-server",
        ("venv/bin/python", "-m", "mcp_everything_server", "--port", "{port}"),
        ("mcp>=2.3,<3", "click>=8.2", "uvicorn"),
        is_python=True,
    ),
)


def prepare(example: Example, clones: Path) -> None:
    """Copy an example server to the cache and install its packages, unless that is done."""
    folder, source = CACHE / example.name, clones / str(example.clone) / example.files
    stamp, expected = folder / ".stamp", f"{source} {' '.join(example.packages)}"
    if stamp.exists() and stamp.read_text() == expected:
        return
    print(f"setting up {folder.relative_to(suite.ROOT)} …", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("package*.json", "node_modules"))
    if example.is_python:
        _run([sys.executable, "-m", "venv", str(folder / "venv")])
        python = str(folder / "venv/bin/python")
        _run([python, "-m", "pip", "install", "--quiet", *example.packages])
    else:
        (folder / "package.json").write_text('{"type": "module"}')
        npm = [str(suite.ROOT / "scripts/tools"), "node", "--npm", "install", "--loglevel=error"]
        _run([*npm, "--no-audit", "--no-fund", "--prefix", str(folder), *example.packages])
    stamp.write_text(expected)


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


@contextmanager
def serving(example: Example, results: Path) -> Iterator[str]:
    """Run an example server until the block ends; yield its origin."""
    if example.clone is None:
        fixtures = suite.Profile("fixtures", suite.SERVE, {}, None, {})
        with suite.one_serving(fixtures, results, suite.NONE) as url:
            yield url
        return
    log = results / f"{example.name}.log"
    with reserved_port() as port:
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [word.replace("{port}", str(port)) for word in example.command],
                cwd=CACHE / example.name,
                env={**os.environ, "PORT": str(port)},
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        try:
            until = time.monotonic() + START_S
            while not is_listening(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{example.name} did not start: see {log}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            suite.stop(process)


@contextmanager
def gateway(url: str, results: Path) -> Iterator[str]:
    """Run a gateway in front of one server until the block ends; yield its origin."""
    config = results / "gateway.yaml"
    server = {"kind": "mcp", "name": "upstream", "prefix": "", "url": url}
    config.write_text(json.dumps({"backends": [server]}))  # JSON is YAML
    command = (*suite.SERVE[:2], str(config), *suite.SERVE[3:])
    with suite.one_serving(
        suite.Profile("gateway", command, {}, None, {}), results, suite.NONE
    ) as origin:
        _wait_until_up(origin)
        yield origin


def _wait_until_up(origin: str) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(origin.removeprefix("http://"))
        connection.request("GET", "/healthz")
        health = json.load(connection.getresponse())
        connection.close()
        if health["upstreams"][0]["status"] == "up":
            return
        time.sleep(0.1)
    raise SystemExit(f"the gateway does not reach its server: {health['upstreams']}")


# -- the comparison --------------------------------------------------------------------------------


class Verdict(StrEnum):
    SAME = "same"
    NAMED = "named difference"
    DIFFERENT = "DIFFERENT"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of one scenario, directly and through the gateway."""

    scenario: str
    direct: str
    through: str
    verdict: Verdict
    text: str = ""
    """The reasons for the differences, or the differences without a reason."""
    differing: frozenset[str] = frozenset()
    """The ids of the checks that differ."""


def compare(
    scenario: str, direct: Sequence[Check], through: Sequence[Check], reasons: Mapping[str, str]
) -> Comparison:
    """Compare the checks of a scenario. `reasons` explain differences, by the ids of the checks."""
    one, other = _by_id(direct), _by_id(through)
    differing = frozenset(id_ for id_ in {*one, *other} if one.get(id_) != other.get(id_))
    unexplained = sorted(
        f"{id_}: {one.get(id_, 'not run')}, through the gateway {other.get(id_, 'not run')}"
        for id_ in differing - reasons.keys()
    )
    named = sorted({reasons[id_] for id_ in differing & reasons.keys()})
    verdict = Verdict.NAMED if differing else Verdict.SAME
    if unexplained:
        verdict, named = Verdict.DIFFERENT, unexplained
    summaries = _summary(one), _summary(other)
    return Comparison(scenario, *summaries, verdict, "; ".join(named), differing)


def _by_id(checks: Sequence[Check]) -> dict[str, Status]:
    """Return the status of each check that counts, and the worst status of a repeated check."""
    worst: dict[str, Status] = {}
    for check in checks:
        if check.status in _WORST:
            other = worst.get(check.id, check.status)
            worst[check.id] = min(check.status, other, key=_WORST.index)
    return worst


def _summary(checks: Mapping[str, Status]) -> str:
    bad = sum(status in (Status.FAILURE, Status.WARNING) for status in checks.values())
    if not checks:
        return "no checks"
    if all(status is Status.SKIPPED for status in checks.values()):
        return "skipped"
    return f"{bad} of {len(checks)} fail" if bad else "passes"


def table(comparisons: Sequence[Comparison]) -> str:
    """Return the differences, a line each."""
    width = max((len(one.scenario) for one in comparisons), default=0)
    return "\n".join(
        f"{one.scenario:<{width}}  {one.direct:<12}  {one.through:<12}  {one.verdict}: {one.text}"
        for one in comparisons
        if one.verdict is not Verdict.SAME
    )


# -- the run ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pairing:
    """The revision of the suite's client, and the revision that the gateway and the server speak."""

    name: str
    revision: str
    hides: str | None = None
    """A revision that the server refuses to the gateway, as older servers do."""


PAIRINGS: Final = (
    Pairing("2026-07-28", "2026-07-28"),
    Pairing("2025-11-25", "2025-11-25"),
    Pairing("2025-11-25 on both sides", "2025-11-25", hides="2026-07-28"),
)


@dataclass(frozen=True, slots=True)
class Reason:
    """An entry of `through.yaml`: why checks differ."""

    reason: str
    checks: Sequence[str]
    servers: Sequence[str] = tuple(example.name for example in EXAMPLES)
    revisions: Sequence[str] = tuple(pairing.name for pairing in PAIRINGS)


def read_reasons() -> list[Reason]:
    return [Reason(**entry) for entry in yaml.safe_load(REASONS.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/conformance", description="Compares servers with a gateway in front of them."
    )
    parser.add_argument("--through", nargs="?", type=Path, metavar="CLONES", help="see above")
    parser.add_argument("--scenario", metavar="NAME", help="run this one only")
    arguments = parser.parse_args()
    suite.stop_on_signals()
    reasons = read_reasons()
    comparisons: list[Comparison] = []
    differing: set[tuple[str, str, str]] = set()
    is_whole = arguments.scenario is None
    for example in EXAMPLES:
        if example.clone is not None:
            if arguments.through is None or not (arguments.through / example.clone).is_dir():
                print(f"\n{example.name}: left out, because there is no clone of its repository")
                is_whole = False
                continue
            prepare(example, arguments.through.resolve())
        for pairing in PAIRINGS:
            if arguments.scenario not in (None, *scenarios_of(example, pairing)):
                continue
            of_pairing = compared(example, pairing, reasons, arguments.scenario)
            same = sum(one.verdict is Verdict.SAME for one in of_pairing)
            print(f"\n{example.name}, {pairing.name}: {same} of {len(of_pairing)} scenarios same")
            print(table(of_pairing), flush=True)
            comparisons += of_pairing
            differing |= {
                (example.name, pairing.name, id_) for one in of_pairing for id_ in one.differing
            }
    stale = sorted(unneeded(reasons, differing)) if is_whole else []
    for entry in stale:
        print(f"\nthrough.yaml: no difference: {entry}")
    count = {verdict: sum(one.verdict is verdict for one in comparisons) for verdict in Verdict}
    failed = count[Verdict.DIFFERENT] + len(stale)
    print(
        f"\nconformance: {count[Verdict.SAME]} passed, {failed} failed, "
        f"{count[Verdict.NAMED]} skipped"
    )
    return int(failed > 0 or not comparisons)


def scenarios_of(example: Example, pairing: Pairing) -> list[str]:
    """Return the scenarios of a server: those of the revision, and of its extensions."""
    extra = example.extra if pairing.revision == suite.REVISION else ()
    return [*suite.scenarios_of(pairing.revision, suite.SUITE), *extra]


def unneeded(reasons: Sequence[Reason], differing: Set[tuple[str, str, str]]) -> list[str]:
    """Return the checks, servers and revisions of `through.yaml` without a difference. `differing`
    has the server, revision and check of each difference."""
    return [
        f"{part} of {reason.reason!r}"
        for reason in reasons
        for number, parts in enumerate((reason.servers, reason.revisions, reason.checks))
        for part in parts
        if not any(
            one[number] == part
            and one[0] in reason.servers
            and one[1] in reason.revisions
            and one[2] in reason.checks
            for one in differing
        )
    ]


def compared(
    example: Example, pairing: Pairing, reasons: Sequence[Reason], chosen: str | None
) -> list[Comparison]:
    """Run the suite against a server, directly and through a gateway; compare the scenarios."""
    extra = list(example.extra) if pairing.revision == suite.REVISION else []
    results = suite.CACHE / "results" / f"through-{example.name}-{pairing.name.replace(' ', '-')}"
    shutil.rmtree(results, ignore_errors=True)
    checks: dict[str, dict[str, list[Check]]] = {}
    for way in ("direct", "through"):
        folder = results / way
        folder.mkdir(parents=True)
        with ExitStack() as stack:
            origin = stack.enter_context(serving(example, folder))
            if way == "through":
                if pairing.hides is not None:
                    hiding = RoundRobin([origin], "", refuses=pairing.hides)
                    origin = stack.enter_context(hiding).url
                (folder / "gateway").mkdir()
                origin = stack.enter_context(gateway(f"{origin}/mcp", folder / "gateway"))
            profile = suite.Profile(way, (), {}, None, {}, revision=pairing.revision)
            for scenario in [chosen] if chosen else [None, *extra]:
                suite.run_suite(f"{origin}/mcp", scenario, profile, folder)
        wanted = [chosen] if chosen else scenarios_of(example, pairing)
        checks[way] = {name: suite.checks_of(name, folder) for name in wanted}
    named = {
        check: reason.reason
        for reason in reasons
        if example.name in reason.servers and pairing.name in reason.revisions
        for check in reason.checks
    }
    return [
        compare(name, direct, checks["through"][name], named)
        for name, direct in checks["direct"].items()
    ]


if __name__ == "__main__":
    sys.exit(main())
