"""Runs the official conformance suite against the fixture server beside this file;
`scripts/conformance` calls it.

Each revision that the server speaks has its scenarios and runs on its own wire: 2026-07-28, and of
those with sessions 2025-11-25 and 2025-06-18 (the suite knows nothing of 2025-03-26 alone).

The server runs once for each profile: as it comes, where everything must pass, and with
`subscriptions/listen` off, as behind API Gateway, where five checks are skipped and nothing fails,
and for the scenarios of skills, which are an extension.
2025-11-25 runs once more against three replicas, each request at another one; with `--replicas`
everything does. `--stack` runs it behind API Gateway indeed: what `template.yaml` describes, on
this machine. `--stable` takes the suite's stable release, which knows 2025-11-25 and 2025-06-18.
What the suite wrote and printed and the server's log stay in
`.cache/conformance/results/<profile>` until the next run.
"""

from __future__ import annotations

import argparse
import base64
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import yaml

from roundgate_aws.machine import reserved_port
from roundgate_aws.stack.functions import why_not
from tests.conformance.judge import (
    Check,
    Outcome,
    Status,
    Verdict,
    closing_line,
    details,
    judge,
    table,
    unknown,
)
from tests.support.round_robin import RoundRobin

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CACHE = ROOT / ".cache/conformance"
SUITE = CACHE / "suite/node_modules/@modelcontextprotocol/conformance"
STABLE = CACHE / "stable/node_modules/@modelcontextprotocol/conformance"
NODE = ROOT / ".cache/node/node"
REVISION = "2026-07-28"

SERVER_START_S = 300  # the stack builds its zips first, which takes a busy machine its time
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
    revision: str = REVISION
    suite: Path = SUITE
    replicas: int = 1
    expected: str = "expected-failures.yaml"
    """The file with the scenarios that may fail, each with its reason."""
    may_fail: Mapping[str, str] = field(default_factory=dict)
    """Scenarios that fail or pass as it happens, each with its reason."""

    def of_replicas(self, count: int) -> Profile:
        """The same with so many replicas."""
        expected = "expected-failures-replicas.yaml" if self.revision == REVISION else self.expected
        name = f"{self.name}-{count}-replicas"
        return replace(self, name=name, replicas=count, expected=expected, may_fail=ELSEWHERE)


ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {"server-session-lifecycle": "that a session has been ended, other replicas know within 2 s"}
)
CONFIG = str(HERE / "gateway.yaml")
SERVE = (str(ROOT / ".venv/bin/roundgate"), "serve", CONFIG, "--host", "127.0.0.1")
STACK = (str(ROOT / "scripts/stack"), CONFIG, "--directory", str(CACHE / "results/stack/functions"))

SKILLS = tuple(f"sep-2640-skills-{part}" for part in ("enumeration", "directory", "manifest"))
"""The scenarios of the extension for skills, which the revision does not require."""

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
    Profile(
        name="skills",
        command=SERVE,
        environment=MappingProxyType({}),
        scenarios=SKILLS,
        skips=MappingProxyType({}),
    ),
)
NONE: Mapping[str, str] = MappingProxyType({})
NO_SKIPS: Mapping[str, int] = MappingProxyType({})
OLDER = tuple(
    Profile(
        name=revision,
        command=SERVE,
        environment=NONE,
        scenarios=None,
        skips=NO_SKIPS,
        revision=revision,
        expected="expected-failures-older.yaml",
    )
    for revision in ("2025-11-25", "2025-06-18")
)
REPLICAS = 3
OF_STABLE = tuple(replace(one, name=f"stable-{one.name}", suite=STABLE) for one in OLDER)
BEHIND_API_GATEWAY = Profile(
    name="stack",
    command=STACK,
    environment=MappingProxyType({}),
    scenarios=None,
    skips=MappingProxyType({"tasks-status-notifications": 1, "server-stateless": 5}),
)


