"""An operator asks on the command line which tasks there are, and cancels one: its owner and
its worker learn of it."""

from __future__ import annotations

import asyncio

from tests.scenarios.conftest import Agency, clients
from tests.support.command import roundgate


async def test_a_task_that_an_operator_cancels_is_cancelled_for_everybody(agency: Agency) -> None:
    gateway, worker = agency.gateway(), agency.worker()
    async with clients(gateway) as (owner,):
        task_id = await owner.begin("tour", days=400)
        await agency.has_done("day 1")
        config = agency.files()
        listed = await asyncio.to_thread(
            roundgate, "tasks", "list", directory=config.parent, **agency.shared
        )
        assert listed.status == 0, listed.err
        (named,) = [word for word in listed.out.split() if word.endswith(f".{task_id}")]
        done = await asyncio.to_thread(
            roundgate, "tasks", "cancel", named, directory=config.parent, **agency.shared
        )
        assert done.status == 0, done.err
        assert (await owner.get(task_id))["status"] == "cancelled"
        await asyncio.to_thread(worker.logged, 30, task=named, outcome="lost")
        days = len(agency.diary)
        assert days < 400
