"""A user sees what would be destroyed before it is; what they decline is not done, and
one approval is one run."""

from __future__ import annotations

from tests.scenarios.conftest import Agency, clients
from tests.support import wire
from tests.support.rounds import accept, retry, tool, valid_input_required


async def test_nothing_is_cancelled_that_its_user_has_not_seen_and_approved(agency: Agency) -> None:
    first, second = agency.gateway(), agency.gateway()
    method, params = tool("cancel", room="12")
    async with clients(first, second) as (one, two):
        asked = valid_input_required((await one.send(method, params)).json())
        shown = asked["inputRequests"]["approve"]["params"]["message"]
        assert "What is cancelled is not paid back." in shown
        assert '- room: "12"' in shown
        await two.send(method, retry(params, asked, approve={"action": "decline"}))
        assert agency.diary == []

        asked = valid_input_required((await two.send(method, params)).json())
        other = {**params, "arguments": {"room": "13"}}
        assert wire.valid_error(
            await one.send(method, retry(other, asked, approve=accept(approve=True)))
        )
        assert agency.diary == []
        approved = retry(params, asked, approve=accept(approve=True))
        for replica in (
            one,
            two,
        ):  # the answer was lost on its way, and the client sends the approval again
            result = wire.valid_result(method, (await replica.send(method, approved)).json())
            assert result["content"][0]["text"] == "cancel 12"
    assert agency.diary == ["cancel 12"]
