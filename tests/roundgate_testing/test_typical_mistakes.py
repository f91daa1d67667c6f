"""What `crash="everywhere"` finds of what people do wrong, and that it says nothing of the same
handlers done right."""

from __future__ import annotations

import re

import pytest

from roundgate.errors import Diverged, NondeterminismError
from roundgate_testing import Gateway
from tests.roundgate_testing import mistakes
from tests.roundgate_testing.mistakes import MISTAKES, RIGHT, outbox
from tests.support.long import sampled

GO = {"confirm": {"go": True}}


async def everywhere(name: str) -> None:
    outbox.clear()
    async with Gateway(getattr(mistakes, name)) as gateway:
        await gateway.call(
            name, answers=GO, crash="everywhere", observe=lambda: outbox, reset=outbox.clear
        )


@pytest.mark.parametrize("name", MISTAKES)
async def test_a_typical_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_MODE", "live")
    with pytest.raises((Diverged, NondeterminismError)) as caught:
        await everywhere(name)
    assert re.search(MISTAKES[name], str(caught.value)), caught.value


@pytest.mark.parametrize("name", sampled(list(RIGHT), 3))
async def test_a_handler_that_does_it_right_is_not_accused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_MODE", "live")
    await everywhere(f"{name}_right")
