"""The tasks per second, by the number of tasks in the table: `python -m bench.tasks SETTINGS`.

Run with the gateway's own Python. Prints one `Sample` per line, as JSON. The gateways are processes
of `roundgate serve` with workers inside, on their own core. In one process with its clients, a
gateway would share its event loop and interpreter lock with them, and the figure would include
their work. DynamoDB Local and PostgreSQL share the clients' core.

A client calls the tool, waits for the average duration of recent tasks (by their own times), and
polls, first at that time and then after a quarter of it, so few polls find an unfinished task.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import uvloop

from bench import postgresql, task_tables
from bench.dynamodb import Emulator, why_not
from bench.dynamodb import emulator as running_emulator
from bench.http1 import ResponseReader
from bench.load import PATIENCE_S, percentile
from bench.measurements import Sample, Settings, load_sample, rotated
from bench.servers import Cores, Server, running
from bench.subjects import ROOT, SUBJECTS
from bench.task_tables import Filled
from bench.wire import KNOWS_TASKS, WrongAnswerError, http_request, message_in, task_request
from roundgate.clock import Clock
from roundgate.settings import TasksConfig
from roundgate.storage.sqlite import SqliteDatabase, SqliteQueue, SqliteSessions
from roundgate.tasks.sweep import Sweep

CLIENTS = 16
SWEEPS = 5
TO_COMPLETED = f"tools/call to completed task, {CLIENTS} clients"


def main() -> None:
    """Print the samples of all measurements."""
    facts = json.loads(sys.argv[1])
    sizes = tuple(facts.pop("table_sizes"))
    settings = Settings(**{**facts, "cores": Cores(**facts["cores"]), "table_sizes": sizes})
    for sample in samples(settings):
        print(json.dumps(asdict(sample)), flush=True)


def samples(settings: Settings) -> Iterator[Sample]:
    """Yield the samples of all measurements. The tables are on the repository's disk, because a
    durable write to /tmp may cost nothing."""
    (ROOT / ".cache/bench").mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / ".cache/bench")))
        tables = [
            task_tables.sqlite(folder / f"sqlite-{size}", size) for size in settings.table_sizes
        ]
        if reason := why_not():
            yield Sample(
                "tasks", "DynamoDB Local", {}, (f"tasks: no rows of DynamoDB Local: {reason}",)
            )
        else:
            emulator = stack.enter_context(_emulator(folder))
            tables += stack.enter_context(_dynamodb_tables(folder, emulator, settings.table_sizes))
        if reason := postgresql.why_not():
            yield Sample("tasks", "PostgreSQL", {}, (f"tasks: no row of PostgreSQL: {reason}",))
        else:
            server = stack.enter_context(postgresql.server(folder))
            size = min(settings.table_sizes)
            tables.append(task_tables.postgresql(folder / "postgresql", size, server))
        swept = list(_sweeps(tables))  # first, because the load leaves tasks in the tables
        yield from _loads(tables, settings)
        yield from swept


@contextmanager
def _emulator(folder: Path) -> Iterator[Emulator]:
    """Start the emulator, and stop it at the end, so its folder can be removed."""
    with running_emulator(folder) as emulator:
        yield emulator
    until = time.monotonic() + PATIENCE_S
    while any(folder.glob("dynamodb.address")) and time.monotonic() < until:
        time.sleep(0.01)


@contextmanager
def _dynamodb_tables(
    folder: Path, emulator: Emulator, sizes: Sequence[int]
) -> Iterator[list[Filled]]:
    with ExitStack() as stack:
        names = [stack.enter_context(emulator.table()) for _ in sizes]
        yield [
            task_tables.dynamodb(folder / f"dynamodb-{size}", size, emulator, name)
            for size, name in zip(sizes, names, strict=True)
        ]


def _loads(tables: Sequence[Filled], settings: Settings) -> Iterator[Sample]:
    """Yield the samples of all rounds over the tables. Each table has a running gateway; all
    gateways except the measured one are idle."""
    with ExitStack() as stack:
        served = [(table, stack.enter_context(_serving(table, settings))) for table in tables]
        for number in range(settings.rounds):
            for table, server in rotated(served, number):
                yield _tasks_sample(table, server, settings)
                yield _gets_sample(table, server, "get_task", settings)
                if table.count == min(settings.table_sizes):
                    yield _gets_sample(table, server, "get_large_task", settings)


def _serving(table: Filled, settings: Settings) -> AbstractContextManager[Server]:
    gateway, *_ = SUBJECTS
    return running(gateway, "tasks", "call_add", settings.cores, table.environment, table.folder)


def _gets_sample(table: Filled, server: Server, workload: str, settings: Settings) -> Sample:
    sample = load_sample(server, workload, CLIENTS, settings)
    case = {"get_task": "tasks/get", "get_large_task": "tasks/get of a result of 300 KB"}[workload]
    # threads of one process wait for each other on their core, so `waited %`
    # does not indicate other processes here
    values = {key: value for key, value in sample.values.items() if key != "waited_percent"}
    notes = tuple(
        note.replace("gateway", table.name) for note in sample.notes if "waited" not in note
    )
    return Sample(f"{case}, {CLIENTS} clients", table.name, values, notes)


# from a call to its completed task


def _tasks_sample(table: Filled, server: Server, settings: Settings) -> Sample:
    cpu_before_s = server.cpu_s()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        crowd = runner.run(_drive(server.port, settings))
    ordered_s = sorted(crowd.latencies_s)
    values = {
        "tasks_per_s": len(ordered_s) / (crowd.closes_at - crowd.opens_at),
        "task_cpu_us": 1e6 * (server.cpu_s() - cpu_before_s) / crowd.completed,
        "looks": crowd.looks / crowd.completed,
        "p50_ms": 1000 * percentile(ordered_s, 0.50),
        "p99_ms": 1000 * percentile(ordered_s, 0.99),
    }
    return Sample(TO_COMPLETED, table.name, values)


async def _drive(port: int, settings: Settings) -> Crowd:
    crowd = Crowd(settings)
    async with (
        asyncio.timeout(settings.seconds + settings.warm_up_s + PATIENCE_S),
        asyncio.TaskGroup() as group,
    ):
        for _ in range(CLIENTS):
            group.create_task(crowd.be_a_client(port))
    return crowd


class Crowd:
    """Clients that each run one task after another until the window closes."""

    def __init__(self, settings: Settings) -> None:
        self.opens_at = time.perf_counter() + settings.warm_up_s
        self.closes_at = self.opens_at + settings.seconds
        self.latencies_s: list[float] = []
        self.completed = 0
        self.looks = 0
        self._least = CLIENTS * settings.least_answers
        self._is_over = False
        self._usual_s = 0.005
        self._numbers = itertools.count(1)

    async def be_a_client(self, port: int) -> None:
        """Run tasks, one after another, over one connection."""
        async with _connected(port) as connection:
            while not self._is_over:
                sent_at = time.perf_counter()
                await self._have_one_done(connection)
                self._record(sent_at, time.perf_counter())

    async def _have_one_done(self, connection: Connection) -> None:
        number = next(self._numbers)
        params = {"name": "add", "arguments": {"a": number, "b": 7}}
        call = http_request("tools/call", params, number, capabilities=KNOWS_TASKS)
        task = await connection.result(call, number)
        _require(task["resultType"] == "task" and task["status"] == "working", task)
        pause_s = self._usual_s
        while task["status"] == "working":
            await asyncio.sleep(pause_s)
            look = next(self._numbers)
            task = await connection.result(task_request(task["taskId"], look), look)
            self.looks += 1
            pause_s = max(0.001, self._usual_s / 4)
        _require(
            task["status"] == "completed" and task["result"]["structuredContent"] == number + 7,
            task,
        )
        took = datetime.fromisoformat(task["lastUpdatedAt"]) - datetime.fromisoformat(
            task["createdAt"]
        )
        self._usual_s += (took.total_seconds() - self._usual_s) / 10

    def _record(self, sent_at: float, now: float) -> None:
        self.completed += 1
        if now < self.opens_at or self._is_over:
            return
        self.latencies_s.append(now - sent_at)
        if now >= self.closes_at and len(self.latencies_s) >= self._least:
            self._is_over, self.closes_at = True, now


class Connection:
    """A keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._responses = ResponseReader()

    async def result(self, request: bytes, request_id: int) -> dict[str, Any]:
        """Send a request; return the result.

        Raises:
            WrongAnswerError: the answer has no result, or the server closed the connection.
        """
        self._writer.write(request)
        while data := await self._reader.read(1 << 18):
            response = self._responses.feed(data)
            if response is not None:
                message = message_in(response)
                _require(
                    response.status == 200 and message["id"] == request_id and "result" in message,
                    message,
                )
                result: dict[str, Any] = message["result"]
                return result
        raise WrongAnswerError("the server closed the connection")


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield Connection(reader, writer)
    writer.close()


