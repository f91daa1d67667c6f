"""A task of three steps, compared with peers: `python -m bench.task_peers [--quick]`.

Each subject runs alone, in one process on its own core; the clients, PostgreSQL and Redis share the
other core. A client starts a task, waits, and polls until the task has its result, which is
checked. The wait adapts, so most tasks need one poll.

| subject | a task is | data that survives the death of the process | |---|---|---| | gateway |
`tools/call` of a tool with three `ctx.step` | the call, each step, the result; another process
continues | | DBOS | a workflow with three steps, started by a route | the same; the same executor
continues after a restart | | FastMCP | `tools/call` of a task tool, with three plain calls inside |
the call and the result; the work starts again |
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median
from typing import Protocol
from urllib.parse import quote

import uvloop

from bench import environments, postgresql
from bench.http1 import Response, ResponseReader
from bench.load import PATIENCE_S, percentile
from bench.measurements import rotated
from bench.servers import Cores, cpu_s, free_port, spawn, stop
from bench.subjects import REPOSITORY, ROOT, Environment
from bench.wire import KNOWS_TASKS, WrongAnswerError, http_request, message_in, task_request

_SERVER = ("uvicorn>=0.38", "uvloop>=0.22", "httptools>=0.7")
DBOS = Environment(
    ROOT / ".cache" / "bench" / "dbos", ("dbos>=3.4,<4", "psycopg[binary]", "fastapi", *_SERVER)
)
FASTMCP_TASKS = Environment(
    ROOT / ".cache" / "bench" / "fastmcp-tasks", ("fastmcp[tasks]>=4,<5", *_SERVER)
)
CLIENTS = 16
WARM_UP_S = 1.0


class Dialect(Protocol):
    """The HTTP requests that start and poll a task."""

    def start(self, number: int) -> bytes:
        """Return the request that starts a task with an argument."""

    def task_id(self, response: Response) -> str:
        """Return the id of the started task."""

    def look(self, task_id: str, number: int) -> bytes:
        """Return the request that polls a task."""

    def result(self, response: Response) -> int | None:
        """Return the result of a task, or `None` while it runs."""


class Mcp:
    """The requests for tasks of MCP (SEP-2663)."""

    def start(self, number: int) -> bytes:
        """Return a `tools/call`."""
        params = {"name": "count", "arguments": {"start": number}}
        return http_request("tools/call", params, number, capabilities=KNOWS_TASKS)

    def task_id(self, response: Response) -> str:
        """Return the id in a `CreateTaskResult`."""
        return str(message_in(response)["result"]["taskId"])

    def look(self, task_id: str, number: int) -> bytes:
        """Return a `tasks/get`."""
        return task_request(task_id, number)

    def result(self, response: Response) -> int | None:
        """Return the sum in the result, or `None` while the task runs."""
        task = message_in(response)["result"]
        if task["status"] == "working":
            return None
        value = task["result"]["structuredContent"]
        return int(value["result"] if isinstance(value, dict) else value)


class Rest:
    """The requests for the two routes of `bench.apps.dbos_tasks`."""

    def start(self, number: int) -> bytes:
        """Return a `POST /tasks`."""
        body = json.dumps({"start": number}).encode()
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n".encode() + body

    def task_id(self, response: Response) -> str:
        """Return the id of the workflow."""
        return str(json.loads(response.body)["id"])

    def look(self, task_id: str, number: int) -> bytes:
        """Return a `GET /tasks/ID`."""
        return f"GET /tasks/{task_id} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()

    def result(self, response: Response) -> int | None:
        """Return the output of the workflow, or `None` while it runs."""
        workflow = json.loads(response.body)
        return int(workflow["output"]) if workflow["status"] == "SUCCESS" else None


@dataclass(frozen=True, slots=True)
class Subject:
    """A row of the table."""

    name: str
    environment: Environment
    app: str
    """The factory for uvicorn; empty for the gateway."""
    dialect: Dialect
    variables: Mapping[str, str]
    """The environment variables of the server."""
    store_pid: int | None
    """The process id of the subject's store; `None` if the store is in the server."""

    def store_cpu_s(self) -> float:
        """Return the CPU time that the store has used, in seconds."""
        return 0.0 if self.store_pid is None else cpu_s(self.store_pid)

    def command(self, port: int) -> Sequence[str]:
        """Return the command that serves the tasks on a port."""
        address = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        if not self.app:
            roundgate = str(self.environment.folder / "bin" / "roundgate")
            return [roundgate, "serve", str(ROOT / "bench/gateway-steps.yaml"), *address]
        uvicorn = [str(self.environment.python), "-m", "uvicorn", "--factory", self.app]
        return [*uvicorn, *address, "--loop", "uvloop", "--http", "httptools", "--no-access-log"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one round."""

    tasks_per_s: float
    server_us: float
    """The CPU time of the server per task, in microseconds."""
    store_us: float
    """The CPU time of PostgreSQL or Redis per task, in microseconds."""
    p50_ms: float
    p99_ms: float
    looks: float
    """The number of polls per task."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.task_peers")
    parser.add_argument("--quick", action="store_true", help="three short rounds")
    is_quick = parser.parse_args().quick
    rounds, seconds = (3, 2.0) if is_quick else (7, 5.0)
    environments.make([DBOS, FASTMCP_TASKS])
    (ROOT / ".cache/bench").mkdir(parents=True, exist_ok=True)
    measured: dict[str, list[Measured]] = {}
    with (
        tempfile.TemporaryDirectory(dir=ROOT / ".cache/bench") as folder,
        postgresql.server(Path(folder)) as database,
        _redis(Path(folder)) as (redis_url, redis_pid),
    ):
        database.execute("create database dbos")
        subjects = _subjects(database, redis_url, redis_pid)
        for number in range(rounds):
            for subject in rotated(subjects, number):
                figures = _measure(subject, Path(folder), seconds)
                measured.setdefault(subject.name, []).append(figures)
                print(f"round {number + 1}: {subject.name}: {figures}", file=sys.stderr)
    print(_table([(subject.name, measured[subject.name]) for subject in subjects]))


