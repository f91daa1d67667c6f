"""`scripts/chaos backlog`: ten thousand tasks that wait, one owner's before another's,
and sweepers side by side.

    drain      pools of workers on one file, and `requeue_after_s` so short that a task waits for many times that long:
               messages a task, the rate of each third, and how long another owner's task takes meanwhile
    sweepers   late tasks, seen to by one process and by four

The drain runs with the queue in the file, which knows what it has, and with one that does not, as
SQS. The sweepers run on a file and on DynamoDB Local.

DynamoDB Local is one process with one lock: it needs about 3 ms of processor time for a write,
twice as much as the sweeper that asks for it. Four sweepers as near to it as one (a proxy with
5 ms each way) are therefore no faster than one, and would measure the emulator. So it is put
far away, `ROUND_TRIP_S` behind a proxy: what is measured is how sweepers share the work, not
how many cores this machine has. What does not depend on the machine is printed beside it, calls
and processor time a task.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

from roundgate.auth.principal import Principal
from roundgate.clock import Clock
from roundgate.replay.context import Context
from roundgate.settings import TasksConfig
from roundgate.storage.dynamodb.sessions import DynamoDbSessions
from roundgate.storage.dynamodb.tasks import DynamoDbTasks
from roundgate.storage.ports import Message, SessionStore
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.queue import SqliteQueue
from roundgate.storage.sqlite.sessions import SqliteSessions
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import TaskRef
from roundgate.tasks import sweep as sweep_module
from roundgate.tasks.events import NewTask
from roundgate.tasks.stored import StoredTasks
from roundgate.tasks.sweep import Sweep
from tests.support.dynamodb import ROOT, Emulator, emulator, why_not
from tests.support.proxy import Proxy
from tests.support.tasks import Workshop, catalog_of

MANY, FEW = Principal("chaos", "many", ""), Principal("chaos", "few", "")
TASK_S: Final = 0.2
POOLS: Final = 2
CONFIG: Final = TasksConfig(
    requeue_after_s=2,
    requeue_at_most_s=60,
    sweep_every_s=1,
    concurrency=16,
    max_open_per_owner=10**6,
)
ROUND_TRIP_S: Final = 0.8
"""At 32 calls at once four sweepers then write 160 times a second, half of what the emulator can on one core."""
PAUSE_S: Final = 0.2
"""Between two sweeps of a process."""
LATE: Final = {"sqlite": 4_000, "dynamodb": 1_920}
"""Tasks for the sweepers."""
MOST_MESSAGES, MOST_DELAY_S, LEAST_FLATNESS = 1.2, 2.0, 0.6
LEAST_GAIN, LEAST_SHARE = 3.0, 0.5
"""Of four sweepers, in proportion to one. A file has one writer: there they must not be in each other's way."""


async def quick(ctx: Context) -> str:
    """The tool."""
    await asyncio.sleep(TASK_S)
    return "done"


class Counting:
    """A queue whose messages count; perhaps one that cannot look into itself."""

    def __init__(self, queue: SqliteQueue, counts: dict[str, int], *, is_blind: bool) -> None:
        self._queue = queue
        self._counts = counts
        self._is_blind = is_blind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        self._counts["sent"] += 1
        await self._queue.send(ref, delay_ms)

    async def send_many(self, refs: Sequence[TaskRef]) -> None:
        self._counts["sent"] += len(refs)
        await self._queue.send_many(refs)

    async def receive(self, limit: int, wait_ms: int, **skip: Any) -> Sequence[Message]:
        messages = await self._queue.receive(limit, wait_ms, **skip)
        self._counts["received"] += len(messages)
        return messages

    async def waiting(self, refs: Sequence[TaskRef]) -> Collection[TaskRef] | None:
        return None if self._is_blind else await self._queue.waiting(refs)


@dataclass
class Drained:
    """What a drain came to."""

    count: int
    seconds: float
    messages: float
    """Sent, for each task."""
    rates: tuple[float, float, float]
    """Tasks a second in each third of the time."""
    idle_s: float
    busy_s: float
    """The other owner's task, without and with the backlog."""

    @property
    def is_well(self) -> bool:
        is_flat = self.rates[-1] >= LEAST_FLATNESS * self.rates[0]
        return (
            self.messages <= MOST_MESSAGES and self.busy_s <= self.idle_s + MOST_DELAY_S and is_flat
        )

    def line(self, name: str) -> str:
        rates = " ".join(f"{rate:.0f}" for rate in self.rates)
        return (
            f"{name:14} {self.count:6} tasks in {self.seconds:5.1f} s | {self.messages:.3f} messages a task |"
            f" a second, by thirds: {rates} | another owner's task {self.idle_s:.2f} s idle, {self.busy_s:.2f} s busy |"
            f" {'ok' if self.is_well else 'NOT AS PROMISED'}"
        )


