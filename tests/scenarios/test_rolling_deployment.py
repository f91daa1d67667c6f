"""A new version takes the place of the old one, while a call waits for an
answer and a task runs."""

from __future__ import annotations

from tests.scenarios.conftest import Agency, clients
from tests.support import wire
from tests.support.rounds import accept, retry, tool, valid_input_required

DAYS = 8


async def test_calls_and_tasks_of_before_end_in_the_new_version(agency: Agency) -> None:
    old, old_worker = agency.gateway(), agency.worker()
    method, params = tool("book", city="Oslo")
    async with clients(old) as (before,):
        asked = valid_input_required((await before.send(method, params)).json())
        task_id = await before.begin("tour", days=DAYS)
        await agency.has_done("day 2")

        agency.change = lambda source: source.replace(
            'return f"{held}, {booked}"', 'return f"{booked} (v2)"'
        ).replace("days with", "fine days with")
        new = agency.gateway()
        assert old_worker.stop() == 0
        new_worker = agency.worker()
        assert old.stop() == 0

    async with clients(new) as (after,):
        result = wire.valid_result(
            method, (await after.send(method, retry(params, asked, who=accept(name="Ada")))).json()
        )
        assert result["content"][0]["text"] == "book Oslo for Ada (v2)"
        await after.asked(task_id)
        await after.answer(task_id, {"who": accept(name="Ada")})
        assert await after.text(task_id) == f"{DAYS} fine days with Ada"
    days = [line for line in agency.diary if line.startswith("day")]
    assert days == [f"day {number}" for number in range(1, DAYS + 1)], (
        "a worker that is told to stop keeps its step"
    )
    assert agency.diary.count("hold Oslo") == 1
    assert agency.processes[-1] in {new.process.pid, new_worker.process.pid}