def on_the_stack(profile: Profile) -> Profile:
    """Return the profile for the stack behind API Gateway, where a server only sends answers."""
    return replace(
        profile,
        name=f"stack-{profile.name}",
        command=(*STACK[:-1], str(CACHE / f"results/stack-{profile.name}/functions")),
        expected="expected-failures-stack.yaml",
        may_fail=ELSEWHERE,
    )


def scenarios_of(revision: str, suite: Path) -> list[str]:
    """Every server scenario that a suite runs for a revision, scored or not, in the suite's own order."""
    requirements = suite / f"requirements/{revision}.yaml"
    if not requirements.exists():
        command = [
            str(NODE),
            str(suite / "dist/index.js"),
            "list",
            "--server",
            "--spec-version",
            revision,
        ]
        listed = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=SERVER_START_S
        ).stdout
        return [line.split()[1] for line in listed.splitlines() if line.startswith("  - ")]
    required = yaml.safe_load(requirements.read_text())
    unscored = [entry["scenario"] for entry in required["not_scored"] if entry["leg"] == "server"]
    return [*required["server"], *unscored]


@contextmanager
def serving(profile: Profile, results: Path) -> Iterator[str]:
    """The URL of a fixture server that is up; it is gone afterwards, whatever happens in between."""
    with ExitStack() as stack:
        if profile.replicas == 1:
            yield f"{stack.enter_context(one_serving(profile, results, NONE))}/mcp"
            return
        shared = {
            "GATEWAY_STORE": f"sqlite:///{results}/shared.sqlite3",
            "GATEWAY_STATE_KEYS": base64.b64encode(os.urandom(32)).decode(),
        }
        urls = []
        for number in range(profile.replicas):
            directory = results / f"replica-{number}"
            directory.mkdir()
            urls.append(stack.enter_context(one_serving(profile, directory, shared)))
        yield stack.enter_context(RoundRobin(urls)).url