async def drain(path: Path, count: int, *, is_blind: bool) -> Drained:
    """A backlog of one owner's, worked off; in the middle of it another owner comes."""
    counts = {"sent": 0, "received": 0}

    def shop() -> Workshop:
        queue: Any = Counting(
            SqliteQueue(SqliteDatabase(path, durable=False), Clock()), counts, is_blind=is_blind
        )
        return Workshop(
            catalog_of(quick=quick),
            StoredTasks(SqliteTasks(SqliteDatabase(path, durable=False)), queue),
            queue,
            Clock(),
            CONFIG,
        )

    shops = [shop() for _ in range(POOLS)]
    for one in shops:
        one.pool.start()
    try:
        idle_s = await _one_task(shops[0])
        await asyncio.gather(*(_fill(shops[n % POOLS], count // 20) for n in range(20)))
        counts["sent"] = count  # one for each, and none yet for those that are not sent again
        begun = time.monotonic()
        watching = asyncio.create_task(_watch(shops[0].store, count, begun))
        await asyncio.sleep(min(10.0, count / 500))
        busy_s = await _one_task(shops[0])
        ends = await watching
    finally:
        for one in shops:
            await one.pool.stop()
            await one.store.aclose()
            await one.queue.aclose()
    return Drained(count, ends[-1][0], (counts["sent"] - 1) / count, _rates(ends), idle_s, busy_s)


async def _fill(shop: Workshop, count: int) -> None:
    for _ in range(count):
        await shop.begin("quick", principal=MANY)


async def _one_task(shop: Workshop) -> float:
    begun = time.monotonic()
    ref = await shop.begin("quick", principal=FEW)
    while not (await shop.record(ref)).status.is_terminal:  # noqa: ASYNC110 (other event loops end it)
        await asyncio.sleep(0.02)
    return time.monotonic() - begun


async def _watch(store: StoredTasks, count: int, begun: float) -> list[tuple[float, int]]:
    """How many were left, second by second."""
    seen: list[tuple[float, int]] = []
    left = count
    while left:
        left = await store.count_open(_owner(), count)
        seen.append((time.monotonic() - begun, left))
        await asyncio.sleep(0.5)
    return seen


def _owner() -> str:
    from roundgate.auth import task_owner

    return task_owner(MANY)


def _rates(seen: Sequence[tuple[float, int]]) -> tuple[float, float, float]:
    """Of the time in which there was enough for every worker to do."""
    full = [one for one in seen if one[1] > POOLS * CONFIG.concurrency] or list(seen)
    cuts = [full[(len(full) - 1) * n // 3] for n in range(4)]
    slices = [(a[1] - b[1], max(b[0] - a[0], 0.001)) for a, b in pairwise(cuts)]
    first, second, third = (done / seconds for done, seconds in slices)
    return first, second, third


# sweepers


@dataclass
class Swept:
    """What sweepers came to, together."""

    a_second: float
    calls: float
    """Of DynamoDB, for each late task."""
    cpu_ms: float
    """For each late task."""
    store_cpu_ms: float
    """The same of DynamoDB Local."""

    def line(self, name: str) -> str:
        costs = (
            f"{self.calls:.2f} calls, {self.store_cpu_ms:.1f} ms of the emulator, "
            if self.calls
            else ""
        )
        return f"{name:24} {self.a_second:6.0f} late tasks a second | a task: {costs}{self.cpu_ms:.2f} ms of processor"


def sweepers(kind: str, place: str, table: str, count: int, processes: int) -> Swept:
    """Late tasks that so many processes see to."""
    asyncio.run(_make_late(kind, place, table, count))
    with ExitStack() as stack:
        far = place
        if kind == "dynamodb":
            far = stack.enter_context(Proxy(place, latency_s=ROUND_TRIP_S / 2)).url
        command = [sys.executable, "-m", "tests.chaos.backlog", kind, far, table]
        pipe = subprocess.PIPE
        running = [
            subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
            for _ in range(processes)
        ]
        for one in running:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        begun, store_s = time.monotonic(), _cpu_s(place)
        told = [json.loads(one.communicate("go\n", timeout=600)[0]) for one in _all_told(running)]
        store_s = _cpu_s(place) - store_s
    *sums, ends = zip(*told, strict=True)
    found, calls, cpu_s = map(sum, sums)
    assert found == count, told
    return Swept(
        count / (max(ends) - begun), calls / count, 1000 * cpu_s / count, 1000 * store_s / count
    )


def _cpu_s(url: str) -> float:
    """What the emulator at an address has had of the processor so far; 0 for a file."""
    port = url.rpartition(":")[2].encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"DynamoDBLocal.jar" in words and port in words:
                facts = path.with_name("stat").read_text().rpartition(")")[2].split()
                return (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _all_told(running: Sequence[subprocess.Popen[str]]) -> Sequence[subprocess.Popen[str]]:
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    return running


async def _make_late(kind: str, place: str, table: str, count: int) -> None:
    store, now_ms = _store(kind, place, table, Counter()), Clock().now_ms()
    refs = [TaskRef("owner", Clock().new_id()) for _ in range(count)]
    for start in range(0, count, 200):
        new = (
            NewTask(ref, "quick", b"{}", now_ms, now_ms + 10**7, now_ms - 1)
            for ref in refs[start : start + 200]
        )
        await asyncio.gather(*map(store.create, new))
    await store.aclose()


def _store(kind: str, place: str, table: str, calls: Counter[str]) -> StoredTasks:
    return _parts(kind, place, table, calls)[0]


def _parts(
    kind: str, place: str, table: str, calls: Counter[str]
) -> tuple[StoredTasks, SessionStore]:
    """The tasks, and the rows that sweepers share."""
    if kind == "sqlite":
        database = SqliteDatabase(Path(place), durable=False)
        return StoredTasks(SqliteTasks(database)), SqliteSessions(database, Clock())
    running = Emulator(place)

    def make_client() -> Any:
        client = running.client()
        client.meta.events.register(
            "before-call.dynamodb", lambda model, **_: calls.update([model.name])
        )
        return client

    opened = running.open(table, make_client)
    return StoredTasks(DynamoDbTasks(opened)), DynamoDbSessions(opened, Clock())


class Nowhere:
    """A queue that takes everything: how fast a queue is, is not what is measured."""

    async def send_many(self, refs: Sequence[TaskRef]) -> None: ...

    async def waiting(self, refs: Sequence[TaskRef]) -> Collection[TaskRef] | None:
        return None

    async def depth(self) -> int | None:
        return None


async def _sweep_all(kind: str, place: str, table: str) -> None:
    if kind == "dynamodb":
        setattr(sweep_module, "SHARD_MS", 60_000)  # noqa: B010 - in proportion to calls that take a hundred times as long as they should
    calls: Counter[str] = Counter()
    store, rows = _parts(kind, place, table, calls)
    queue = cast("Any", Nowhere())
    await store.late_shards(0)  # connected
    print("ready", flush=True)
    sys.stdin.readline()
    calls.clear()
    begun_s = time.process_time()
    found, ended, sweep = (
        0,
        0.0,
        Sweep(store, queue, rows, Clock(), TasksConfig(requeue_after_s=3_000)),
    )
    while await store.late_shards(Clock().now_ms()):
        if late := await sweep.sweep():
            found, ended = found + late, time.monotonic()  # which processes of a machine share
        await asyncio.sleep(PAUSE_S)
    print(json.dumps([found, calls.total(), time.process_time() - begun_s, ended]))


# the table


@contextmanager
def _place(kind: str, directory: Path) -> Iterator[Callable[[], tuple[str, str]]]:
    """Makes new stores: a file or address, and a table."""
    if kind == "sqlite":
        made = iter(range(100))
        yield lambda: (str(directory / f"sweep-{next(made)}.sqlite3"), "-")
        return
    with emulator(directory) as running, running.table() as one, running.table() as four:
        tables = iter((one, four))
        yield lambda: (running.url, next(tables))


def main(arguments: argparse.Namespace) -> bool:
    """Everything that was asked for; whether all was as promised."""
    results, lines = [], []
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        for is_blind in (False, True) if arguments.part != "sweepers" else ():
            name = "like SQS" if is_blind else "in the file"
            drained = asyncio.run(
                drain(directory / f"{is_blind}.sqlite3", arguments.count, is_blind=is_blind)
            )
            results.append(drained.is_well)
            lines.append(drained.line(name))
            print(lines[-1], flush=True)
        kinds = ["sqlite", "dynamodb"] if arguments.store == "all" else [arguments.store]
        for kind in kinds if arguments.part != "drain" else ():
            if kind == "dynamodb" and (reason := why_not()):
                print(f"skipped: {reason}")
                continue
            with _place(kind, directory) as new:
                one, four = (sweepers(kind, *new(), LATE[kind], processes) for processes in (1, 4))
            print(
                one.line(f"1 sweeper, {kind}"),
                four.line(f"4 sweepers, {kind}"),
                sep="\n",
                flush=True,
            )
            gained, least = (
                four.a_second / one.a_second,
                LEAST_GAIN if kind == "dynamodb" else LEAST_SHARE,
            )
            results.append(gained >= least)
            print(
                f"4 are {gained:.2f} times as fast: {'ok' if gained >= least else 'NOT AS PROMISED'}",
                flush=True,
            )
    return all(results)


if __name__ == "__main__":
    asyncio.run(_sweep_all(*sys.argv[1:4]))
