"""A handler asks in one gateway, which is killed then; the answer goes to another, and
nothing is done twice."""

from __future__ import annotations

from tests.scenarios.conftest import Agency, clients, kill
from tests.support import wire
from tests.support.rounds import accept, retry, tool, valid_input_required


async def test_the_answer_to_a_question_goes_to_another_replica_when_the_first_is_gone(
    agency: Agency,
) -> None:
    first, second = agency.gateway(), agency.gateway()
    method, params = tool("book", city="Oslo")
    async with clients(first, second) as (one, two):
        asked = valid_input_required((await one.send(method, params)).json())
        assert asked["inputRequests"]["who"]["params"]["message"] == "For whom?"
        kill(first)
        answered = (await two.send(method, retry(params, asked, who=accept(name="Ada")))).json()
    result = wire.valid_result(method, answered)
    assert result["content"][0]["text"] == "hold Oslo, book Oslo for Ada"
    assert agency.diary == ["hold Oslo", "book Oslo for Ada"]
    assert agency.processes == [first.process.pid, second.process.pid]
