"""How long an operation of the store is repeated."""

from __future__ import annotations

import pytest

from roundgate import aws
from roundgate.errors import StoreAway, Unavailable
from roundgate.storage.patience import PATIENCE_S, RowPatience
from tests.support.clocks import FixedClock


class Waiting(FixedClock):
    """Time passes when somebody sleeps."""

    async def sleep(self, seconds: float) -> None:
        self.skip(seconds)


class Away:
    """Is away, and takes its time to say so."""

    def __init__(self, clock: Waiting, takes_s: float, times: int = 99) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self._left = times
        self.asked = 0

    async def read(self) -> str:
        self.asked += 1
        self._clock.skip(self._takes_s)
        if self.asked > self._left:
            return "there"
        raise Unavailable("away")


@pytest.mark.parametrize("times", [1, 2, 7])
async def test_what_comes_back_soon_is_asked_again(times: int) -> None:
    store = Away(clock := Waiting(), 0.01, times)
    assert await RowPatience(clock)(store.read) == "there"
    assert store.asked == times + 1


@pytest.mark.parametrize(("takes_s", "asked"), [(0.01, 12), (9.0, 3), (15.0, 2), (25.0, 1)])
async def test_what_stays_away_is_asked_for_no_longer_than_that(takes_s: float, asked: int) -> None:
    store = Away(clock := Waiting(), takes_s)
    began_ms = clock.monotonic_ms()
    with pytest.raises(StoreAway, match="away"):
        await RowPatience(clock)(store.read)
    assert store.asked == asked
    assert clock.monotonic_ms() - began_ms <= (PATIENCE_S + takes_s) * 1000


async def test_no_request_waits_longer_than_its_environment_lets_it() -> None:
    store = Away(clock := Waiting(), 0.01)
    with aws.bounded(clock.deadline(300)), pytest.raises(StoreAway):
        await RowPatience(clock)(store.read)
    assert store.asked == 2
    assert clock.monotonic_ms() - FixedClock().monotonic_ms() <= 300
