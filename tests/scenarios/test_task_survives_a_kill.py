"""A task is worked on in a process that is killed; another goes on after its last step."""

from __future__ import annotations

from tests.scenarios.conftest import Agency, clients, kill
from tests.support.rounds import accept

DAYS = 8


async def test_a_task_goes_on_in_another_worker_after_the_last_step_that_was_kept(
    agency: Agency,
) -> None:
    gateway, victim = agency.gateway(), agency.worker()
    async with clients(gateway) as (owner,):
        task_id = await owner.begin("tour", days=DAYS)
        await agency.has_done("day 2")
        kill(victim)
        done = len(agency.diary)
        assert done < DAYS, "it was killed in the middle"
        assert (await owner.get(task_id))["status"] == "working"
        agency.worker()
        asked = await owner.asked(task_id)
        assert asked["who"]["params"]["message"] == "Who comes along?"
        await owner.answer(task_id, {"who": accept(name="Ada")})
        assert await owner.text(task_id) == f"{DAYS} days with Ada"
    # The step in whose middle it was killed may have been done without having been kept.
    assert list(dict.fromkeys(agency.diary)) == [f"day {number}" for number in range(1, DAYS + 1)]
    assert len(agency.diary) <= DAYS + 1
    # Whoever was in a process that died is run alone first: in a child of the other worker.
    assert set(agency.processes[:done]) == {victim.process.pid}
    assert victim.process.pid not in agency.processes[done:]
