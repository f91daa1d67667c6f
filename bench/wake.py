"""The speed at which sweeps wake tasks that slept longer than a message can be delayed: `python -m
bench.wake SETTINGS`.

Run with the gateway's own Python. Prints one `Sample` per line, as JSON. All tasks are due when the
sweeps begin. Each worker is a separate process that sweeps until no task is late, as `roundgate
serve` does beside its turns; the tasks do not run. Messages go to a SQLite file.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from bench.dynamodb import Emulator, emulator, why_not
from bench.measurements import Sample
from bench.subjects import ROOT
from roundgate.clock import Clock
from roundgate.settings import TasksConfig
from roundgate.storage import TaskRef
from roundgate.storage.dynamodb import DynamoDbTasks
from roundgate.storage.sqlite import Database, SqliteQueue, SqliteTasks
from roundgate.tasks import machine
from roundgate.tasks.events import NewTask
from roundgate.tasks.stored import StoredTasks
from roundgate.tasks.sweep import Sweep

WORKERS = (1, 4)
SLEEPERS = 100_000
QUICK_SLEEPERS = 2_000
QUICK_ROUNDS = 3
MADE_AT_ONCE = 500
PATIENCE_S = 1_800
DAY_MS = 86_400_000


def main() -> None:
    """Print the samples."""
    settings = json.loads(sys.argv[1])
    count = SLEEPERS if settings["rounds"] > QUICK_ROUNDS else QUICK_SLEEPERS
    (ROOT / ".cache/bench").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache/bench") as folder:
        for sample in samples(Path(folder), count):
            print(json.dumps(asdict(sample)), flush=True)


def samples(folder: Path, count: int) -> Iterator[Sample]:
    """Yield a sample for each store and number of workers."""
    case = f"wake-up of {count:,} sleeping tasks"
    for workers in WORKERS:
        path = folder / f"sqlite-{workers}.sqlite3"
        values = woken(f"sqlite:{path}", path, count, workers)
        yield Sample(case, f"SQLite, {_named(workers)}", values)
    if reason := why_not():
        yield Sample(case, "DynamoDB Local", {}, (f"wake: no rows of DynamoDB Local: {reason}",))
        return
    with emulator(folder) as running:
        for workers in WORKERS:
            with running.table() as table:
                place = f"dynamodb:{running.url}:{table}"
                path = folder / f"dynamodb-{workers}.sqlite3"
                values = woken(place, path, count, workers)
                yield Sample(case, f"DynamoDB Local, {_named(workers)}", values)


def _named(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def woken(place: str, messages: Path, count: int, workers: int) -> dict[str, float]:
    """Return the speed at which `workers` processes send a message for each of `count` late
    tasks."""
    asyncio.run(_put_to_sleep(_open(place, messages)[0], count))
    command = [sys.executable, "-m", "bench.wake", "worker", place, str(messages)]
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        for _ in range(workers)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()  # connected
    began = time.monotonic()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [json.loads(process.communicate(timeout=PATIENCE_S)[0]) for process in running]
    counts, cpu_s, ended = zip(*results, strict=True)
    assert sum(counts) == count, f"{counts} of {count}"
    took_s = max(ended) - began
    return {"woken_per_s": count / took_s, "woken_s": took_s, "cpu_us": 1e6 * sum(cpu_s) / count}


def _open(place: str, messages: Path) -> tuple[StoredTasks, SqliteQueue]:
    """Open a store and its queue as in another process."""
    queue = SqliteQueue(Database(messages), Clock())
    kind, _, rest = place.partition(":")
    if kind == "sqlite":
        return StoredTasks(SqliteTasks(Database(Path(rest))), queue), queue
    url, _, table = rest.rpartition(":")
    return StoredTasks(DynamoDbTasks(Emulator(url).open(table)), queue), queue


async def _put_to_sleep(tasks: StoredTasks, count: int) -> None:
    """Create tasks that a worker released to sleep until now."""
    now_ms = Clock().now_ms()

    async def one(number: int) -> None:
        ref = TaskRef(f"owner-{number % 1_000}", f"sleeper-{number}")
        new = NewTask(ref, "sleeps", b"{}", now_ms - 1, now_ms + DAY_MS, now_ms - 1)
        created = machine.create(new)
        record = replace(created.record, fence=1, wake_ms=now_ms - 1, unsent=True)
        assert await tasks.store.insert(record, created.puts)

    for start in range(0, count, MADE_AT_ONCE):
        await asyncio.gather(*map(one, range(start, min(count, start + MADE_AT_ONCE))))
    await tasks.aclose()


async def _sweep(place: str, messages: Path) -> None:
    """Sweep until no task is late; print the number of late tasks, the processor time in seconds,
    and the time of the end."""
    tasks, queue = _open(place, messages)
    clock = Clock()
    # large enough that no task becomes late again before the last one is woken
    sweep = Sweep(tasks, queue, clock, TasksConfig(requeue_after_s=PATIENCE_S))
    await tasks.late_shards(0)
    print("connected", flush=True)
    sys.stdin.readline()
    used_s, count, ended = time.process_time(), 0, time.monotonic()
    while await tasks.late_shards(clock.now_ms()):
        if late := await sweep.sweep():
            count, ended = count + late, time.monotonic()
        await asyncio.sleep(0.05)
    print(json.dumps([count, time.process_time() - used_s, ended]))
    await tasks.aclose()
    await queue.aclose()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        asyncio.run(_sweep(sys.argv[2], Path(sys.argv[3])))
    else:
        main()
