"""A process of workers and nothing else: `python -m tests.support.worker_process FILE
EFFECTS`, until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from roundgate.clock import Clock
from roundgate.replay.context import Context
from roundgate.settings import TasksConfig
from tests.support.tasks import Shared

CONFIG = TasksConfig(
    lease_s=2, clock_skew_s=0.5, requeue_after_s=1, sweep_every_s=0.2, concurrency=4
)
STEPS = 5


async def main(path: Path, effects: Path) -> None:
    def step(task: str, number: int) -> int:
        with effects.open("a") as file:
            file.write(f"{os.getpid()} {task} {number}\n")
        time.sleep(0.02)
        return number

    async def work(ctx: Context) -> int:
        total = 0
        for number in range(STEPS):
            total += await ctx.step("step", step, ctx.task_id or "", number)
        await ctx.shed()
        return total

    shared = Shared(path, Clock(), CONFIG)
    shop = shared.workshop(work=work)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    shop.pool.start()
    await stop.wait()
    await shop.pool.stop()
    await shared.aclose()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
