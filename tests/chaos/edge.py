"""`scripts/chaos edge`: one process with 512 MB and 256 descriptors, under every attack at
once, with honest callers.

Must hold: no honest call is lost, `/healthz` answers within 250 ms at the 99th percentile, the
process never has more than 512 MB, and has no more at the end than after the first minute (or the
first third of a shorter run). A fifth of the time the honest callers are alone, before the attack:
what they see then is what the machine can do just now.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from roundgate_aws.machine import reserved_port
from tests.chaos.fleet import ROOT
from tests.chaos.hostile import call, request
from tests.chaos.orders import table
from tests.support.listening import listening

DESCRIPTORS = 256
MEMORY_MB = 512
HEALTH_P99_MS = 250
CALLERS = 8
GROWTH_MB = 24
"""By how much it may differ from a level: what is being served just then."""

SERVE = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
from roundgate.cli import main
sys.exit(main())
"""


@dataclass
class Told:
    """What honest callers and the health check saw."""

    calls: int = 0
    lost: list[str] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    resident_mb: list[tuple[float, float]] = field(default_factory=list)
    peak_mb: float = 0
    ran_s: float = 0
    waited_s: float = 0
    """For how long the event loop's thread had a processor, and for how long it waited for one."""


class Caller:
    """An honest client on one connection that it keeps."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, said: bytes) -> tuple[int, bytes]:
        """Status and body of an answer.

        Raises:
            OSError, TimeoutError, ValueError: there is none.
        """
        async with asyncio.timeout(10):
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(said)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
            )
            return int(head.split()[1]), await reader.readexactly(int(length.partition(b":")[2]))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None


HONEST = [
    (call("add", {"a": 1, "b": 2}), b'"structuredContent":3'),
    (call("echo", {"text": "é" * 200}), b'"isError"'),
    (request("tools/list", {}), b'"tools":['),
    (request("resources/read", {"uri": "note://by/ann/1"}), b"ann 1"),
    (request("server/discover", {}), b'"supportedVersions"'),
]


async def one_call(caller: Caller, number: int, told: Told) -> None:
    said, expected = HONEST[number % len(HONEST)]
    begun = time.perf_counter()
    try:
        status, body = await caller.ask(said)
        is_right = status == 200 and ((expected in body) != (expected == b'"isError"'))
        if not is_right:
            told.lost.append(f"{status} {body[:200]!r}")
    except (OSError, TimeoutError, ValueError, EOFError, StopIteration) as error:
        told.lost.append(f"{type(error).__name__} {error}")
        caller.close()
    told.calls += 1
    told.took_ms.append((time.perf_counter() - begun) * 1000)


async def peak(port: int, seconds: float) -> float:
    """Calls a second that the server answers when nobody else asks."""
    told, until = Told(), time.monotonic() + seconds

    async def ask_on() -> None:
        caller = Caller(port)
        while time.monotonic() < until:
            await one_call(caller, told.calls, told)
        caller.close()

    await asyncio.gather(*(ask_on() for _ in range(CALLERS)))
    return told.calls / seconds


async def honest(port: int, rate: float, until: float, told: Told) -> None:
    """Calls at a rate, spread over the callers."""

    async def ask_at_intervals(offset: float) -> None:
        caller, due = Caller(port), time.monotonic() + offset
        while (now := time.monotonic()) < until:
            await asyncio.sleep(max(0.0, due - now))
            due = max(due + CALLERS / rate, time.monotonic() - 0.5)
            await one_call(caller, told.calls, told)
        caller.close()

    await asyncio.gather(*(ask_at_intervals(number / rate) for number in range(CALLERS)))


async def watch(process: subprocess.Popen[bytes], port: int, until: float, told: Told) -> None:
    """The health check and the memory."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "tests.chaos.health", str(port)]
    checking = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, limit=10_000_000, stdin=pipe, stdout=pipe
    )
    begun, (ran_s, waited_s) = time.monotonic(), _scheduled_s(process.pid)
    while time.monotonic() < until:
        told.resident_mb.append((time.monotonic() - begun, _memory_mb(process.pid, "VmRSS")))
        await asyncio.sleep(0.2)
    told.peak_mb = _memory_mb(process.pid, "VmHWM")
    told.ran_s, told.waited_s = (
        now - then for now, then in zip(_scheduled_s(process.pid), (ran_s, waited_s), strict=True)
    )
    found = json.loads((await checking.communicate(b""))[0])
    told.health_ms += found["took_ms"]
    told.lost += found["lost"]


def _scheduled_s(pid: int) -> tuple[float, float]:
    """For how long the first thread of a process has run, and for how long it could have but another one did."""
    ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9


