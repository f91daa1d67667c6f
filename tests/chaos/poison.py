"""`scripts/chaos poison`: innocent tasks beside poison of each kind, and everything
that can happen to a process.

Workers are killed, stopped for longer than their lease and continued; the store is away for a
while, or its disk is full; clocks differ. Every innocent has to complete with what its steps
returned. An effect may happen twice only where a process died, or was stopped past its lease, while
it was inside that step. One in four innocents has steps `at_most_once`: none of these ever begins
twice, and only where others may happen twice nobody knows how it ended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundgate import json
from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock
from roundgate.protocol import detailed
from roundgate.protocol.tasks import Status
from roundgate.replay.journal import Journal
from roundgate.runtime import startup
from roundgate.settings import TasksConfig
from roundgate.settings import process as settings
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.call import TaskCall
from roundgate.tasks.service import Tasks
from tests.chaos.fleet import Member
from tests.chaos.orders import table
from tests.chaos.tasks import store, stores
from tests.support.proxy import Proxy, Way

SERVED = Path(__file__).parent / "served/poison.yaml"
CAREFUL = 4
"""One innocent in so many has its steps at most once."""
KINDS = ("exit", "segv", "block", "burn", "hoard", "hang", "quit", "swallow")
STEPS = 4
LEASE_S = 3
GIVE_UP_S = 420
TROUBLE_S = 180
"""How long processes are killed and stopped."""
FILE = "gateway.sqlite3"
DISK_MB = 32
FULL = "database or disk is full"
"""What SQLite says, and then a worker's log."""
UNKNOWN = "unknown"
AT_ONCE = 16
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
    """How long the store cannot be reached; in the second half of it, connections to DynamoDB are refused."""
    full_s: float = 0
    """How long there is no room on the disk of the store."""
    skew_s: float = 0
    seconds: float = 0.05
    """How long an innocent step takes."""
    workers: int = 3
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Effect:
    """A step of a process: from when to when, as far as is known."""

    order: int
    step: int
    pid: int
    begin: float
    done: float | None
    receipt: str


@dataclass
class Fleet:
    """Workers that are started again whenever they end."""

    members: list[Member]
    dead: set[int] = field(default_factory=set)
    """Processes that ended though nobody told them to."""
    ends: Counter[str] = field(default_factory=Counter)
    stops: list[tuple[int, float, float]] = field(default_factory=list)
    """Who was stopped, from when to when."""
    is_over: bool = False

    async def keep_alive(self) -> None:
        """Start what has ended."""
        while not self.is_over:
            for member in self.members:
                if member.process is not None and (status := member.process.poll()) is not None:
                    self.dead.add(member.process.pid)
                    self.ends[
                        f"exit status {status}" if status >= 0 else signal.Signals(-status).name
                    ] += 1
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
            try:
                await asyncio.sleep(LEASE_S * 1.8)
            finally:
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


class Store:
    """The store of a run, and what can happen to it.

    `environment` is for whoever looks on, `workers` for the workers: between them and DynamoDB Local is a proxy.
    """

    def __init__(
        self, environment: Mapping[str, str], directory: Path, proxy: Proxy | None
    ) -> None:
        self.environment = environment
        self.workers = {
            **environment,
            **({} if proxy is None else {"AWS_ENDPOINT_URL_DYNAMODB": proxy.url}),
        }
        self._directory = directory
        self._proxy = proxy

    async def be_away(self, seconds: float) -> None:
        """It cannot be reached: another process has the lock of the file, or the network is down."""
        if self._proxy is None:
            db = sqlite3.connect(self._directory / FILE, isolation_level=None, timeout=30)
            db.execute("begin exclusive")
            await asyncio.sleep(seconds)
            db.execute("rollback")
            db.close()
            return
        for way in (Way.SILENT, Way.SHUT):
            self._proxy.turn(way)
            await asyncio.sleep(seconds / 2)
        self._proxy.turn(Way.OPEN)

    async def be_full(self, seconds: float) -> None:
        """Its disk has no room left."""
        filler = self._directory / "filler"
        until = time.monotonic() + seconds
        while time.monotonic() < until:  # what becomes free meanwhile is taken too
            with suppress(OSError), filler.open("ab", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            await asyncio.sleep(0.1)
        filler.unlink()


@contextmanager
def opened(kind: str, plan: Plan, directory: Path) -> Iterator[Store]:
    """A new store of a kind."""
    place = directory / "store"
    place.mkdir()
    with ExitStack() as stack:
        if plan.full_s:
            stack.enter_context(small_disk(place))
        environment = stack.enter_context(store(kind, place)).environment
        url = environment.get("AWS_ENDPOINT_URL_DYNAMODB")
        yield Store(environment, place, None if url is None else stack.enter_context(Proxy(url)))


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of its own, in memory."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", place],
        check=True,
        capture_output=True,
    )
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def can_mount() -> bool:
    """Whether this user may, on this machine."""
    refused = suppress(OSError, subprocess.CalledProcessError)
    with tempfile.TemporaryDirectory() as place, refused, small_disk(Path(place)):
        return True
    return False