def _subjects(database: postgresql.Server, redis_url: str, redis_pid: int) -> Sequence[Subject]:
    pid = int((database.folder / "data/postmaster.pid").read_text().split()[0])
    keys = base64.b64encode(bytes(32)).decode()
    server = f"host={quote(str(database.folder), safe='')}"
    dbos_url = f"postgresql+psycopg://roundgate@/dbos?{server}"
    postgres = {"GATEWAY_STORE": database.url, "GATEWAY_STATE_KEYS": keys}
    return [
        Subject("gateway, SQLite", REPOSITORY, "", Mcp(), {}, None),
        Subject("gateway, PostgreSQL", REPOSITORY, "", Mcp(), postgres, pid),
        Subject(
            "DBOS, PostgreSQL",
            DBOS,
            "bench.apps.dbos_tasks:tasks",
            Rest(),
            {"DBOS_URL": dbos_url},
            pid,
        ),
        Subject(
            "FastMCP, Redis",
            FASTMCP_TASKS,
            "bench.apps.fastmcp_tasks:tasks",
            Mcp(),
            {"REDIS_URL": redis_url},
            redis_pid,
        ),
    ]


@contextmanager
def _redis(folder: Path) -> Iterator[tuple[str, int]]:
    """Start a Redis that writes to the disk every second, as its documentation recommends; yield
    its URL and its process id. Raise SystemExit if it does not start."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("Redis is not installed: apt-get install redis-server")
    path = folder / "redis"
    path.mkdir()
    port = free_port()
    command = [program, "--port", str(port), "--dir", str(path), "--appendonly", "yes"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield f"redis://127.0.0.1:{port}/0", process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _measure(subject: Subject, folder: Path, seconds: float) -> Measured:
    """Run a subject's server under load."""
    port, cores = free_port(), Cores.of_this_process()
    with (
        tempfile.TemporaryDirectory(dir=folder) as own,
        tempfile.TemporaryFile() as log,
    ):
        process = spawn(subject.command(port), cores, log, subject.variables, Path(own))
        try:
            _wait_until_it_listens(port, process)
            os.sched_setaffinity(0, {cores.generator})
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_drive(subject, port, process.pid, seconds))
        except Exception:
            log.seek(0)
            print(log.read().decode(errors="replace")[-2_000:], file=sys.stderr)
            raise
        finally:
            stop(process)


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
            return
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the server did not start") from None
            time.sleep(0.05)


