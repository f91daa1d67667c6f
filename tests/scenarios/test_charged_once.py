"""A service charges, its answer is lost, whoever asked dies or asks again: it is charged once."""

from __future__ import annotations

import asyncio

from tests.scenarios.conftest import Agency, clients, kill
from tests.support import wire
from tests.support.rounds import accept, retry, tool, valid_input_required
from tests.support.till import till

SERVICE = """  - kind: http
    name: till
    base_url: {url}
    idempotency_key: Idempotency-Key
    retry: {{pause_s: 0.05}}
    tools:
      - name: charge
        description: Charges.
        method: POST
        path: /charges
        task: optional
        destructive: false
        arguments: {{amount: {{schema: {{type: integer}}}}}}
      - name: ask
        description: Charges what the user says.
        method: POST
        path: /charges
        ask_for: [amount]
        arguments: {{amount: {{schema: {{type: integer}}, required: true}}}}
"""


async def test_a_worker_that_dies_before_it_hears_the_answer_has_charged_once(
    agency: Agency,
) -> None:
    async with till() as service:
        agency.more_yaml = SERVICE.format(url=service.url)
        service.silent = True
        gateway, victim = agency.gateway(), agency.worker()
        async with clients(gateway) as (owner,):
            task_id = await owner.begin("till__charge", amount=20)
            await service.charged()
            kill(victim)
            service.silent, service.lose = False, 1
            agency.worker()
            task = await owner.over(task_id)
    assert task["result"]["structuredContent"] == {"receipt": 1}
    assert service.charges == ['{"amount":20}']
    # the worker that died, the one after it, and that one again because its answer was cut off
    assert len(service.keys) >= 3
    assert len(set(service.keys)) == 1


async def test_a_round_that_is_sent_again_to_another_replica_charges_once(agency: Agency) -> None:
    async with till() as service:
        agency.more_yaml = SERVICE.format(url=service.url)
        service.lose = 2
        first, second = agency.gateway(), agency.gateway()
        method, params = tool("till__ask")
        async with clients(first, second) as (one, two):
            asked = valid_input_required((await one.send(method, params)).json())
            filled = retry(params, asked, arguments=accept(amount=7))
            said = await asyncio.gather(*(one_.send(method, filled) for one_ in (one, two, one)))
            kill(first)
            late = await two.send(method, filled)
            other = retry(params, asked, arguments=accept(amount=8))
            changed = wire.valid_result(method, (await two.send(method, other)).json())
    receipts = [
        wire.valid_result(method, one_.json())["structuredContent"] for one_ in (*said, late)
    ]
    assert receipts == [{"receipt": 1}] * 4
    assert changed["structuredContent"] == {"receipt": 2}, "another answer is another charge"
    assert service.charges == ['{"amount":7}', '{"amount":8}']