@asynccontextmanager
async def shop(environment: Mapping[str, str]) -> AsyncIterator[tuple[Tasks, startup.Stores]]:
    """What creates tasks and looks at them, on the store of the workers."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    clock = Clock()
    stores = startup.make_stores(settings.from_environment(os.environ), clock)
    try:
        yield Tasks(stores.tasks, clock, TasksConfig(requeue_after_s=2)), stores
    finally:
        await stores.queue.aclose()
        await stores.tasks.aclose()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


async def begin(tasks: Tasks, tool: str, **arguments: Any) -> TaskRef:
    """A new task."""
    call = TaskCall(tool, arguments, LOCAL, {"elicitation": {}})
    created = await tasks.create(call, Journal())
    return TaskRef(task_owner(LOCAL), created["taskId"])


async def _begin_all(
    tasks: Tasks, wanted: Sequence[tuple[str, dict[str, Any]]]
) -> Sequence[tuple[TaskRef, str, dict[str, Any]]]:
    """All of them wait when the first worker begins."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(tool: str, facts: dict[str, Any]) -> tuple[TaskRef, str, dict[str, Any]]:
        async with room:
            return await begin(tasks, tool, **facts), tool, facts

    return await asyncio.gather(*(one(tool, facts) for tool, facts in wanted))


