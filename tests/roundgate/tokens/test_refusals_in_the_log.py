"""The log names the reason of a refusal, and cannot be flooded with them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from roundgate.auth.principal import Principal
from roundgate.errors import StateRefused
from roundgate.settings.process import Settings
from roundgate.tokens import keys
from roundgate.tokens.sealed import MAX_CALLERS, Binding, KeyRing, StateSealer
from tests.support import rounds
from tests.support.asgi import STATE_KEY, built, client, config_file
from tests.support.clocks import FixedClock, SkippingClock
from tests.support.functions import EVERYTHING
from tests.support.rounds import REFUSAL

CALL = Binding.of("tools/call", "deploy", {})


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What the log says of refusals."""
    found = [
        vars(record)["fields"] for record in caplog.records if record.name == "roundgate.tokens"
    ]
    caplog.clear()
    return found


async def test_a_thousand_bad_states_of_one_caller_are_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = FixedClock()
    app = built(config_file(*EVERYTHING), Settings(state_keys=STATE_KEY), clock=clock)
    method, params = rounds.tool("echo", text="x")
    async with client(app) as mcp:

        async def send(times: int) -> None:
            for number in range(times):
                _, error = await mcp.error(method, params | {"requestState": f"v1.x.{number}"})
                assert (error["code"], error["message"]) == (-32602, REFUSAL)

        await send(1_000)
        (first,) = lines(caplog)
        clock.skip(59)
        await send(1)
        assert lines(caplog) == []
        clock.skip(2)
        await send(1)
        (second,) = lines(caplog)
    assert first == {"reason": "unknown version or key", "subject": "local"}
    assert second == {**first, "refused_since_then": 1_000}


def refuse(sealer: StateSealer, *owners: Principal) -> None:
    for owner in owners:
        with pytest.raises(StateRefused):
            sealer.open("x", owner, CALL)


def test_each_caller_has_a_line_of_its_own_and_many_of_them_take_no_more_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sealer = StateSealer(KeyRing(keys.parse(STATE_KEY, "keys")), SkippingClock())
    ann, eve = Principal("i", "ann", "c"), Principal("i", "eve", "c")
    refuse(sealer, ann, eve, ann, eve)
    assert [line["subject"] for line in lines(caplog)] == ["ann", "eve"]
    refuse(sealer, *(Principal("i", f"{number}" * 100, "c") for number in range(MAX_CALLERS + 500)))
    assert len(lines(caplog)) == MAX_CALLERS + 500
    assert len(sealer.refusals._told) == MAX_CALLERS
