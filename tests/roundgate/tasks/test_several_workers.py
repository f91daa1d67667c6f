"""Several workers on the same tasks: messages twice, late, lost and in any order,
leases that run out mid-step.

Each task ends once, each step is remembered once, and nobody who lost a
lease has written after that.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from roundgate import json
from roundgate.clock import Clock
from roundgate.errors import LeaseLost
from roundgate.protocol.tasks import Status
from roundgate.replay.context import Context
from roundgate.storage.ports import Message
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.events import Checkpoint, Finish, UnderLease
from roundgate.tasks.stored import Claimed, StoredTasks
from roundgate.tasks.turn import TurnResult
from tests.support.clocks import SkippingClock
from tests.support.replay import Name, polite
from tests.support.tasks import Share, Workshop, catalog_of
from tests.support.worker_process import CONFIG, STEPS

TASKS = 12


class Chaotic:
    """A queue that loses, repeats, delays and reorders its messages."""

    def __init__(self, queue: Any, chance: random.Random) -> None:
        self._queue = queue
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        for _ in range(self._chance.choice([0, 1, 1, 1, 2, 3])):
            await self._queue.send(ref, delay_ms + self._chance.choice([0, 0, 500, 40_000]))

    async def receive(self, limit: int, wait_ms: int) -> Sequence[Message]:
        messages = [*await self._queue.receive(limit, wait_ms)]
        self._chance.shuffle(messages)
        return messages

    async def delete(self, messages: Sequence[Message]) -> None:
        await self._queue.delete([message for message in messages if self._chance.random() < 0.8])


class Witness:
    """What all the stores have done, in order."""

    def __init__(self) -> None:
        self.fences: Counter[TaskRef] = Counter()
        self.ends: Counter[TaskRef] = Counter()
        self.kept: dict[tuple[TaskRef, str], Any] = {}
        self.lost = 0

    def wraps(self, store: Any) -> Any:
        return _Witnessed(self, store)


class _Witnessed:
    def __init__(self, witness: Witness, store: Any) -> None:
        self._witness = witness
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        claimed = await self._store.claim(*args, **kwargs)
        if isinstance(claimed, Claimed):
            ref, fence = claimed.lease.ref, claimed.lease.fence
            self._witness.fences[ref] = max(self._witness.fences[ref], fence)
        return claimed

    async def write(self, lease: Any, event: UnderLease, now_ms: int) -> None:
        newest = self._witness.fences[lease.ref]
        try:
            await self._store.write(lease, event, now_ms)
        except LeaseLost:
            self._witness.lost += 1
            raise
        assert lease.fence >= newest, "who lost the lease has written nothing"
        if isinstance(event, Finish):
            self._witness.ends[lease.ref] += 1
        entries = event.added.entries if isinstance(event, Checkpoint) else ()
        for tag, key, *values in map(json.decode, entries):
            assert (lease.ref, f"{tag} {key}") not in self._witness.kept, (
                "each step is written once"
            )
            self._witness.kept[lease.ref, f"{tag} {key}"] = values


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("workers", [2, 8])
async def test_each_task_ends_once_and_rightly_whatever_becomes_of_messages_and_leases(
    share: Share, workers: int, seed: int
) -> None:
    chance, clock, witness = random.Random(seed), SkippingClock(), Witness()
    tokens: Counter[str] = Counter()

    async def step(name: str) -> str:
        await asyncio.sleep(chance.choice([0, 0, 0.001, 0.02, 0.05]))
        if name == f"{refs[0].id} first" and not tokens[name]:
            tokens[name] += 1
            for turn in range(1000):  # it stalls until another worker has taken its task
                if turn % 50 == 0:
                    clock.skip(700)  # now and then all leases run out
                await asyncio.sleep(0.01)
                if (await first.record(refs[0])).fence > 1:
                    break
        tokens[name] += 1
        return f"{name} {tokens[name]}"

    async def work(ctx: Context, number: int) -> list[Any]:
        done = [await ctx.step("first", step, f"{ctx.task_id} first")]
        await ctx.sleep(await ctx.step("how_long", lambda: chance.choice([1, 20, 100])))
        sides = [ctx.step(side, step, f"{ctx.task_id} {side}") for side in ("left", "right")]
        done += await asyncio.gather(*sides)
        who = await ctx.elicit("who", "Who?", Name)
        await ctx.shed()
        return [*done, who.name, await ctx.step("last", step, f"{ctx.task_id} last")]

    shared = share(clock, max_deaths=1_000, lease_s=600)  # time flies here

    def process() -> Workshop:
        store, queue = shared.stores()
        chaotic: Any = Chaotic(queue, chance)
        tasks = witness.wraps(StoredTasks(store.store, chaotic))
        return Workshop(catalog_of(work=work), tasks, chaotic, clock, shared.config)

    async def worker(shop: Workshop) -> list[tuple[TaskRef, TurnResult]]:
        turns: list[tuple[TaskRef, TurnResult]] = []
        while not over():
            messages = await shop.messages()
            ended = await asyncio.gather(*(shop.take(message) for message in messages))
            turns += zip((message.ref for message in messages), ended, strict=True)
            await asyncio.sleep(0.005)
        return turns

    async def pass_time(shop: Workshop) -> None:
        while not over():
            clock.skip(chance.choice([0, 1, 3]))
            await shop.sweep.sweep()
            for ref in refs:
                requests = (await shop.shown(ref)).get("inputRequests", {})
                if requests:
                    await shop.answer(
                        ref, **{key: polite(key, request) for key, request in requests.items()}
                    )
            await asyncio.sleep(0.002)

    def over() -> bool:
        return len(witness.ends) == TASKS

    first = process()
    refs = [await first.begin("work", number=number) for number in range(TASKS)]
    async with asyncio.timeout(60):
        async with asyncio.TaskGroup() as group:
            group.create_task(pass_time(first))
            worked = [group.create_task(worker(process())) for _ in range(workers)]
    assert set(witness.ends.values()) == {1}
    for ref in refs:
        steps = {
            key: values[0]
            for (of, key), values in witness.kept.items()
            if of == ref and key[0] == "s"
        }
        kept = {key.rpartition("/")[2].removeprefix("s "): value for key, value in steps.items()}
        assert await first.value(ref) == [
            kept["first"],
            kept["left"],
            kept["right"],
            "who",
            kept["last"],
        ]
    turns = Counter(turn for one in worked for turn in one.result())
    assert turns[refs[0], TurnResult.LOST], (
        "who stalled until another had its task has written nothing more, and knows it"
    )
    assert witness.lost >= sum(
        times for (_, turn), times in turns.items() if turn is TurnResult.LOST
    )
    assert {ref: turns[ref, TurnResult.FINISHED] for ref in refs} == dict.fromkeys(refs, 1)
    # whatever becomes of messages and leases, that is no fault, and blames no task
    usual = {
        TurnResult.NOT_CLAIMED,
        TurnResult.LOST,
        TurnResult.RELEASED,
        TurnResult.ASKED,
        TurnResult.FINISHED,
    }
    assert {turn for _, turn in turns} <= usual


async def test_eight_workers_that_get_one_message_at_once_run_one_step_once(share: Share) -> None:
    ran: list[str] = []

    async def step() -> None:
        await asyncio.sleep(0.05)
        ran.append("step")

    async def work(ctx: Context) -> str:
        await ctx.step("step", step)
        return "done"

    shared = share(Clock())
    shops = [shared.workshop(work=work) for _ in range(8)]
    ref = await shops[0].begin("work")
    turns = await asyncio.gather(*(shop.worker.work(ref) for shop in shops))
    assert sorted(turns) == [TurnResult.FINISHED] + [TurnResult.NOT_CLAIMED] * 7
    assert ran == ["step"]


async def test_processes_that_are_killed_are_replaced_by_others(
    share: Share, path: Path, tmp_path: Path
) -> None:
    effects = tmp_path / "effects.txt"
    effects.touch()
    command = [sys.executable, "-m", "tests.support.worker_process", str(path), str(effects)]
    shop = share(Clock(), **CONFIG.model_dump()).workshop(work=lambda ctx: None)
    refs = [await shop.begin("work") for _ in range(24)]
    processes = [subprocess.Popen(command) for _ in range(3)]  # noqa: ASYNC220 (it takes a millisecond)
    lines = _Lines(effects)
    try:
        while (first := lines.first_pid()) is None:
            await lines.go_on()
        (killed,) = [process for process in processes if process.pid == first]
        killed.kill()  # in the middle of something
        while (found := [await shop.record(ref) for ref in refs]) and not all(
            r.status.is_terminal for r in found
        ):
            await lines.go_on()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)
    assert {record.status for record in found} == {Status.COMPLETED}
    assert [await shop.value(ref) for ref in refs] == [sum(range(STEPS))] * len(refs)
    ran = Counter(line.split(" ", 1)[1] for line in effects.read_text().splitlines())
    assert len(ran) == len(refs) * STEPS
    # a step that was running when its process was killed ran again, for each of its turns one
    assert (
        sum(ran.values()) - len(ran) <= 2 * CONFIG.concurrency
    )  # and on a slow machine a lease runs out now and then
    assert {process: process.returncode for process in processes} == {
        **dict.fromkeys(processes, 0),
        killed: -9,
    }


class _Lines:
    """Effects of processes, as they are written down."""

    patience_s: Final = 4 * CONFIG.lease_s + 40
    """How long there may be none: leases run out, and on a busy machine a process takes its time to begin."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._until = time.monotonic() + self.patience_s

    def first_pid(self) -> int | None:
        """Whose the first one is, if there is one."""
        words = self._path.read_text().split()
        return int(words[0]) if words else None

    async def go_on(self) -> None:
        """Wait a moment, as long as there has been another one lately."""
        if (size := self._path.stat().st_size) != self._size:
            self._size, self._until = size, time.monotonic() + self.patience_s
        assert time.monotonic() < self._until, f"nothing has moved for {self.patience_s} s"
        await asyncio.sleep(0.02)
