"""Runs each client against replicas behind a balancer that sends every request to another one.

client ─▶ balancer ─▶ replica 1, 2, 3, 1 …     which have one store and one key in common
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.clients.capabilities import judged
from tests.clients.environments import NODE, command
from tests.clients.subjects import ROOT, Subject
from tests.conformance.suite import BEHIND_API_GATEWAY, one_serving
from tests.support.round_robin import RoundRobin, Seen
from tests.support.server import Server, running

SERVED: Final = Path(__file__).parent / "served"
REPLICAS: Final = 3
READ_S: Final = 5.0
"""How long the balancer in front of replicas waits for a byte, in seconds: less than `market.quiet` is silent."""
DRIVER_S: Final = 600


@dataclass(frozen=True, slots=True)
class Row:
    """What one client did."""

    subject: Subject
    revisions: tuple[str, ...]
    """The revisions that it named, the one that it went on with last."""
    cells: Mapping[str, str]
    replicas: int
    """How many of the replicas had a part in it."""

    def to_json(self) -> dict[str, Any]:
        """As it is kept, and printed."""
        subject = self.subject
        return {
            "client": subject.client,
            "version": subject.version,
            "revision": self.revisions[-1] if self.revisions else None,
            **self.cells,
        }


@contextmanager
def replicas(environment: Mapping[str, str], directory: Path) -> Iterator[list[str]]:
    """Where the replicas are."""
    with mortal(environment, directory) as servers:
        yield list(servers)


@contextmanager
def mortal(environment: Mapping[str, str], directory: Path) -> Iterator[dict[str, Server]]:
    """Replicas by where they are, as long as they live."""
    with ExitStack() as stack:
        servers = {}
        for number in range(REPLICAS):
            served = shutil.copytree(SERVED, directory / f"mortal-{number}", dirs_exist_ok=True)
            server = stack.enter_context(running(served / "gateway.yaml", dict(environment)))
            servers[server.url] = server
        yield servers


def drive_and_kill(subject: Subject, servers: Mapping[str, Server], log: Path) -> Row:
    """The same as `drive`, but whoever asks the first question is dead before its answer comes."""

    def kill(url: str) -> None:
        servers[url].stop(signal.SIGKILL)

    with RoundRobin(list(servers), asked=kill, read_s=READ_S) as balancer:
        told = _told(subject, balancer.url, log)
        return _row(subject, told, balancer.seen)


@contextmanager
def stack(directory: Path) -> Iterator[list[str]]:
    """Where API Gateway is, in front of three functions of AWS Lambda, where nothing streams."""
    command = [str(ROOT / "scripts/stack"), str(SERVED / "gateway.yaml")]
    profile = replace(
        BEHIND_API_GATEWAY, command=(*command, "--directory", str(directory / "functions"))
    )
    with one_serving(profile, directory, {}) as url:
        yield [url]


def drive(subject: Subject, urls: list[str], log: Path, read_s: float | None = None) -> Row:
    """Have a client do all that it can; what it printed stays in `log`. For `read_s` see `RoundRobin`."""
    with RoundRobin(urls, read_s=read_s) as balancer:
        told = _told(subject, balancer.url, log)
        return _row(subject, told, balancer.seen)


def _row(subject: Subject, told: Mapping[str, Any], seen: Seen) -> Row:
    return Row(subject, tuple(seen.revisions), judged(told), len(seen.posts))


def _told(subject: Subject, url: str, log: Path) -> dict[str, Any]:
    home = log.with_suffix(".home")  # what a client keeps there, it finds in no other run
    home.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "HOME": str(home),
        "NO_PROXY": "127.0.0.1",
        "PATH": f"{NODE.parent}:{os.environ['PATH']}",
    }
    try:
        done = subprocess.run(
            command(subject, url),
            capture_output=True,
            text=True,
            check=False,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=DRIVER_S,
        )
    except subprocess.TimeoutExpired:
        return {"connection": {"error": f"not done in {DRIVER_S} s"}}
    log.write_text(f"{done.stdout}\n{done.stderr}")
    try:
        told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"connection": {"error": f"the driver ended with {done.returncode}: see {log}"}}
    return told
