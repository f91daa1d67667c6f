"""`scripts/chaos poison`: innocent tasks beside poison of each kind, and everything that can happen to a process.

Workers are killed, stopped for longer than their lease and continued; the store is away for a while; clocks differ.
Every innocent has to complete with what its steps returned. An effect may happen twice only where a process died, or
was stopped past its lease, while it was inside that step.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundgate import core, settings
from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock
from roundgate.config import TasksConfig
from roundgate.protocol import jsonrpc
from roundgate.protocol.tasks import Status
from roundgate.replay.journal import Journal
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.call import TaskCall, owner_of
from roundgate.tasks.service import Tasks
from tests.chaos.fleet import Member
from tests.chaos.orders import table
from tests.chaos.tasks import has_java, store

SERVED = Path(__file__).parent / "served/poison.yaml"
KINDS = ("exit", "segv", "block", "burn", "hoard", "hang", "quit", "swallow")
STEPS = 4
LEASE_S = 3
GIVE_UP_S = 420
LONG = 100
"""Innocents from which on a run is no short one."""
SETTLED = {Status.COMPLETED, Status.FAILED, Status.CANCELLED}


@dataclass(frozen=True)
class Plan:
    """What happens in a run."""

    innocents: int
    poisons: Sequence[str]
    kill_every_s: float = 0
    stop_every_s: float = 0
    away_s: float = 0
    skew_s: float = 0
    seconds: float = 0.05
    """How long an innocent step takes."""
    workers: int = 3
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Effect:
    """A step of a process: from when to when, as far as is known."""

    pid: int
    begin: float
    done: float | None
    receipt: str


@dataclass
class Fleet:
    """Workers that are started again whenever they end."""

    members: list[Member]
    ends: Counter[str] = field(default_factory=Counter)
    stops: list[tuple[int, float, float]] = field(default_factory=list)
    """Who was stopped, from when to when."""
    is_over: bool = False

    async def keep_alive(self) -> None:
        """Start what has ended."""
        while not self.is_over:
            for member in self.members:
                if member.process is not None and (status := member.process.poll()) is not None:
                    self.ends[f"exit status {status}" if status >= 0 else signal.Signals(-status).name] += 1
                    member.start()
            await asyncio.sleep(0.2)

    async def kill(self, every_s: float, dice: random.Random) -> None:
        """SIGKILL, now and then."""
        while True:
            await asyncio.sleep(every_s)
            process = dice.choice(self.members).process
            if process is not None:
                process.kill()

    async def stop(self, every_s: float, dice: random.Random) -> None:
        """SIGSTOP for longer than a lease, then SIGCONT."""
        while True:
            await asyncio.sleep(every_s)
            process = dice.choice(self.members).process
            if process is None or process.poll() is not None:
                continue
            began = time.monotonic()
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(LEASE_S * 1.8)
            process.send_signal(signal.SIGCONT)
            self.stops.append((process.pid, began, time.monotonic()))

    def __enter__(self) -> Fleet:
        for member in self.members:
            member.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_over = True
        for member in self.members:
            if member.process is not None:
                member.process.send_signal(signal.SIGCONT)
                member.process.terminate()
        for member in self.members:
            if member.process is not None:
                with suppress(Exception):
                    member.process.wait(15)
            member.kill()


@contextmanager
def away(environment: Mapping[str, str]) -> Iterator[None]:
    """The store cannot be reached."""
    where = environment["GATEWAY_STORE"]
    if where.startswith("sqlite:///"):
        db = sqlite3.connect(where.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        db.execute("begin immediate")
        try:
            yield
        finally:
            db.execute("rollback")
            db.close()
        return
    pid = _emulator(environment["AWS_ENDPOINT_URL_DYNAMODB"].rpartition(":")[2])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _emulator(port: str) -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"DynamoDBLocal.jar" in words and port.encode() in words:
                return int(path.parent.name)
    raise AssertionError(f"no emulator at port {port}")


@asynccontextmanager
async def shop(environment: Mapping[str, str]) -> AsyncIterator[tuple[Tasks, core.Stores]]:
    """What creates tasks and looks at them, on the store of the workers."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    clock = Clock()
    stores = core.make_stores(settings.from_environment(os.environ), clock)
    try:
        yield Tasks(stores.tasks, stores.queue, clock, TasksConfig(requeue_after_s=2)), stores
    finally:
        await stores.queue.aclose()
        await stores.tasks.aclose()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