async def run(kind: str, plan: Plan, seed: int, title: str) -> bool:
    """One run; whether everything was as it must be."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as place, opened(kind, plan, Path(place)) as where:
        directory = Path(place)
        effects = directory / "effects.txt"
        effects.touch()
        fleet = Fleet([_member(number, where, plan, directory) for number in range(plan.workers)])
        async with shop(where.environment) as (tasks, stores):
            refs = await _begin_all(tasks, _wanted(plan, dice))
            began = time.monotonic()
            with fleet:
                troubles = [
                    asyncio.create_task(trouble) for trouble in _troubles(plan, fleet, where, dice)
                ]
                found = await _ends(tasks, stores, refs)
                for trouble in troubles:
                    trouble.cancel()
                await asyncio.gather(*troubles, return_exceptions=True)
            times_full = sum(
                member.log.read_text(errors="replace").count(FULL) for member in fleet.members
            )
            result = _report(
                title, found, effects.read_text(), fleet, times_full, time.monotonic() - began
            )
            if plan.full_s and not times_full:
                print("  the disk was never full: this shows nothing")
                result = False
        if not result:
            _keep_logs(directory)
        return result


def _member(number: int, where: Store, plan: Plan, directory: Path) -> Member:
    # two kinds of machines: the clocks of one are right, those of the other ahead
    skew = {"CHAOS_SKEW_S": str(plan.skew_s if number % 2 else 0)}
    environment = {
        **where.workers,
        "CHAOS_EFFECTS": str(directory / "effects.txt"),
        **plan.environment,
        **skew,
    }
    arguments = ["worker", str(SERVED), "--log-level", "info"]
    return Member(f"worker-{number}", arguments, environment, directory / f"worker-{number}.log")


def _wanted(plan: Plan, dice: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """Tools and arguments of all tasks."""
    wanted: list[tuple[str, dict[str, Any]]] = [
        (
            "innocent" if number % CAREFUL else "careful",
            {"order": number, "steps": STEPS, "seconds": plan.seconds},
        )
        for number in range(plan.innocents)
    ]
    wanted += [("poison", {"kind": one}) for one in plan.poisons]
    dice.shuffle(wanted)
    return wanted


def _troubles(
    plan: Plan, fleet: Fleet, where: Store, dice: random.Random
) -> Iterator[Coroutine[Any, Any, None]]:
    yield fleet.keep_alive()
    # for a while: where processes take longer to begin than they live, nothing would ever end
    if plan.kill_every_s:
        yield _for_a_while(fleet.kill(plan.kill_every_s, dice))
    if plan.stop_every_s:
        yield _for_a_while(fleet.stop(plan.stop_every_s, dice))
    if plan.away_s:
        yield _soon(where.be_away(plan.away_s))
    if plan.full_s:
        yield _soon(where.be_full(plan.full_s))


async def _for_a_while(what: Coroutine[Any, Any, None]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(TROUBLE_S):
            await what


async def _soon(what: Coroutine[Any, Any, None]) -> None:
    await asyncio.sleep(2)
    await what


def _keep_logs(directory: Path) -> None:
    kept = tempfile.mkdtemp(prefix="chaos-poison-")
    for path in [*directory.glob("*.log"), directory / "effects.txt"]:
        shutil.copy(path, kept)
    print(f"  logs are in {kept}")


async def _ends(
    tasks: Tasks, stores: startup.Stores, refs: Sequence[tuple[TaskRef, str, Any]]
) -> list[tuple[str, Any, Any]]:
    """Tool, arguments and the task as its client sees it, once all are settled."""
    left, ended = {ref: (tool, facts) for ref, tool, facts in refs}, []
    until = time.monotonic() + GIVE_UP_S
    while left and time.monotonic() < until:
        for ref, (tool, facts) in list(left.items()):
            record = await stores.tasks.read(ref, Clock().now_ms())
            asks = (
                facts.get("kind") == "swallow"
                and record is not None
                and record.status is Status.INPUT_REQUIRED
            )
            if record is not None and (record.status in SETTLED or asks):
                ended.append(
                    (tool, facts, json.decode(detailed(record.view(record.updated_ms), 1_000)))
                )
                del left[ref]
            await asyncio.sleep(0)
        await asyncio.sleep(0.5)
    for ref, (tool, facts) in left.items():
        record = await stores.tasks.read(ref, Clock().now_ms())
        ended.append((tool, facts, {"status": "not ended", "record": str(record)[:400]}))
    return ended


def _report(
    title: str,
    found: Sequence[tuple[str, Any, Any]],
    lines: str,
    fleet: Fleet,
    times_full: int,
    seconds: float,
) -> bool:
    effects, said_bye = _read(lines)
    wrong = [
        f"{facts}: {why}"
        for tool, facts, task in found
        if (why := _wrong(tool, facts, task, effects))
    ]
    again = [one for times in effects.values() for one in _had_again(times)]
    careful = {facts["order"]: task for tool, facts, task in found if tool == "careful"}
    twice = [times for (order, _), times in effects.items() if order in careful and len(times) > 1]
    unknown = [one for order, task in careful.items() for one in _unknown(order, task, effects)]
    ended = said_bye - fleet.dead
    excused, groundless = (
        [
            one
            for one in [*again, *unknown]
            if _is_excused(one, effects, ended, fleet.stops) is wanted
        ]
        for wanted in (True, False)
    )
    ends = Counter(
        f"poison {facts['kind']}: {task['status']}{' with isError' if task.get('result', {}).get('isError') else ''}"
        for tool, facts, task in found
        if tool == "poison"
    )
    rows = {
        "innocent tasks": sum(tool != "poison" for tool, _, _ in found),
        "ended wrongly or not at all (innocents and poison)": len(wrong),
        **dict(sorted(ends.items())),
        **{f"workers that ended: {how}": times for how, times in sorted(fleet.ends.items())},
        "workers stopped past their lease and continued": len(fleet.stops),
        "writes that found no room": times_full,
        "steps begun": sum(len(times) for times in effects.values()),
        "of them again": len(again),
        "steps at most once, begun, of which nobody knows": len(unknown),
        "of these two, where a process died or was stopped inside": len(excused),
        "of these two, for no such reason": len(groundless),
        "steps at most once that were begun twice": len(twice),
        "seconds": round(seconds, 1),
    }
    table(title, rows)
    for line in [*wrong[:10], *groundless[:10], *twice[:10]]:
        print(f"  {line}")
    return not wrong and not groundless and not twice


def _wrong(
    tool: str,
    facts: Mapping[str, Any],
    task: Mapping[str, Any],
    effects: Mapping[Any, list[Effect]],
) -> str:
    """What is wrong with how a task ended; nothing if it is right."""
    if tool == "poison":
        return "" if task["status"] != "not ended" else str(task)
    if task["status"] != "completed" or task["result"].get("isError"):
        return str(task)[:600]
    receipts = _receipts(task)
    for step, receipt in enumerate(receipts):
        if tool == "careful" and receipt == UNKNOWN:
            continue
        if receipt not in {
            effect.receipt for effect in effects[facts["order"], step] if effect.done
        }:
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
    for (receipt, number, place), (process, began) in begun.items():
        effects[number, place].append(
            Effect(number, place, process, began, done.get(receipt), receipt)
        )
    return effects, bye


def _receipts(task: Mapping[str, Any]) -> list[str]:
    """What its steps returned, if it completed."""
    text: str = task["result"]["content"][0]["text"] if task["status"] == "completed" else ""
    return text.split()


def _had_again(times: Sequence[Effect]) -> Sequence[Effect]:
    """Effects after which the same was had once more."""
    return sorted((one for one in times if one.done), key=lambda one: one.begin)[:-1]


def _unknown(
    order: int, task: Any, effects: Mapping[tuple[int, int], list[Effect]]
) -> list[Effect]:
    """What is seen of the steps of which the task says that nobody knows: not all of them came to begin."""
    places = [(order, step) for step, receipt in enumerate(_receipts(task)) if receipt == UNKNOWN]
    return [one for place in places for one in effects.get(place, ())]


def _is_excused(
    effect: Effect,
    effects: Mapping[tuple[int, int], list[Effect]],
    ended: set[int],
    stops: Sequence[tuple[int, float, float]],
) -> bool:
    """Whether its process died, or was stopped for long, before it could note that the step was done.

    `ended` are processes that were told to end, and did. A process that began the next step had noted this one.
    """
    after = effects.get((effect.order, effect.step + 1), ())
    went_on = any(one.pid == effect.pid and one.begin > effect.begin for one in after)
    died_inside = effect.pid not in ended and not went_on
    return died_inside or any(_within(effect, stop) for stop in stops)


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
        return asyncio.run(
            run("sqlite", plan, seed, "poison, SIGKILL, SIGSTOP and an outage of 4 s, on sqlite")
        )
    results = []
    for kind in stores(arguments):
        for title, plan in _plans(count).items():
            if arguments.part is not None and arguments.part not in title:
                continue
            if reason := _why_not(kind, plan):
                print(f"\nskipped: {title}, on {kind}: {reason}")
                continue
            results.append(asyncio.run(run(kind, plan, seed, f"{title}, on {kind}")))
    return all(results)


def _why_not(kind: str, plan: Plan) -> str | None:
    """Why a plan cannot be followed on a store, if it cannot."""
    if plan.away_s and kind == "postgres":
        return "scripts/chaos tasks and sessions kill it"
    if plan.full_s and kind != "sqlite":
        return "it has no disk that we could fill"
    return "a small file system cannot be mounted here" if plan.full_s and not can_mount() else None


def _plans(count: int) -> dict[str, Plan]:
    limits = {"CHAOS_LIMIT_MB": "1500", "CHAOS_TASK_TIMEOUT_S": "240"}
    skew = {"CHAOS_ALLOWED_SKEW_S": "45"}
    half = count // 2
    return {
        "poison of each kind": Plan(count, KINDS * max(1, count // 250), environment=limits),
        "SIGKILL, SIGSTOP past the lease": Plan(
            count, (), kill_every_s=4, stop_every_s=7, seconds=0.5
        ),
        "the store away for 30 s": Plan(count, (), away_s=30, seconds=0.5),
        "the disk full for 30 s": Plan(count, (), full_s=30, seconds=0.5),
        "clocks 40 s apart, SIGKILL": Plan(
            half, (), kill_every_s=8, skew_s=40, seconds=1.5, environment=skew
        ),
    }
