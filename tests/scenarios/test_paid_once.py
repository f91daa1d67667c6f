"""Who does not hear whether they have paid sends the same again, to whichever
gateway: they have paid once."""

from __future__ import annotations

import asyncio

from tests.scenarios.conftest import Agency, clients, kill
from tests.support import wire
from tests.support.rounds import accept, retry, tool, valid_input_required


async def test_a_payment_that_is_sent_again_and_again_is_one_payment_with_one_receipt(
    agency: Agency,
) -> None:
    first, second = agency.gateway(), agency.gateway()
    method, params = tool("pay", amount=20)
    async with clients(first, second) as (one, two):
        asked = valid_input_required((await one.send(method, params)).json())
        confirmed = retry(params, asked, payer=accept(name="Ada"))
        answers = await asyncio.gather(
            *(replica.send(method, confirmed) for replica in (one, two) * 3)
        )
        receipts = {
            wire.valid_result(method, one_.json())["content"][0]["text"] for one_ in answers
        }
        kill(first)
        late = wire.valid_result(method, (await two.send(method, confirmed)).json())["content"][0][
            "text"
        ]
    assert receipts == {late}
    assert late.startswith("receipt ")
    assert agency.diary == ["pay 20"]