async def _drive(subject: Subject, port: int, pid: int, seconds: float) -> Measured:
    load = Load(subject.dialect)
    async with asyncio.timeout(seconds + 2 * PATIENCE_S):
        await load.run(port, WARM_UP_S)
        load.forget()
        server_before, store_before = cpu_s(pid), subject.store_cpu_s()
        began = time.perf_counter()
        await load.run(port, seconds)
        took_s = time.perf_counter() - began
    count = len(load.latencies_s)
    ordered_s = sorted(load.latencies_s)
    return Measured(
        count / took_s,
        1e6 * (cpu_s(pid) - server_before) / count,
        1e6 * (subject.store_cpu_s() - store_before) / count,
        1000 * percentile(ordered_s, 0.50),
        1000 * percentile(ordered_s, 0.99),
        load.looks / count,
    )


class Load:
    """Clients that each run one task after another."""

    def __init__(self, dialect: Dialect) -> None:
        self.latencies_s: list[float] = []
        self.looks = 0
        self._dialect = dialect
        self._usual_s = 0.005
        self._numbers = itertools.count(1)

    def forget(self) -> None:
        """Reset the figures."""
        self.latencies_s, self.looks = [], 0

    async def run(self, port: int, seconds: float) -> None:
        """Run tasks for `seconds`; return once the last tasks have ended."""
        until = time.perf_counter() + seconds
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(self._be_a_client(port, until))

    async def _be_a_client(self, port: int, until: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connection = Connection(reader, writer)
        while (began := time.perf_counter()) < until:
            await self._have_one_done(connection)
            self.latencies_s.append(time.perf_counter() - began)
        writer.close()

    async def _have_one_done(self, connection: Connection) -> None:
        number, looks = next(self._numbers), 0
        response = await connection.exchange(self._dialect.start(number))
        task_id = self._dialect.task_id(response)
        pause_s, result = self._usual_s, None
        while result is None:
            await asyncio.sleep(pause_s)
            looks += 1
            response = await connection.exchange(self._dialect.look(task_id, next(self._numbers)))
            result = self._dialect.result(response)
            pause_s = max(0.001, self._usual_s / 4)
        self.looks += looks
        if result != number + 3:
            raise WrongAnswerError(f"{result} instead of {number + 3}")
        # about one task in three needs a second poll
        self._usual_s *= 0.95 if looks == 1 else 1.1


class Connection:
    """A keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._responses = ResponseReader()

    async def exchange(self, request: bytes) -> Response:
        """Send a request; return the response.

        Raises:
            WrongAnswerError: the status is not 200, or the server closed the connection.
        """
        self._writer.write(request)
        while data := await self._reader.read(1 << 18):
            response = self._responses.feed(data)
            if response is not None:
                if response.status != 200:
                    raise WrongAnswerError(f"{response.status}: {response.body[:300]!r}")
                return response
        raise WrongAnswerError("the server closed the connection")


def _table(rows: Sequence[tuple[str, Sequence[Measured]]]) -> str:
    """Return the medians of the rounds as a Markdown table."""
    lines = [
        "| | tasks/s | CPU of the server, µs/task | of the store | p50 ms | p99 ms | looks |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rounds in rows:
        values = [median(column) for column in zip(*map(astuple, rounds), strict=True)]
        cells = (f"{value:,.0f}" if value >= 50 else f"{value:.1f}" for value in values)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