async def begin(tasks: Tasks, tool: str, **arguments: Any) -> TaskRef:
    """A new task."""
    call = TaskCall(tool, arguments, LOCAL, {"elicitation": {}})
    created = await tasks.create(call, Journal())
    return TaskRef(owner_of(LOCAL), created["taskId"])


async def run(kind: str, plan: Plan, seed: int, title: str) -> bool:
    """One run; whether everything was as it must be."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as place, store(kind, Path(place)) as environment:
        directory = Path(place)
        effects = directory / "effects.txt"
        effects.touch()
        # two owners' clocks: one right, one ahead
        shared = {**environment, "CHAOS_EFFECTS": str(effects), **plan.environment}
        members = [
            Member(
                f"worker-{number}",
                ["worker", str(SERVED), "--log-level", "info"],
                {**shared, "CHAOS_SKEW_S": str(plan.skew_s if number % 2 else 0)},
                directory / f"worker-{number}.log",
            )
            for number in range(plan.workers)
        ]
        async with shop(environment) as (tasks, stores):
            began = time.monotonic()
            wanted = [
                ("innocent", {"order": n, "steps": STEPS, "seconds": plan.seconds}) for n in range(plan.innocents)
            ]
            wanted += [("poison", {"kind": one}) for one in plan.poisons]
            dice.shuffle(wanted)
            with Fleet(members) as fleet:
                refs = [(await begin(tasks, tool, **facts), tool, facts) for tool, facts in wanted]
                troubles = [asyncio.create_task(fleet.keep_alive())]
                if plan.kill_every_s:
                    troubles.append(asyncio.create_task(fleet.kill(plan.kill_every_s, dice)))
                if plan.stop_every_s:
                    troubles.append(asyncio.create_task(fleet.stop(plan.stop_every_s, dice)))
                if plan.away_s:
                    await asyncio.sleep(2)
                    with away(environment):
                        await asyncio.sleep(plan.away_s)
                found = await _ends(tasks, stores, refs)
                for trouble in troubles:
                    trouble.cancel()
                await asyncio.gather(*troubles, return_exceptions=True)
            result = _report(title, found, effects.read_text(), fleet, time.monotonic() - began)
        if not result:
            _keep_logs(directory)
        return result


def _keep_logs(directory: Path) -> None:
    kept = tempfile.mkdtemp(prefix="chaos-poison-")
    for path in [*directory.glob("*.log"), directory / "effects.txt"]:
        shutil.copy(path, kept)
    print(f"  logs are in {kept}")


async def _ends(
    tasks: Tasks, stores: core.Stores, refs: Sequence[tuple[TaskRef, str, Any]]
) -> list[tuple[str, Any, Any]]:
    """Tool, arguments and the task as its client sees it, once all are settled."""
    left, ended = {ref: (tool, facts) for ref, tool, facts in refs}, []
    until = time.monotonic() + GIVE_UP_S
    while left and time.monotonic() < until:
        for ref, (tool, facts) in list(left.items()):
            record = await stores.tasks.read(ref, Clock().now_ms())
            asks = facts.get("kind") == "swallow" and record is not None and record.status is Status.INPUT_REQUIRED
            if record is not None and (record.status in SETTLED or asks):
                ended.append((tool, facts, jsonrpc.decode(tasks.shown(record))))
                del left[ref]
            await asyncio.sleep(0)
        await asyncio.sleep(0.5)
    for ref, (tool, facts) in left.items():
        record = await stores.tasks.read(ref, Clock().now_ms())
        ended.append((tool, facts, {"status": "not ended", "record": str(record)[:400]}))
    return ended


def _report(title: str, found: Sequence[tuple[str, Any, Any]], lines: str, fleet: Fleet, seconds: float) -> bool:
    effects, said_bye = _read(lines)
    wrong = [f"{facts}: {why}" for tool, facts, task in found if (why := _wrong(tool, facts, task, effects))]
    excused, unexcused = _doubles(effects, said_bye, fleet.stops)
    ends = Counter(
        f"poison {facts['kind']}: {task['status']}{' with isError' if task.get('result', {}).get('isError') else ''}"
        for tool, facts, task in found
        if tool == "poison"
    )
    innocents = [facts for tool, facts, _ in found if tool == "innocent"]
    rows = {
        "innocent tasks": len(innocents),
        "ended wrongly or not at all (innocents and poison)": len(wrong),
        **dict(sorted(ends.items())),
        **{f"workers that ended: {how}": times for how, times in sorted(fleet.ends.items())},
        "workers stopped past their lease and continued": len(fleet.stops),
        "steps done": sum(len(times) for times in effects.values()),
        "of them again, where a process died or was stopped inside": excused,
        "of them again for no such reason": len(unexcused),
        "seconds": round(seconds, 1),
    }
    table(title, rows)
    for line in [*wrong[:10], *unexcused[:10]]:
        print(f"  {line}")
    return not wrong and not unexcused


def _wrong(tool: str, facts: Mapping[str, Any], task: Mapping[str, Any], effects: Mapping[Any, list[Effect]]) -> str:
    """What is wrong with how a task ended; nothing if it is right."""
    if tool == "poison":
        return "" if task["status"] != "not ended" else str(task)
    if task["status"] != "completed" or task["result"].get("isError"):
        return str(task)[:600]
    receipts = task["result"]["content"][0]["text"].split()
    for step, receipt in enumerate(receipts):
        if receipt not in {effect.receipt for effect in effects[facts["order"], step] if effect.done}:
            return f"step {step} tells of what did not happen"
    return "" if len(receipts) == facts["steps"] else "steps are missing"


def _read(lines: str) -> tuple[dict[tuple[int, int], list[Effect]], set[int]]:
    """Every time that a step was begun, by order and step; and the processes that ended by themselves."""
    begun: dict[tuple[str, int, int], tuple[int, float]] = {}
    done: dict[str, float] = {}
    bye: set[int] = set()
    for line in lines.splitlines():
        pid, moment, what, *rest = line.split()
        if what == "bye":
            bye.add(int(pid))
        elif what == "begin":
            order, step, receipt = rest
            begun[receipt, int(order), int(step)] = int(pid), float(moment)
        else:
            done[rest[2]] = float(moment)
    effects: dict[tuple[int, int], list[Effect]] = defaultdict(list)
    for (receipt, number, place), (process, moment) in begun.items():
        effects[number, place].append(Effect(process, moment, done.get(receipt), receipt))
    return effects, bye


def _doubles(
    effects: Mapping[tuple[int, int], list[Effect]], bye: set[int], stops: Sequence[tuple[int, float, float]]
) -> tuple[int, list[str]]:
    """How many effects happened again for a good reason, and those that did for none."""
    excused, unexcused = 0, []
    for place, times in effects.items():
        happened = sorted((one for one in times if one.done), key=lambda one: one.begin)
        for one in happened[:-1]:
            if one.pid not in bye or any(_within(one, stop) for stop in stops for one in happened):
                excused += 1
            else:
                unexcused.append(f"order {place[0]} step {place[1]}: {happened}")
    return excused, unexcused


def _within(effect: Effect, stop: tuple[int, float, float]) -> bool:
    """Whether its process was stopped while it was inside the step, or was noting it."""
    pid, began, ended = stop
    return effect.pid == pid and effect.begin <= ended and (effect.done or ended) + 0.5 >= began


def main(arguments: argparse.Namespace) -> bool:
    """Every store that was asked for; whether all was right."""
    count, seed = arguments.count, arguments.seed
    if count < LONG:
        # what hangs is ended by the limit of a task, which is too long for a short run
        kinds = [kind for kind in KINDS if kind != "hang"]
        limits = {"CHAOS_LIMIT_MB": "1500"}
        plan = Plan(count, kinds, kill_every_s=15, stop_every_s=11, away_s=4, environment=limits)
        return asyncio.run(run("sqlite", plan, seed, "poison, SIGKILL, SIGSTOP and an outage of 4 s, on sqlite"))
    results = []
    for kind in ["sqlite", "dynamodb"] if arguments.store == "both" else [arguments.store]:
        if kind == "dynamodb" and not has_java():
            print("\nskipped: DynamoDB Local needs Java 17")
            continue
        for title, plan in _plans(count).items():
            results.append(asyncio.run(run(kind, plan, seed, f"{title}, on {kind}")))
    return all(results)


def _plans(count: int) -> dict[str, Plan]:
    limits = {"CHAOS_LIMIT_MB": "1500", "CHAOS_TASK_TIMEOUT_S": "240"}
    return {
        "poison of each kind": Plan(count, KINDS * max(1, count // 250), environment=limits),
        "SIGKILL, SIGSTOP past the lease": Plan(count, (), kill_every_s=4, stop_every_s=7, seconds=0.5),
        "the store away for 30 s": Plan(count, (), away_s=30, seconds=0.5),
        "clocks 40 s apart": Plan(count // 5, (), skew_s=40, seconds=1.5, environment={"CHAOS_ALLOWED_SKEW_S": "45"}),
    }