def _memory_mb(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


@asynccontextmanager
async def hostile_service() -> AsyncIterator[int]:
    """A service behind the gateway that means harm: bombs, charsets that take for ever, answers without end."""
    packed = gzip.compress(gzip.compress(b"0" * 300_000_000))
    answers = {
        b"/bomb": b"content-type: application/json\r\ncontent-encoding: gzip, gzip\r\n\r\n"
        + packed,
        b"/punycode": b"content-type: text/plain; charset=punycode\r\n\r\n"
        + b"a" * 400_000
        + b"-"
        + b"b" * 400_000,
        b"/endless": b"content-type: text/plain\r\n\r\n" + b"x" * 3_000_000,
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + answers[head.split()[1]])
        await writer.drain()

    async with listening(serve) as port:
        yield port


def configuration(directory: Path, service_port: int) -> Path:
    """The server's, with short times so that a short run sees their end."""
    tools = [
        {"name": name, "description": name, "path": f"/{name}"}
        for name in ("bomb", "punycode", "endless")
    ]
    backends = [
        {
            "kind": "python",
            "name": "served",
            "prefix": "",
            "path": str(ROOT / "tests/roundgate/http/served.py"),
        },
        {
            "kind": "python",
            "name": "notes",
            "prefix": "",
            "path": str(ROOT / "tests/chaos/edge_served/tools.py"),
        },
        {
            "kind": "http",
            "name": "s",
            "prefix": "",
            "base_url": f"http://127.0.0.1:{service_port}",
            "tools": tools,
        },
    ]
    path = directory / "gateway.json"
    path.write_text(json.dumps({"backends": backends}))
    return path


@contextmanager
def serving(directory: Path, config: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-c",
        SERVE,
        "serve",
        str(config),
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    log = (directory / "gateway.log").open("wb")
    environment = {
        **os.environ,
        "GATEWAY_STORE": f"sqlite:///{directory}/gateway.sqlite3",
        "PYTHONPATH": str(ROOT),
    }
    with (
        log,
        subprocess.Popen(
            command, cwd=directory, stdout=log, stderr=log, env=environment
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def under_attack(port: int, seed: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.chaos.hostile", str(port), str(seed)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            yield
        finally:
            process.kill()


async def run(seconds: float, seed: int) -> bool:
    """One run; whether everything held."""
    told, alone = Told(), Told()
    with tempfile.TemporaryDirectory() as place, ExitStack() as ports:
        directory, port = Path(place), ports.enter_context(reserved_port())
        async with hostile_service() as service_port:
            with serving(directory, configuration(directory, service_port), port) as process:
                await _until_it_answers(port)
                rate = await peak(port, 3) / 2
                await observed(process, port, rate, seconds / 5, alone)
                with under_attack(port, seed):
                    await observed(process, port, rate, seconds, told)
        lines = (directory / "gateway.log").read_text().splitlines()
        errors = [line for line in lines if '"level":"error"' in line]
    return _report(told, alone, rate, seconds, errors)


async def observed(
    process: subprocess.Popen[bytes], port: int, rate: float, seconds: float, told: Told
) -> None:
    """Honest callers at a rate, beside the health check."""
    until = time.monotonic() + seconds
    await asyncio.gather(honest(port, rate, until, told), watch(process, port, until, told))


async def _until_it_answers(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        caller = Caller(port)
        try:
            await caller.ask(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        except OSError:
            await asyncio.sleep(0.1)
        else:
            return
        finally:
            caller.close()
    raise TimeoutError("the server did not start")


def _report(told: Told, alone: Told, rate: float, seconds: float, errors: list[str]) -> bool:
    settled_s = min(60.0, seconds / 3)
    settled = [mb for at, mb in told.resident_mb if at >= settled_s]
    half = len(settled) // 2
    grown_mb = _percentile(settled[half:], 0.5) - _percentile(settled[:half], 0.5)
    health_ms = _percentile(told.health_ms, 0.99)
    checks = {
        "honest calls lost": not told.lost and not alone.lost,
        "health check": health_ms < HEALTH_P99_MS,
        "memory at most": told.peak_mb < MEMORY_MB,
        "memory grows": grown_mb < GROWTH_MB,
        "errors in the log": not errors,
    }
    rows = {
        "seconds": round(seconds),
        "honest calls (half of peak: a second)": f"{told.calls} ({rate:.0f})",
        "honest calls lost, health checks too": len(told.lost),
        "honest call p50 / p99, ms": f"{_percentile(told.took_ms, 0.5):.1f} / {_percentile(told.took_ms, 0.99):.1f}",
        "/healthz p99 / max, ms": f"{health_ms:.1f} / {max(told.health_ms):.1f}",
        "the same without attackers": f"{alone.calls} calls, {len(alone.lost)} lost,"
        f" p50 / p99 {_percentile(alone.took_ms, 0.5):.1f} / {_percentile(alone.took_ms, 0.99):.1f},"
        f" /healthz p99 / max {_percentile(alone.health_ms, 0.99):.1f} / {max(alone.health_ms):.1f}",
        "event loop had a processor / waited for one, s": f"{told.ran_s:.0f} / {told.waited_s:.0f}",
        "the same without attackers ": f"{alone.ran_s:.0f} / {alone.waited_s:.0f}",
        "load of the machine (1, 5, 15 min)": "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg()),
        "resident MB, settled / at the end / at most": f"{settled[0]:.0f} / {settled[-1]:.0f} / {told.peak_mb:.0f}",
        "resident MB, second half more than first": f"{grown_mb:+.1f}",
        "errors in the log": len(errors),
    }
    table("one process of 512 MB and 256 descriptors under attack", rows)
    for what, holds in checks.items():
        if not holds:
            print(f"  DOES NOT HOLD: {what}")
    for line in (*alone.lost[:5], *told.lost[:5], *errors[:5]):
        print(f"  {line[:600]}")
    return all(checks.values())


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def main(arguments: argparse.Namespace) -> bool:
    """The run, on a system whose kernel tells of memory."""
    if not Path("/proc/self/status").exists():
        print("\nskipped: chaos edge needs /proc")
        return True
    return asyncio.run(run(arguments.count, arguments.seed))


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(run(float(sys.argv[1]), random.randrange(10**6))) else 1)