@contextmanager
def one_serving(profile: Profile, results: Path, more: Mapping[str, str]) -> Iterator[str]:
    """One process of it; what it writes is in `results`."""
    # What a developer's shell says about gateways must not change what is tested.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")
    }
    environment = {**inherited, **profile.environment, **more}
    log = results / "server.log"
    with reserved_port() as port:
        command = [*profile.command, "--port", str(port)]
        with log.open("wb") as sink:
            server = subprocess.Popen(
                command,
                cwd=results,
                env=environment,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        try:
            wait_until_healthy(server, f"http://127.0.0.1:{port}/healthz", log)
            yield f"http://127.0.0.1:{port}"
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
    sys.exit(
        f"The fixture server did not come up (exit status {server.poll()}). Its log:\n{log.read_text()[-4000:]}"
    )


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


def run_suite(url: str, scenario: str | None, profile: Profile, results: Path) -> None:
    """Lets the suite loose on `url`. All we read is what it writes: `results/server-<scenario>-<time>/checks.json`."""
    revision, index = profile.revision, str(profile.suite / "dist/index.js")
    command = [str(NODE), index, "server", "--url", url, "--output-dir", str(results)]
    if profile.suite == STABLE:
        command += ["--scenario", scenario] if scenario else ["--suite", "all"]
        command += ["--spec-version", revision]
    elif scenario:
        # The version, or older scenarios run on the older wire; --force, or those of
        # extensions are skipped.
        command += ["--scenario", scenario, "--spec-version", revision, "--force"]
    else:
        has_requirements = (profile.suite / f"requirements/{revision}.yaml").exists()
        command += ["--requirements" if has_requirements else "--spec-version", revision]
    with (results / "suite.log").open("wb") as sink:
        try:
            subprocess.run(
                command, cwd=results, stdout=sink, stderr=sink, timeout=SUITE_RUN_S, check=False
            )
        except subprocess.TimeoutExpired:
            print(
                f"The suite was stopped after {SUITE_RUN_S} s; what it had not reached counts as failed."
            )


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
            run_suite(url, scenario, profile, results)
    outcomes = [
        judge(
            scenario,
            checks_of(scenario, results),
            expected.get(scenario),
            profile.skips.get(scenario, 0),
        )
        for scenario in wanted
    ]
    return [excused(outcome, profile.may_fail) for outcome in outcomes]


def excused(outcome: Outcome, may_fail: Mapping[str, str]) -> Outcome:
    """The outcome of a scenario that may fail, if it has."""
    if outcome.verdict is not Verdict.FAILED or outcome.scenario not in may_fail:
        return outcome
    return replace(outcome, verdict=Verdict.EXPECTED, reason=may_fail[outcome.scenario])


CLIENT_COMMAND = f"{sys.executable} -m tests.conformance.client"
CLIENT_REVISIONS = ("2026-07-28", "2025-11-25")
# Of the older handshake, which the scenario looks for as well.
CLIENT_SKIPS = MappingProxyType({"http-standard-headers": 2})
CLIENT_SKILLS = (
    "sep-2640-client-no-prefetch",
    *(f"sep-2640-client-verify-{part}" for part in ("digest", "size", "frontmatter")),
)
"""The scenarios of skills for clients, which no revision requires."""
CLIENT_SCENARIO_MS = 120_000  # a scenario takes a second or two; the machine may be busy


def client_scenarios(revision: str) -> list[str]:
    """Every client scenario that the suite runs for a revision, scored or not, and those of skills."""
    required = yaml.safe_load((SUITE / f"requirements/{revision}.yaml").read_text())
    return [
        *required["client"],
        *(one["scenario"] for one in required["not_scored"] if one["leg"] == "client"),
        *(CLIENT_SKILLS if revision == REVISION else ()),
    ]


def run_client_profile(revision: str, chosen: str | None) -> list[Outcome]:
    """`roundgate.client` against the suite's servers, in one revision.

    The suite runs all scenarios at once, and some of them take the time: what fails like that is run again alone.
    """
    results = CACHE / f"results/client-{revision}"
    shutil.rmtree(results, ignore_errors=True)
    wanted = [one for one in client_scenarios(revision) if chosen in (None, one)]
    if chosen is None:
        run_client_suite(["--requirements", revision], results / "all")
    outcomes = []
    for scenario in wanted:
        outcome = judge_client(scenario, results / "all")
        if outcome.verdict.is_fatal:
            alone = results / "alone" / scenario.replace("/", "-")
            status = run_client_suite(
                ["--scenario", scenario, "--spec-version", revision, "--force"], alone
            )
            outcome = judge_client(scenario, alone)
            if status and not outcome.verdict.is_fatal:  # a client that fails where it must not
                outcome = Outcome(
                    scenario,
                    outcome.checks,
                    Verdict.FAILED,
                    f"the suite says so: {alone}/suite.log",
                )
        outcomes.append(outcome)
    return outcomes


def judge_client(scenario: str, results: Path) -> Outcome:
    return judge(scenario, client_checks(scenario, results), None, CLIENT_SKIPS.get(scenario, 0))


def run_client_suite(which: list[str], results: Path) -> int:
    results.mkdir(parents=True)
    command = [
        str(ROOT / ".cache/node/node"),
        str(SUITE / "dist/index.js"),
        "client",
        "--command",
        CLIENT_COMMAND,
    ]
    command += ["--timeout", str(CLIENT_SCENARIO_MS), "--output-dir", str(results), *which]
    with (results / "suite.log").open("wb") as sink:
        try:
            done = subprocess.run(
                command, cwd=ROOT, stdout=sink, stderr=sink, timeout=SUITE_RUN_S, check=False
            )
        except subprocess.TimeoutExpired:
            print(
                f"The suite was stopped after {SUITE_RUN_S} s; what it had not reached counts as failed."
            )
            return 1
    return done.returncode


def client_checks(scenario: str, results: Path) -> list[Check]:
    return [
        Check(row["id"], Status(row["status"]), row.get("errorMessage") or "")
        for path in results.glob(f"{scenario}-[0-9][0-9][0-9][0-9]-*/checks.json")
        for row in json.loads(path.read_text())
    ]


def report(title: str, outcomes: list[Outcome], *, every_check: bool) -> None:
    print(f"\n{title}")
    print(table(outcomes), flush=True)
    for outcome in outcomes:
        if every_check or outcome.verdict is Verdict.FAILED:
            print(f"\n{details(outcome, every_check=every_check)}")


def expected_in(name: str) -> dict[str, str]:
    """Scenarios that may fail, each with its reason."""
    return yaml.safe_load((HERE / name).read_text()) or {}


def profiles_for(
    *, is_stack: bool, is_stable: bool, replicas: int | None, api: str = "http"
) -> tuple[Profile, ...]:
    """What is run."""
    older = OF_STABLE if is_stable else OLDER
    if is_stack:
        newest = () if is_stable else (BEHIND_API_GATEWAY,)
        on_stack = (*newest, *map(on_the_stack, older))
        return tuple(replace(one, command=(*one.command, "--api", api)) for one in on_stack)
    one = older if is_stable else (*PROFILES, *older)
    if replicas is not None:
        return tuple(profile.of_replicas(replicas) for profile in one)
    return one if is_stable else (*one, OLDER[0].of_replicas(REPLICAS))


def stop_on_signals() -> None:
    """Leave by the `finally` that stops the servers."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/conformance", description="Runs the official MCP conformance suite."
    )
    parser.add_argument(
        "--scenario", metavar="NAME", help="run this one only and show each of its checks"
    )
    parser.add_argument(
        "--stack", action="store_true", help="behind API Gateway, on the emulated AWS Lambda"
    )
    parser.add_argument(
        "--api", choices=("http", "rest"), default="http", help="with --stack, the type of the API"
    )
    parser.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="all of it against N replicas that share a store, each request at another one",
    )
    parser.add_argument(
        "--stable", action="store_true", help="with the suite's stable release, which is older"
    )
    arguments = parser.parse_args()
    if arguments.stack and arguments.replicas:
        parser.error("--stack has three replicas of its own")
    chosen: str | None = arguments.scenario
    if arguments.stack and (reason := why_not()):
        print(f"skipped: conformance on AWS Lambda: {reason}")
        return 0
    profiles = profiles_for(
        is_stack=arguments.stack,
        is_stable=arguments.stable,
        replicas=arguments.replicas,
        api=arguments.api,
    )
    scenarios = {
        one.name: [*scenarios_of(one.revision, one.suite), *(one.scenarios or ())]
        for one in profiles
    }
    has_clients = not (arguments.stack or arguments.stable or arguments.replicas)
    of_clients = {one: client_scenarios(one) for one in CLIENT_REVISIONS} if has_clients else {}
    known_names = sorted(set().union(*scenarios.values(), *of_clients.values()))
    if chosen and chosen not in known_names:
        parser.error(f"no scenario {chosen!r}; there are: {', '.join(known_names)}")
    stop_on_signals()
    outcomes: list[Outcome] = []
    for name in sorted({profile.expected for profile in profiles}):
        known = {
            one
            for profile in profiles
            if profile.expected == name
            for one in scenarios[profile.name]
        }
        stale = unknown(expected_in(name), known)
        outcomes += stale
        for outcome in stale:
            print(f"{name}: {outcome.scenario}: {outcome.summary}")
    for profile in profiles:
        of_this = scenarios[profile.name]
        if chosen and chosen not in (profile.scenarios or of_this):
            continue
        of_profile = run_profile(profile, of_this, chosen, expected_in(profile.expected))
        differs = " ".join(f"{name}={value}" for name, value in profile.environment.items())
        title = f"profile {profile.name}, {profile.revision}: {differs or 'as it comes'}"
        report(title, of_profile, every_check=bool(chosen))
        outcomes += of_profile
    for revision, names in of_clients.items():
        if chosen in (None, *names):
            of_client = run_client_profile(revision, chosen)
            report(f"the client, in revision {revision}", of_client, every_check=bool(chosen))
            outcomes += of_client
    print(f"\n{closing_line(outcomes)}")
    return int(any(outcome.verdict.is_fatal for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