def _require(is_right: bool, message: Any) -> None:
    if not is_right:
        raise WrongAnswerError(f"not what was asked for: {str(message)[:300]}")


# the periodic work of every process, even without tasks


def _sweeps(tables: Sequence[Filled]) -> Iterator[Sample]:
    for table in tables:
        for values in asyncio.run(_swept(table)):
            yield Sample("sweep every 5 s and delay every minute, nothing late", table.name, values)


async def _swept(table: Filled) -> list[dict[str, float]]:
    store, queue = (
        table.open(),
        SqliteQueue(SqliteDatabase(table.folder / "queue.sqlite3"), Clock()),
    )
    rows = SqliteSessions(SqliteDatabase(table.folder / "rows.sqlite3"), Clock())
    sweep = Sweep(store, queue, rows, Clock(), TasksConfig())
    await sweep.sweep()  # opens the connection
    await sweep.overdue_s()
    measured = []
    for _ in range(SWEEPS):
        began = time.perf_counter()
        assert await sweep.sweep() == 0
        swept = time.perf_counter()
        await sweep.overdue_s()
        measured.append(
            {"sweep_ms": 1000 * (swept - began), "delay_ms": 1000 * (time.perf_counter() - swept)}
        )
    await store.aclose()
    await queue.aclose()
    return measured


if __name__ == "__main__":
    main()
