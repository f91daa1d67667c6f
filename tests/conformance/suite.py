"""Runs the official conformance suite against the fixture server beside this file; `scripts/conformance` calls it.

The server runs once for each profile: as it comes, where everything must pass, and with `subscriptions/listen` off, as
behind API Gateway, where five checks are skipped and nothing fails. `--stack` runs it behind API Gateway indeed: what
`template.yaml` describes, on this machine. What the suite wrote and printed and the server's log stay in
`.cache/conformance/results/<profile>` until the next run.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import yaml

from infra.stack.stack import why_not
from tests.conformance.judge import Check, Outcome, Status, Verdict, closing_line, details, judge, table, unknown
from tests.support.ports import reserved_port

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CACHE = ROOT / ".cache/conformance"
SUITE = CACHE / "suite/node_modules/@modelcontextprotocol/conformance"
REVISION = "2026-07-28"

SERVER_START_S = 120  # the stack builds its zips first
SERVER_STOP_S = 15
SUITE_RUN_S = 900  # a run takes well under a minute; inside it the suite gives each scenario 30 s


@dataclass(frozen=True, slots=True)
class Profile:
    """A way to run the server."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    scenarios: tuple[str, ...] | None  # None: all of them
    skips: Mapping[str, int]  # how many checks a scenario has to skip, where not none


CONFIG = str(HERE / "gateway.yaml")
SERVE = (str(ROOT / ".venv/bin/roundgate"), "serve", CONFIG, "--host", "127.0.0.1")
STACK = (str(ROOT / "scripts/stack"), CONFIG, "--directory", str(CACHE / "results/stack/functions"))

PROFILES = (
    Profile(
        name="default",
        command=SERVE,
        environment=MappingProxyType({}),
        scenarios=None,
        # The suite has yet to rewrite this one; its single check is skipped for every server.
        skips=MappingProxyType({"tasks-status-notifications": 1}),
    ),
    Profile(
        name="without-listen",
        command=SERVE,
        environment=MappingProxyType({"GATEWAY_LISTEN": "off"}),
        scenarios=("server-stateless",),
        skips=MappingProxyType({"server-stateless": 5}),
    ),
)
BEHIND_API_GATEWAY = Profile(
    name="stack",
    command=STACK,
    environment=MappingProxyType({}),
    scenarios=None,
    skips=MappingProxyType({"tasks-status-notifications": 1, "server-stateless": 5}),
)


def scenarios_of_the_revision() -> list[str]:
    """Every server scenario that the suite runs for our revision, scored or not, in the suite's own order."""
    required = yaml.safe_load((SUITE / f"requirements/{REVISION}.yaml").read_text())
    unscored = [entry["scenario"] for entry in required["not_scored"] if entry["leg"] == "server"]
    return [*required["server"], *unscored]


@contextmanager
def serving(profile: Profile, results: Path) -> Iterator[str]:
    """The URL of a fixture server that is up; it is gone afterwards, whatever happens in between."""
    # What a developer's shell says about gateways must not change what is tested.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    environment = {**inherited, **profile.environment}
    log = results / "server.log"
    with reserved_port() as port:
        command = [*profile.command, "--port", str(port)]
        with log.open("wb") as sink:
            server = subprocess.Popen(
                command, cwd=results, env=environment, stdout=sink, stderr=sink, start_new_session=True
            )
        try:
            wait_until_healthy(server, f"http://127.0.0.1:{port}/healthz", log)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            stop(server)


def wait_until_healthy(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    give_up_at = time.monotonic() + SERVER_START_S
    while time.monotonic() < give_up_at and server.poll() is None:
        try:
            direct.open(url, timeout=2).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    sys.exit(f"The fixture server did not come up (exit status {server.poll()}). Its log:\n{log.read_text()[-4000:]}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ends the server and every process it started; politely first, so that its log is complete."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(SERVER_STOP_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    server.wait()


def run_suite(url: str, scenario: str | None, results: Path) -> None:
    """Lets the suite loose on `url`. All we read is what it writes: `results/server-<scenario>-<time>/checks.json`."""
    node = ROOT / ".cache/node/node"
    # The version, or older scenarios run on the older wire; --force, or with a version those of extensions are skipped.
    one = ["--scenario", scenario or "", "--spec-version", REVISION, "--force"]
    command = [str(node), str(SUITE / "dist/index.js"), "server", "--url", url, "--output-dir", str(results)]
    command += one if scenario else ["--requirements", REVISION]
    with (results / "suite.log").open("wb") as sink:
        try:
            subprocess.run(command, cwd=results, stdout=sink, stderr=sink, timeout=SUITE_RUN_S, check=False)
        except subprocess.TimeoutExpired:
            print(f"The suite was stopped after {SUITE_RUN_S} s; what it had not reached counts as failed.")


def checks_of(scenario: str, results: Path) -> list[Check]:
    """The checks that the suite wrote for `scenario`; none if it never got there or broke."""
    return [
        Check(row["id"], Status(row["status"]), row.get("errorMessage") or "")
        for path in results.glob(f"server-{scenario}-[0-9][0-9][0-9][0-9]-*/checks.json")
        for row in json.loads(path.read_text())
    ]


def run_profile(
    profile: Profile, scenarios: list[str], chosen: str | None, expected: Mapping[str, str]
) -> list[Outcome]:
    results = CACHE / "results" / profile.name
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    wanted = [chosen] if chosen else list(profile.scenarios or scenarios)
    with serving(profile, results) as url:
        for scenario in wanted if chosen or profile.scenarios else [None]:
            run_suite(url, scenario, results)
    return [
        judge(scenario, checks_of(scenario, results), expected.get(scenario), profile.skips.get(scenario, 0))
        for scenario in wanted
    ]


def report(profile: Profile, outcomes: list[Outcome], *, every_check: bool) -> None:
    print(f"\nprofile {profile.name}: {' '.join(f'{k}={v}' for k, v in profile.environment.items()) or 'as it comes'}")
    print(table(outcomes), flush=True)
    for outcome in outcomes:
        if every_check or outcome.verdict is Verdict.FAILED:
            print(f"\n{details(outcome, every_check=every_check)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/conformance", description="Runs the official MCP conformance suite.")
    parser.add_argument("--scenario", metavar="NAME", help="run this one only and show each of its checks")
    parser.add_argument("--stack", action="store_true", help="behind API Gateway, on the emulated AWS Lambda")
    arguments = parser.parse_args()
    chosen: str | None = arguments.scenario
    if arguments.stack and (reason := why_not()):
        print(f"skipped: conformance on AWS Lambda: {reason}")
        return 0
    scenarios = scenarios_of_the_revision()
    if chosen and chosen not in scenarios:
        parser.error(f"no scenario {chosen!r}; there are: {', '.join(scenarios)}")
    for number in (signal.SIGTERM, signal.SIGHUP):  # leave by the `finally` that stops the server
        signal.signal(number, lambda received, _: sys.exit(128 + received))

    expected: dict[str, str] = yaml.safe_load((HERE / "expected-failures.yaml").read_text()) or {}
    outcomes = unknown(expected, scenarios)
    for outcome in outcomes:
        print(f"expected-failures.yaml: {outcome.scenario}: {outcome.summary}")
    for profile in (BEHIND_API_GATEWAY,) if arguments.stack else PROFILES:
        if chosen and profile.scenarios and chosen not in profile.scenarios:
            continue
        of_profile = run_profile(profile, scenarios, chosen, expected)
        report(profile, of_profile, every_check=bool(chosen))
        outcomes += of_profile
    print(f"\n{closing_line(outcomes)}")
    return int(any(outcome.verdict.is_fatal for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
