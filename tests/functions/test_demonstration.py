"""What `roundgate stack --demo` calls, without the stack."""

from __future__ import annotations

from pathlib import Path

from roundgate.deployment import stack
from roundgate.testing import Gateway

DEMO = Path(stack.__path__[0]) / "demo/gateway.yaml"


async def test_a_booking_asks_twice_and_a_trip_goes_on_as_a_task() -> None:
    async with Gateway(DEMO) as gateway:
        booked = {"where": {"city": "Rome"}, "agree": {"go": True}}
        assert (await gateway.call("book", answers=booked)).text == "a room in Rome, 160 EUR"
        declined = {**booked, "agree": {"go": False}}
        assert (await gateway.call("book", answers=declined)).text == "nothing booked"
        trip = await gateway.call("travel", {"city": "Oslo"}, answers={"who": {"name": "Ann"}})
        assert trip.text == "Ann goes to Oslo for 160 EUR"
